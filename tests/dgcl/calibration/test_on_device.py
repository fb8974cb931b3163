"""Calibration over the channels of GPUs, on devices made of host memory: everything is measured, and told."""

from collections.abc import Iterator
from types import NoneType
from typing import Any

import pytest
import torch

import dgcl
from dgcl.calibration import Effort
from dgcl.calibration.run import outcome_json, run_rank
from dgcl.ranks.context import context
from dgcl.topology.resolve import resolve_topology
from dgcl.transport.cuda.device_exchange import DeviceExchange
from tests.support.fake_cuda import FakeCuda, Memory, _contexts
from tests.support.fake_ranks import open_fake

UNIFORM = resolve_topology("uniform:2", 2)
LEAST = Effort(seconds=0.0, least=1, most=1, rounds=1)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeCuda]]:
    memory = Memory()
    found = [FakeCuda(memory, seed) for seed in range(2)]

    def open_device(device: torch.device) -> Any:
        return open_fake(found[context.require_control().rank % len(found)])

    monkeypatch.setattr("dgcl.transport.cuda.gpu.open_device", open_device)
    monkeypatch.setattr("dgcl.transport.cuda.ThreadControl", NoneType)  # threads stand for processes
    yield found
    for fake in found:
        fake.stop()


def test_a_gpu_that_ranks_share_is_not_calibrated(fakes: list[FakeCuda]):
    fakes[1] = fakes[0]
    with pytest.raises(ValueError, match="ranks share a GPU, and no link is between them"):
        dgcl.launch(lambda: run_rank(None, 64, LEAST, "cuda"), 2)


@pytest.mark.slow
def test_channels_of_devices_are_measured(fakes: list[FakeCuda], monkeypatch):
    """Every exchange is made by them, and none by those of the CPU."""
    calls: list[int] = []
    right = DeviceExchange.expand

    def counted(self: DeviceExchange, rows: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        return right(self, rows)

    monkeypatch.setattr(DeviceExchange, "expand", counted)
    monkeypatch.setattr("dgcl.calibration.timing.Runtime", None)

    def run() -> Any:
        try:
            return run_rank(UNIFORM, 64, LEAST, "cuda")
        finally:
            _contexts.current = 0

    outcome = dgcl.launch(run, 2, timeout=60.0)[0]
    told = outcome_json(outcome)
    assert told["device"] == "cuda"
    assert all(one["seconds"] > 0 and one["predicted"] > 0 for one in told["measured"])
    # Two ranks, two laps before those that count, five calls in each.
    assert len(calls) >= 2 * 3 * 5 * len(told["measured"])

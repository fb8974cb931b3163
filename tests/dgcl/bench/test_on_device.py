"""The bench for rows on GPUs: the same lanes, on devices made of host memory."""

from collections.abc import Iterator
from types import NoneType
from typing import Any

import pytest
import torch

import dgcl
from dgcl.bench import measure
from dgcl.bench.patterns import DTYPES
from dgcl.bench.problems import from_pattern
from dgcl.bench.records import Case, Line, Settings
from dgcl.cli import main
from dgcl.ranks.context import context
from dgcl.topology import resolve_topology
from dgcl.transport.cuda.device_exchange import DeviceExchange
from tests.support.fake_cuda import FakeCuda, Memory, _contexts
from tests.support.fake_ranks import open_fake
from tests.support.samples import named


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two devices; rank r is on device r."""
    memory = Memory()
    devices = [FakeCuda(memory, seed) for seed in range(2)]

    def open_device(device: torch.device) -> Any:
        return open_fake(devices[context.require_control().rank])

    monkeypatch.setattr("dgcl.transport.cuda.gpu.open_device", open_device)
    monkeypatch.setattr("dgcl.transport.cuda.ThreadControl", NoneType)  # threads stand for processes
    yield
    for fake in devices:
        fake.stop()


def run(dtype: str) -> Line:
    topology = resolve_topology("uniform:2", 2)
    settings = Settings(
        ("direct",), topology, dtype=dtype, iterations=4, warmup=1, timeout=60.0, device="cuda"
    )

    def on_rank() -> Any:
        try:
            case = Case(lambda: from_pattern("alltoall", 2, 5), (3,))
            return measure.measure([case], settings, lambda record: None)
        finally:
            _contexts.current = 0

    measurement, nothing = dgcl.launch(on_rank, 2, timeout=60.0)
    assert nothing is None
    (line,) = measurement.lines
    return line


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_plans_and_copies_between_devices_are_measured_and_right(dtype: str):
    line = run(dtype)
    assert (line.forward.wrong, line.backward.wrong, line.copy.wrong) == (0, 0, 0)
    assert min(line.forward.seconds, line.backward.seconds, line.copy.seconds) > 0
    assert (line.halo_rows, line.size) == (10, 15.0 * DTYPES[dtype].itemsize)


@pytest.mark.usefixtures("fakes")
def test_wrong_rows_are_counted(monkeypatch):
    right = DeviceExchange.expand

    def damaged(self: DeviceExchange, rows: torch.Tensor, exchange: int = 0) -> torch.Tensor:
        out = right(self, rows, exchange)
        self.synchronize()
        out[-1].zero_()
        return out

    monkeypatch.setattr(DeviceExchange, "prove", lambda self: "")  # set-up would notice
    monkeypatch.setattr(DeviceExchange, "expand", damaged)
    line = run("float32")
    assert line.forward.wrong == 2 * 4 * 3, "one row of each rank in each timed call"
    assert line.backward.wrong == 0


@named(
    "more, text",
    {
        "threads": (["--threads"], "--threads goes without --device cuda"),
        "no-gpu": pytest.param(
            [],
            "sees no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    },
)
def test_the_command_refuses_what_it_cannot_do(more: list[str], text: str, capsys):
    assert main(["bench", "--device", "cuda", *more]) == 2
    assert text in capsys.readouterr().err

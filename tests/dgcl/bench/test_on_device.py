"""The bench for rows on GPUs: its patterns, its exchanges and its records, on devices made of host memory."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.bench.on_device import measure, nccl, patterns
from dgcl.bench.on_device.clock import Clock
from dgcl.bench.patterns import DTYPES
from dgcl.bench.problems import Problem, from_pattern
from dgcl.bench.records import Case, Line, Measurement, RankInfo, Settings
from dgcl.cli import main
from dgcl.ranks.context import context
from dgcl.topology import resolve_topology
from dgcl.transport.cuda.exchange import DeviceExchange
from tests.dgcl.transport.cuda.fake_cuda import FakeCuda, Memory, _contexts
from tests.dgcl.transport.cuda.fake_ranks import open_fake


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeCuda]]:
    """Two devices; rank r is on device r, or all on the first when the list is cut to one."""
    memory = Memory()
    found = [FakeCuda(memory, seed) for seed in range(2)]
    used = list(found)

    def open_device(device: torch.device) -> Any:
        rank = context.require_control().rank
        return open_fake(used[rank % len(used)])

    monkeypatch.setattr("dgcl.transport.cuda.gpu.open_device", open_device)
    yield used
    for fake in found:
        fake.stop()


def problem(world_size: int = 2) -> Problem:
    return from_pattern("alltoall", world_size, 5)


def run(settings: Settings, told: list[Any], width: int = 3) -> Measurement:
    def on_rank() -> Measurement | None:
        try:
            return measure.measure_on_device([Case(problem, (width,))], settings, told.append)
        finally:
            _contexts.current = 0

    found = dgcl.launch(on_rank, 2, timeout=60.0)
    assert found[1] is None
    return found[0]


def settings(*methods: str, **others: Any) -> Settings:
    topology = resolve_topology("uniform:2", 2)
    return Settings(methods=methods, topology=topology, iterations=4, warmup=1, timeout=20.0, **others)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_plans_and_copies_between_devices_are_measured_and_right(fakes: list[FakeCuda], dtype: str) -> None:
    told: list[Any] = []
    found = run(settings("direct", "gather", "gloo", dtype=dtype), told)
    assert [line.method for line in found.lines] == ["direct", "gather"]
    for line in found.lines:
        assert (line.forward.wrong, line.backward.wrong) == (0, 0)
        assert line.forward.seconds > 0
        assert line.forward.copy_seconds > 0
        assert (line.halo_rows, line.size) == (10, 15.0 * DTYPES[dtype].itemsize)
    assert found.lines[0].host_seconds is not None
    assert "a call takes the host" in found.lines[0].note
    assert found.lines[1].host_seconds is None
    assert [type(each) for each in told] == [str, list, Line, Line]
    assert told[0].startswith(
        "gloo is left out: gloo: ranks are not the processes of one torch.distributed group;"
    )
    assert all(isinstance(rank, RankInfo) for rank in told[1])


def test_ranks_that_share_a_device_copy_in_turn(fakes: list[FakeCuda]) -> None:
    del fakes[1:]
    found = run(settings("direct"), [])
    assert found.lines[0].forward.wrong == 0
    assert found.lines[0].forward.copy_seconds > 0


def test_wrong_rows_are_counted(fakes: list[FakeCuda], monkeypatch: pytest.MonkeyPatch) -> None:
    right = DeviceExchange.expand

    def damaged(self: DeviceExchange, rows: torch.Tensor, exchange: int = 0) -> torch.Tensor:
        out = right(self, rows, exchange)
        self.synchronize()
        out[-1].zero_()
        return out

    monkeypatch.setattr(DeviceExchange, "expand", damaged)
    line = run(settings("direct"), []).lines[0]
    assert line.forward.wrong == 2 * 4 * 3, "one row of each rank in each timed call"
    assert line.backward.wrong == 0


def test_memory_that_cannot_be_shared_leaves_the_copies_out(
    fakes: list[FakeCuda], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dgcl.bench.on_device.gather import Shared

    def refuse(self: Any, *args: Any) -> None:
        raise ValueError("memory cannot be shared: no")

    monkeypatch.setattr(Shared, "__init__", refuse)
    told: list[Any] = []
    assert [line.method for line in run(settings("gather", "direct"), told).lines] == ["direct"]
    assert told[0] == "gather is left out: memory cannot be shared: no"


def test_nccl_is_tried_elsewhere_first(fakes: list[FakeCuda], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "try_nccl", lambda num_ranks: f"not for {num_ranks}")
    told: list[Any] = []
    run(settings("nccl", "direct"), told)
    assert told[0] == "nccl is left out: NCCL does not run between 2 ranks here: not for 2"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit('Duplicate GPU detected')", "Duplicate GPU detected"),
        ("import time; time.sleep(600)", "no answer within 0.5 s"),
        ("pass", ""),
    ],
    ids=["refuses", "hangs", "runs"],
)
def test_what_nccl_says_is_told(monkeypatch: pytest.MonkeyPatch, code: str, said: str) -> None:
    popen = nccl.subprocess.Popen
    monkeypatch.setattr(
        nccl.subprocess, "Popen", lambda command, **more: popen([sys.executable, "-c", code], **more)
    )
    seconds = 0.5 if "sleep" in code else 60.0
    found = nccl.try_nccl(2, seconds)
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int64", "float64"])
def test_patterns_notice_every_wrong_element(dtype: str) -> None:
    kind = DTYPES[dtype]
    vertices = torch.arange(7) * 3
    rows, sums = torch.empty(7, 5, dtype=kind), torch.zeros(7, 5, dtype=kind)
    patterns.fill_expand(rows, vertices, 4)
    assert patterns.wrong_expand(rows, vertices, 4) == 0
    assert patterns.wrong_expand(rows, vertices, 5) > 25, "rows of another call"
    assert patterns.wrong_expand(rows.roll(1, 0), vertices, 4) > 25, "rows of other vertices"
    assert patterns.wrong_expand(rows.roll(1, 1), vertices, 4) > 25, "other columns"
    held = torch.tensor([[True] * 7, [True, False] * 3 + [True], [False] * 7])
    for rank in range(3):
        part = torch.empty(7, 5, dtype=kind)
        patterns.fill_fold(part, vertices, 4, rank)
        sums += part * held[rank, :, None]
    assert patterns.wrong_fold(sums, vertices, held, 4) == 0
    sums[3, 2] += 1
    assert patterns.wrong_fold(sums, vertices, held, 4) == 1
    assert patterns.wrong_fold(sums, vertices, ~held, 4) > 20


def test_large_rows_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    vertices, rows, sliced = torch.arange(50), torch.empty(50, 4), torch.empty(50, 4)
    patterns.fill_expand(rows, vertices, 1)
    monkeypatch.setattr(patterns, "_SLICE", 12)
    patterns.fill_expand(sliced, vertices, 1)
    assert np.array_equal(rows.view(torch.int32), sliced.view(torch.int32))
    assert patterns.wrong_expand(rows, vertices, 1) == 0


def test_a_clock_waits_for_what_it_times() -> None:
    steps: list[str] = []
    clock = Clock(torch.device("cpu"), lambda: steps.append("finished"))
    assert clock.seconds(lambda: steps.append("run")) >= 0
    assert clock.host_seconds(functools.partial(steps.append, "run")) >= 0
    assert steps == ["finished", "run", "finished", "finished", "run"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--method", "swap"], "--method must be of"),
        (["--threads"], "--threads goes without --device cuda"),
        (["--trace", "t.json"], "--trace goes without --device cuda"),
        pytest.param(
            [],
            "sees no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
    ids=["baseline", "threads", "trace", "no-gpu"],
)
def test_the_command_refuses_what_it_cannot_do(
    more: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--device", "cuda", *more]) == 2
    assert text in capsys.readouterr().err

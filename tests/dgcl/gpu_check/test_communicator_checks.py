"""What the ranks of gpu-check's communicators do, tried on CPU ranks that are threads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import dgcl
from dgcl.bench.records import Line, Measurement, Timing
from dgcl.communicator import Communicator
from dgcl.gpu_check import bench_check, communicator, ranks
from dgcl.gpu_check.measurement import Size

SMALL = Size(num_bytes=1 << 10, num_peers=2, repeats=1)


@pytest.mark.parametrize("through_host", [False, True])
def test_rows_and_gradients_are_found_right(through_host: bool) -> None:
    answers = dgcl.launch(ranks.check_rank, 2, 1 << 7, "direct", "cpu", through_host)
    assert communicator._told(answers) == f"right, {len(ranks.KINDS) + 1} kinds of rows"


def test_wrong_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Communicator.expand

    def damaged(self: Communicator, rows: torch.Tensor) -> torch.Tensor:
        out = right(self, rows)
        if rows.dtype == torch.float64:
            out[-1] += 1
        return out

    monkeypatch.setattr(Communicator, "expand", damaged)
    answers = dgcl.launch(ranks.check_rank, 2, 1 << 7, "direct", "cpu")
    assert communicator._told(answers) == "wrong: float64 (16,)"


def test_a_configuration_that_fails_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def launch(function: Any, count: int, *args: Any, **_: Any) -> Any:
        return "CudaError: no" if count == 2 else [{"float32": True}] * count

    monkeypatch.setattr(communicator, "launch", launch)
    found, good = communicator.check_ranks(SMALL, said.append, "cpu")
    assert not good
    assert found["2 processes, direct"] == "failed: CudaError: no"
    assert found["8 processes, spst"] == "right, 1 kinds of rows"
    assert found["4 processes, spst, through the host"] == "right, 1 kinds of rows"
    assert len(said) == 6


TIMING = Timing(1e-3, 1e-3, 1e-3, 5e-4, 0, [1e-3], [5e-4])
LINE = Line(
    "random", 1.0, "direct", "float32", 128, 10, 100, 1e6, 4_000_000, TIMING, TIMING, host_seconds=50e-6
)


def slower(method: str, factor: float) -> Line:
    timing = dataclasses.replace(TIMING, median=factor * 1e-3)
    return dataclasses.replace(LINE, method=method, forward=timing, host_seconds=None)


@pytest.mark.parametrize(
    ("line", "others", "ends", "good"),
    [
        (LINE, [], "| 0 | 50 |  |  |", True),
        (LINE, [slower("gloo", 4.0), slower("gather", 1.25)], "| 0 | 50 | 4.0 | 1.2 |", True),
        (LINE, [slower("gloo", 2.0)], "| 50 | 2.0 MISSED |  |", False),
        (LINE, [slower("gather", 0.5)], "| 50 |  | 0.5 MISSED |", False),
        (dataclasses.replace(LINE, host_seconds=61e-6), [], "| 61 MISSED |  |  |", False),
        (
            dataclasses.replace(LINE, forward=dataclasses.replace(TIMING, wrong=3)),
            [],
            "| 3 NO | 50 |  |  |",
            False,
        ),
        (slower("gloo", 2.0), [], "| 0 |  |  |  |", True),
    ],
    ids=["alone", "both", "slower-than-gloo", "slower-than-gather", "host", "wrong", "a-peer"],
)
def test_lines_are_held_against_their_targets(line: Line, others: list[Line], ends: str, good: bool) -> None:
    text, reached = bench_check.bench_row(2, line, {other.method: other for other in others})
    assert text.endswith(ends), text
    assert reached is good
    assert text.count("|") == bench_check.HEAD.splitlines()[0].count("|")


def test_the_bench_goes_on_when_a_configuration_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(function: Any, count: int, *args: Any) -> Any:
        found = Measurement([], [LINE, dataclasses.replace(LINE, width=602)])
        return "CudaError: no" if count == 4 else [found] + [None] * (count - 1)

    monkeypatch.setattr(bench_check, "launch", answer)
    said: list[str] = []
    found, good = bench_check.check_bench(SMALL, said.append, "cpu")
    assert not good
    assert [each["ranks"] for each in found] == [2, 2, 4, 8, 8]
    assert any("4 ranks: failed: CudaError: no" in text for text in said)


def test_peers_that_are_left_out_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for record in ("nccl is left out: no", LINE, []):
        bench_check.only_words(record)
    assert capsys.readouterr().out == "- nccl is left out: no\n"


def test_the_problem_of_the_bench_has_rows_to_send() -> None:
    assert bench_check.random_problem(2, 64).deliveries > 0


def test_the_network_brings_right_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicator, "launch", lambda *args: [{"float32": True}, {"float32": False}])
    assert communicator.check_hosts(SMALL, lambda text: None, "cpu")[1] is False


def test_errors_of_16_bit_rows_are_within_their_bound() -> None:
    answers = dgcl.launch(ranks.precision_rank, 3, 1 << 7, "direct", "cpu")
    shares = [share for answer in answers for share in answer.values()]
    assert set(answers[0]) == {"float16", "bfloat16", "float32"}
    assert all(0.0 <= share <= 1.0 for share in shares)
    assert max(shares) > 0.0


def test_errors_beyond_the_bound_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicator, "launch", lambda *args: [{"float16": 0.5}, {"float16": 1.5}])
    found, good = communicator.check_precision(SMALL, lambda text: None, "cpu")
    assert not good
    assert found["2 processes, direct"] == {"float16": 1.5}


def test_a_training_step_is_repeated_to_the_bit() -> None:
    """On a CPU nothing is captured; that the steps agree and move the weights is the same check."""
    answers = dgcl.launch(ranks.graph_rank, 2, "cpu")
    assert answers == [{"captured": False, "three replays right": True}] * 2


def test_faults_are_judged_by_what_ranks_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(function: Any, count: int, kind: str, folder: str, device: str) -> None:
        kinds = {"late": "CommTimeoutError", "dies": "PeerLostError"}
        for rank in range(2):
            Path(folder, f"{kind}-{rank}").write_text(f"{kinds[kind]} after 3 s (device works on)")

    monkeypatch.setattr(communicator, "launch", launch)
    assert communicator.check_faults(SMALL, lambda text: None, "cpu")[1]
    monkeypatch.setattr(communicator, "launch", lambda *args: None)
    found, good = communicator.check_faults(SMALL, lambda text: None, "cpu")
    assert not good
    assert set(found.values()) == {"never returned"}


@pytest.mark.slow
def test_a_late_and_a_dead_process_on_the_cpu() -> None:
    found, good = communicator.check_faults(SMALL, lambda text: None, "cpu")
    assert good, found

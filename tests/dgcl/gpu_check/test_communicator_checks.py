"""What the ranks of gpu-check's communicators do, tried on CPU ranks that are threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import dgcl
from dgcl.communicator import Communicator
from dgcl.gpu_check import communicator, ranks
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

    monkeypatch.setattr(communicator, "_launch", launch)
    found, good = communicator.check_ranks(SMALL, said.append, "cpu")
    assert not good
    assert found["2 processes, direct"] == "failed: CudaError: no"
    assert found["8 processes, spst"] == "right, 1 kinds of rows"
    assert found["4 processes, spst, through the host"] == "right, 1 kinds of rows"
    assert len(said) == 8


def test_speeds_make_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    line = {"expand": 1e-3, "fold": 2e-3, "host us of expand": 50.0, "bytes": 1e6}

    def launch(function: Any, count: int, num_nodes: int, method: str, *args: Any) -> Any:
        return [{**line, "gloo": 4e-3, "gather and copy": 1e-3} if method == "direct" else line] * count

    monkeypatch.setattr(communicator, "_launch", launch)
    found, good = communicator.check_speeds(SMALL, said.append, "cpu")
    assert good
    assert len(found) == 9
    assert said[2] == "| direct | 2 | 128 | 1.000 | 1 | 2.000 | 1.000 | 4.000 | 50 | 4.0 |"
    assert said[4] == "| spst | 2 | 128 | 1.000 | 1 | 2.000 |  |  | 50 |  |"
    line["host us of expand"] = 61.0
    assert not communicator.check_speeds(SMALL, said.append, "cpu")[1]
    assert "61 MISSED" in said[-2]


def test_a_measurement_runs() -> None:
    found = dgcl.launch(ranks.speed_rank, 2, 1 << 7, "direct", 4, 1, "cpu")
    assert {"expand", "fold", "gather and copy"} <= set(found[0])
    assert all(value > 0 for value in found[0].values())


def test_faults_are_judged_by_what_ranks_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(function: Any, count: int, kind: str, folder: str, device: str) -> None:
        kinds = {"late": "CommTimeoutError", "dies": "PeerLostError"}
        for rank in range(2):
            Path(folder, f"{kind}-{rank}").write_text(f"{kinds[kind]} after 3 s (device works on)")

    monkeypatch.setattr(communicator, "_launch", launch)
    assert communicator.check_faults(SMALL, lambda text: None, "cpu")[1]
    monkeypatch.setattr(communicator, "_launch", lambda *args: None)
    found, good = communicator.check_faults(SMALL, lambda text: None, "cpu")
    assert not good
    assert set(found.values()) == {"never returned"}


@pytest.mark.slow
def test_a_late_and_a_dead_process_on_the_cpu() -> None:
    found, good = communicator.check_faults(SMALL, lambda text: None, "cpu")
    assert good, found

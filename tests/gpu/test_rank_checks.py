"""What the ranks of the GPU tests do, tried on CPU ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dgcl
from dgcl.communicator import Communicator
from tests.gpu import ranks


@pytest.mark.parametrize("through_host", [False, True])
def test_rows_and_gradients_are_found_right(through_host: bool) -> None:
    answers = dgcl.launch(ranks.check_rank, 2, 1 << 7, "direct", "cpu", through_host)
    assert ranks.wrong_kinds(answers) == []
    assert len(answers[0]) == len(ranks.KINDS) + 1


def test_wrong_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Communicator.expand

    def damaged(self: Communicator, rows: torch.Tensor) -> torch.Tensor:
        out = right(self, rows)
        if rows.dtype == torch.float64:
            out[-1] += 1
        return out

    monkeypatch.setattr(Communicator, "expand", damaged)
    answers = dgcl.launch(ranks.check_rank, 2, 1 << 7, "direct", "cpu")
    assert ranks.wrong_kinds(answers) == ["float64 (16,)"]


def test_errors_of_16_bit_rows_are_within_their_bound() -> None:
    shares = ranks.largest_shares(dgcl.launch(ranks.precision_rank, 3, 1 << 7, "direct", "cpu"))
    assert set(shares) == {"float16", "bfloat16", "float32"}
    assert all(0.0 < share <= 1.0 for share in shares.values())


def test_the_largest_error_of_any_rank_counts() -> None:
    assert ranks.largest_shares([{"float16": 0.5}, {"float16": 1.5}]) == {"float16": 1.5}


def test_a_training_step_is_repeated_to_the_bit() -> None:
    """On a CPU nothing is captured; that the steps agree and move the weights is the same check."""
    answers = dgcl.launch(ranks.graph_rank, 2, "cpu")
    assert answers == [{"captured": False, "three replays right": True}] * 2


def test_ranks_that_never_return_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dgcl, "launch", lambda *args, **more: None)
    assert ranks.fault_reports("late", tmp_path, "cpu") == ["never returned"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dies", pytest.param("late", marks=pytest.mark.matrix)])
def test_a_late_and_a_dead_process_on_the_cpu(kind: str, tmp_path: Path) -> None:
    texts = ranks.fault_reports(kind, tmp_path, "cpu")
    assert all(ranks.FAULTS[kind] in text and "works on" in text for text in texts), texts

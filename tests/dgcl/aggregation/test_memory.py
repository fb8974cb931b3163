"""dgcl.aggregation.memory: rows of any size, wherever they lie."""

from __future__ import annotations

import pytest
import torch

from dgcl.aggregation.memory import new_rows


@pytest.mark.parametrize("megabytes", [0, 1, 5, 33])
def test_new_rows_are_rows_like_any(megabytes: int) -> None:
    like = torch.ones(3, 2, dtype=torch.float64)
    rows = new_rows(like, megabytes << 12, 64, torch.float32)
    assert (rows.shape, rows.dtype) == ((megabytes << 12, 64), torch.float32)
    assert rows.is_contiguous()
    rows.fill_(2.0)
    assert float(rows.sum()) == rows.numel() * 2


def test_large_rows_ask_for_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for whole ones, inside of the memory."""
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr("dgcl.aggregation.memory._advise", lambda: lambda *call: asked.append(call))
    new_rows(torch.ones(1), 100, 64, torch.float32)
    assert not asked
    rows = new_rows(torch.ones(1), 33 << 12, 64, torch.float32)
    ((begin, length, advice),) = asked
    assert rows.data_ptr() <= begin <= begin + length <= rows.data_ptr() + (33 << 20)
    assert begin % (2 << 20) == length % (2 << 20) == 0
    assert length >= 29 << 20
    assert advice == 14  # MADV_HUGEPAGE

"""The page about calibration: what is between its marks is replaced, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dgcl.calibration import document
from dgcl.calibration.document import BEGIN, END, main, rewritten

PAGE = Path(__file__).resolve().parents[3] / "docs" / "calibration.md"


def outcome(ranks: int, error: float) -> dict[str, Any]:
    plan = {"name": "grid 1k", "stages": 1, "bytes": 2_500_000, "predicted": 0.25, "measured": 2e-4}
    return {
        "ranks": ranks,
        "cores": 2,
        "row_bytes": 512,
        "median_residual": 0.034,
        "median_error": 0.123,
        "classes": [
            {"kind": "core", "connections": ["core0"], "bandwidth": 9.87, "latency": 31e-6, "decided": 3},
            {
                "kind": "memory (both ways)",
                "connections": ["memory"],
                "bandwidth": 12.0,
                "latency": 0,
                "decided": 1,
            },
        ],
        "measured": [],
        "contention": [
            {"shares": "memory", "senders": 1, "each": 9.5, "predicted_each": 9.87},
            {"shares": "from rank 0", "senders": 2, "each": 1.0, "predicted_each": 1.0},
        ],
        "checked": [{**plan, "error": error}, {**plan, "error": -0.5}],
    }


def test_tables() -> None:
    page = rewritten(f"before\n{BEGIN}\nold\n{END}\nafter\n", [outcome(2, 0.01), outcome(4, -0.9)])
    assert page.startswith(f"before\n{BEGIN}\n\nHost: ")
    assert page.endswith(f"\n\n{END}\nafter\n")
    assert "old" not in page
    assert "| 2 | 9.9 | 12.0 | 31 us | 3.4% | **12.3%** | 50% |" in page
    assert "| 4 | 9.9 | 12.0 | 31 us | 3.4% | **12.3%** | 90% |" in page
    assert "### 4 ranks on 2 cores" in page
    assert "| grid 1k | 1 | 2.5 MB | 250.0 ms | 200 us | +1% |" in page
    assert "| 1 | 9.50 | 9.87 |" in page
    assert "1.00" not in page  # other shared connections than the memory


def test_written_again_it_is_the_same() -> None:
    outcomes = [outcome(2, 0.01)]
    once = rewritten(PAGE.read_text(encoding="utf-8"), outcomes)
    assert rewritten(once, outcomes) == once


def test_one_command_rewrites_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, float]] = []

    def measure(ranks: int, checks: int, seconds: float) -> dict[str, Any]:
        asked.append((ranks, checks, seconds))
        return outcome(ranks, 0.0)

    monkeypatch.setattr(document, "measure", measure)
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}", encoding="utf-8")
    assert main([str(page), "--ranks", "2,3", "--check", "5"]) == 0
    assert [one[:2] for one in asked] == [(2, 5), (3, 5)]
    assert "### 3 ranks" in page.read_text(encoding="utf-8")


def test_a_page_without_marks_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main([str(page)])
    assert "page.md has no" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "nothing"

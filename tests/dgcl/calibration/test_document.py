"""The page about calibration gets its figures from one command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dgcl.calibration import document

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


def test_the_page_gets_tables_of_every_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "run_on_host", lambda topology, ranks, *rest: ranks)
    monkeypatch.setattr(document, "outcome_json", lambda ranks: outcome(ranks, -ranks / 10))
    page = tmp_path / "calibration.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    document.main(page)
    text = page.read_text(encoding="utf-8")
    assert "| 2 | 9.9 | 12.0 | 31 us | 3.4% | **12.3%** | 50% |" in text
    assert "| 8 | 9.9 | 12.0 | 31 us | 3.4% | **12.3%** | 80% |" in text
    assert "### 4 ranks on 2 cores" in text
    assert "| grid 1k | 1 | 2.5 MB | 250 ms | 200 us | -20.0% |" in text
    assert "| memory | 1 | 9.50 | 9.87 |" in text

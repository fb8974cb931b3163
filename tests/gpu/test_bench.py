"""``dgcl bench`` on a GPU: plans beside torch's gather and copies, Gloo, and NCCL where it runs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import dgcl
from tests.gpu.bench_targets import HEAD, bench_row, random_problem
from tests.gpu.programs import TOPOLOGY
from tests.gpu.row_speed import Size

WIDTHS = (128, 602)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [2, 4, 8])
def test_bench(count: int, size: Size, device: str, say: Callable[[str], None], found: Any) -> None:
    from dgcl.bench.on_device.measure import measure_on_device
    from dgcl.bench.records import Case, Settings
    from dgcl.topology import resolve_topology

    num_nodes = 1 << (14 if size.num_bytes < 1 << 30 else 18)
    settings = Settings(
        methods=("direct", "gather", "gloo") if count == 2 else ("direct", "spst", "gather", "gloo"),
        topology=resolve_topology(TOPOLOGY if count == 8 else f"uniform:{count}", count),
        iterations=max(size.repeats, 2),
        warmup=3,
        timeout=60.0,
    )
    cases = [Case(partial(random_problem, count, num_nodes), WIDTHS)]
    answers = dgcl.launch(
        measure_on_device, count, cases, settings, say_notes, device, ranks="processes", timeout=120.0
    )
    say(f"\n{HEAD}")
    missed = []
    for width in WIDTHS:
        lines = {line.method: line for line in answers[0].lines if line.width == width}
        for line in lines.values():
            text, good = bench_row(count, line, lines)
            say(text)
            if not good:
                missed.append(text)
    found({"lines": [dataclasses.asdict(line) for line in answers[0].lines]})
    assert missed == []


def say_notes(record: object) -> None:
    """Print at once why a method is left out; lines are printed at the end."""
    if isinstance(record, str):
        sys.stdout.write(f"- {record}\n")
        sys.stdout.flush()


def test_methods_that_are_left_out_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    for record in ("nccl is left out: no", object(), []):
        say_notes(record)
    assert capsys.readouterr().out == "- nccl is left out: no\n"


def test_the_problem_has_rows_to_send() -> None:
    assert random_problem(2, 64).deliveries > 0

"""``dgcl bench`` on a GPU: every element of plans between processes is right, with their share of plain copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import dgcl
from dgcl.bench.problems import Problem
from dgcl.graph import as_graph
from tests.gpu.programs import TOPOLOGY, make_edges
from tests.gpu.row_speed import Size

WIDTHS = (128, 602)


def random_problem(num_ranks: int, num_nodes: int) -> Problem:
    """The random graph of the other checks."""
    edges, part = make_edges(num_ranks, num_nodes)
    return Problem("random", as_graph(edges, num_nodes), part.astype(np.int32), num_ranks)


def ignored(record: object) -> None:
    """Lines are printed at the end."""


@pytest.mark.gpu
@pytest.mark.parametrize("count", [2, 4, 8])
def test_bench(count: int, size: Size, device: str, say: Callable[[str], None], found: Any) -> None:
    from dgcl.bench.measure import measure
    from dgcl.bench.records import Case, Settings
    from dgcl.bench.report import header, row
    from dgcl.topology import resolve_topology

    num_nodes = 1 << (14 if size.num_bytes < 1 << 30 else 18)
    settings = Settings(
        methods=("direct",) if count == 2 else ("direct", "spst"),
        topology=resolve_topology(TOPOLOGY if count == 8 else f"uniform:{count}", count),
        iterations=max(size.repeats, 2),
        warmup=3,
        timeout=60.0,
        device=device,
    )
    cases = [Case(partial(random_problem, count, num_nodes), WIDTHS)]
    answers = dgcl.launch(measure, count, cases, settings, ignored, ranks="processes", timeout=120.0)
    lines = answers[0].lines
    say("\n".join([header(settings), *(row(line, settings) for line in lines)]))
    found({"lines": [dataclasses.asdict(line) for line in lines]})
    assert [line.forward.wrong + line.backward.wrong for line in lines] == [0] * len(lines)


def test_the_problem_has_rows_to_send() -> None:
    assert random_problem(2, 64).deliveries > 0

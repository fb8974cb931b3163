"""The one spelling of a strategy: what is read, what it is laid out by, and which line of code asks for it."""

from typing import Any

import numpy as np
import pytest

import dgcl
from dgcl.advisor.spelling import read_strategy
from dgcl.grid.grid import Grid
from dgcl.grid.grid_strategy import GridPlacement
from dgcl.placement.placement_strategy import EdgePlacement

HALO = EdgePlacement()
CASES: list[tuple[str, Any, str]] = [
    ("halo", HALO, "dgcl.build_comm_info(graph)"),
    ("tail", EdgePlacement("tail"), 'strategy="tail"'),
    ("cover", EdgePlacement("cover"), 'strategy="cover"'),
    ("cover:machine", EdgePlacement("cover", per_machine=True), 'strategy="cover:machine"'),
    ("grid:2,2,1", GridPlacement(Grid(2, 2, 1)), 'strategy="grid:2,2,1"'),
    ("grid:4,1,1", HALO, 'strategy="grid:4,1,1"'),
    ("grid:2d", GridPlacement(Grid(2, 1, 2)), 'strategy="grid:2d"'),
    ("windows:4", HALO, 'dgcl.build_comm_info(graph, strategy="windows:4")'),
    ("in-place", HALO, "dgcl.nn.InPlaceGCN(widths)"),
    ("offload:16", HALO, "dgcl.Offload(comm, chunks=16)"),
]


@pytest.mark.parametrize("spec, layout, line", CASES, ids=[case[0] for case in CASES])
def test_what_is_written_is_laid_out(spec, layout, line):
    described = read_strategy(spec)
    assert str(described) == spec
    assert described.layout(4) == layout
    assert line in described.line
    assert hash(read_strategy(described)) == hash(described)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("covr", r"strategy must be one of halo, tail, .*\(got 'covr'\); did you mean 'cover'\?"),
        ("cover:rank", r"'cover' is written cover\[:machine\] \(got 'cover:rank'\)"),
        ("grid", r"strategy 'grid' is written grid:R,K,S \(got 'grid'\)"),
        ("grid:2,2", r"grid must be .*got '2,2'"),
        ("windows:0", "a whole number of at least 1"),
        ("replicas:2", r"strategy must be one of halo, tail, .*\(got 'replicas:2'\)"),
    ],
)
def test_what_cannot_be_read_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        read_strategy(wrong)
    with pytest.raises(TypeError, match=r"strategy must be text such as 'cover' .*got 3"):
        read_strategy(3)  # type: ignore[arg-type]


def test_one_strategy_and_the_same_on_every_rank():
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])

    def run():
        with pytest.raises(ValueError, match="4 ranks, and there are 2"):
            dgcl.build_comm_info(edges, "uniform", strategy="grid:2,2,1")
        for one, other, said in (
            ({"strategy": "cover"}, {"strategy": "grid:1,1,2"}, "'cover', rank 1 for strategy='grid:1,1,2'"),
            ({}, {"strategy": "windows:2"}, "0 asks for strategy='halo', rank 1 for strategy='windows:2'"),
        ):
            with pytest.raises(ValueError, match=said):
                dgcl.build_comm_info(edges, "uniform", **(other if _rank() else one))

    dgcl.launch(run, 2)


def _rank():
    from dgcl.ranks.context import context

    return int(context.require_control().rank)

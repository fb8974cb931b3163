"""The oracle itself: two independent searches agree, and it knows the answers worked out by hand."""

import pytest

from dgcl.planner import Relation
from dgcl.topology import Connection, Device, Topology
from tests.planner.exhaustive import (
    fractional_optimum,
    integer_optimum,
    milp_optimum,
    stage_trees,
)
from tests.planner.machines import known_answer_topology, small_topology
from tests.samples import named

GB = 10**9  # one vertex per GB/s and second


def test_the_known_answer():
    topology = known_answer_topology()
    relation = Relation.from_classes(3, [(0, {2}, 8)])
    assert integer_optimum(relation, topology, GB) == 3.0
    assert integer_optimum(relation, topology, GB, strict=True) == 3.5
    assert integer_optimum(relation, topology, GB, num_stages=1) == 8.0
    assert fractional_optimum(relation, topology, GB) == pytest.approx(8 / 3)


def test_all_trees_of_three_devices():
    """From 0 to {1, 2} in two stages: two stars of 4 labellings in all, and two chains of one each."""
    topology = small_topology(3, [(0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0)])
    assert len(stage_trees(topology, 0, frozenset({1, 2}), 2)) == 6
    assert len(stage_trees(topology, 0, frozenset({1, 2}), 2, strict=True)) == 3
    assert set(stage_trees(topology, 0, frozenset({2}), 2)) == {
        ((0, 2, 0),),
        ((0, 2, 1),),
        ((0, 1, 0), (1, 2, 1)),
    }


@named(
    "num_devices, wires, duplex, classes",
    {
        "known answer": (3, [(0, 1, 4.0), (1, 2, 4.0), (0, 2, 1.0)], "full", [(0, {2}, 8)]),
        "half-duplex line": (3, [(0, 1, 4.0), (1, 2, 3.0)], "half", [(0, {2}, 3), (2, {0}, 2)]),
        "square": (
            4,
            [(0, 1, 2.0), (1, 2, 2.0), (2, 3, 2.0), (3, 0, 1.0)],
            "full",
            [(0, {2}, 3), (1, {3}, 2)],
        ),
        "4 devices": (
            4,
            [(0, 1, 3.0), (0, 2, 1.0), (0, 3, 1.0), (1, 2, 2.0)],
            "full",
            [(0, {1, 2}, 3), (3, {1}, 1)],
        ),
    },
)
def test_search_and_integer_program_agree(
    num_devices: int,
    wires: list[tuple[int, int, float]],
    duplex: str,
    classes: list[tuple[int, set[int], int]],
):
    topology = small_topology(num_devices, wires, duplex)
    relation = Relation.from_classes(num_devices, classes)
    best = integer_optimum(relation, topology, GB)
    assert milp_optimum(relation, topology, GB) == pytest.approx(best)
    assert fractional_optimum(relation, topology, GB) <= best * (1 + 1e-9)
    assert integer_optimum(relation, topology, GB, at_most=best) == float("inf")


def test_latency_is_paid_once_per_stage():
    """Two vertices 0 -> 2 over a line: two stages of 1 s latency each, whatever the split."""
    topology = Topology(
        "line",
        (Device("a"), Device("b"), Device("c")),
        (
            Connection("ab", "wire", "a", "b", 1.0, latency=1.0),
            Connection("bc", "wire", "b", "c", 1.0, latency=1.0),
        ),
    )
    relation = Relation.from_classes(3, [(0, {2}, 2)])
    assert integer_optimum(relation, topology, GB) == 6.0
    assert milp_optimum(relation, topology, GB) == pytest.approx(6.0)

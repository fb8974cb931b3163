"""The oracle itself: it knows the answers worked out by hand."""

import pytest

from dgcl.planner import Relation
from tests.support.optimal_plans import optimum, stage_trees
from tests.support.small_machines import known_answer_topology, line, small_topology, with_latency

GB = 10**9  # one vertex per GB/s and second


def test_the_known_answer():
    topology = known_answer_topology()
    relation = Relation.from_classes(3, [(0, {2}, 8)])
    assert optimum(relation, topology, GB) == pytest.approx(3.0)
    assert optimum(relation, topology, GB, num_stages=1) == pytest.approx(8.0)
    assert optimum(relation, topology, GB, whole=False) == pytest.approx(8 / 3)


def test_all_trees_of_three_devices():
    """From 0 to {1, 2} in two stages: two stars of 4 labellings in all, and two chains of one each."""
    topology = small_topology(3, [(0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0)])
    assert len(stage_trees(topology, 0, frozenset({1, 2}), 2)) == 6
    assert set(stage_trees(topology, 0, frozenset({2}), 2)) == {
        ((0, 2, 0),),
        ((0, 2, 1),),
        ((0, 1, 0), (1, 2, 1)),
    }


def test_latency_is_paid_once_per_stage():
    """Two vertices 0 -> 2 over a line: two stages of 1 s latency each, whatever the split."""
    topology = with_latency(line(3), 1.0)
    relation = Relation.from_classes(3, [(0, {2}, 2)])
    assert optimum(relation, topology, GB) == pytest.approx(6.0)

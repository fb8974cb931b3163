"""Placement of parts on devices, against all placements."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.placement import place, placed_relation
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import Topology, preset
from tests.planner.machines import line, small_topology, switched
from tests.planner.oracle import classes_of
from tests.samples import named

GB = 10**9


def best_by_planning(relation: Relation, topology: Topology) -> float:
    orders = itertools.permutations(range(relation.world_size))
    return min(
        make_plan(
            placed_relation(relation, np.array(o)), topology, "auto", PlanOptions(row_bytes=GB)
        ).predicted_seconds
        for o in orders
    )


@named(
    "topology, classes",
    {
        "line": (line(3), [(0, {2}, 5), (2, {0}, 4), (1, {0}, 1)]),
        "two pairs": (
            small_topology(4, [(0, 1, 8.0), (2, 3, 8.0), (1, 2, 1.0)]),
            [(0, {2}, 9), (2, {0}, 9), (1, {3}, 9), (3, {1}, 9), (0, {1}, 1)],
        ),
    },
)
def test_the_best_placement_is_found(topology: Topology, classes: list[tuple[int, set[int], int]]):
    relation = Relation.from_classes(topology.num_devices, classes)
    found = place(relation, topology, PlanOptions(row_bytes=GB))
    plan = make_plan(found.relation, topology, "auto", PlanOptions(row_bytes=GB))
    assert plan.predicted_seconds == pytest.approx(best_by_planning(relation, topology), rel=1e-2)
    assert found.seconds_after == plan.predicted_seconds < found.seconds_before


@given(st.permutations(range(5)), st.integers(0, 2**32 - 1))
def test_a_placed_relation_is_the_same_with_other_names(order: list[int], seed: int):
    rng = np.random.default_rng(seed)
    classes = []
    for _ in range(6):
        source, *dests = rng.permutation(5)[: rng.integers(2, 6)].tolist()
        classes.append((source, set(dests), int(rng.integers(1, 9))))
    relation = Relation.from_classes(5, classes)
    placed = placed_relation(relation, np.array(order))
    expected = {(order[s], frozenset(order[d] for d in dests)): n for s, dests, n in classes_of(relation)}
    assert {(s, frozenset(dests)): n for s, dests, n in classes_of(placed)} == expected


def test_among_equal_devices_the_present_placement_stays():
    relation = synthetic_relation("web-google", 6, scale=0.005)
    found = place(relation, switched(6))
    assert found.device_of_part.tolist() == list(range(6))
    assert found.relation is relation


@pytest.mark.slow
@settings(max_examples=3)
@given(st.permutations(range(16)))
def test_parts_that_belong_together_find_their_machine_again(order: list[int]):
    """Neighbouring parts on a two-machine topology, dealt out at random: swaps must undo most of the harm."""
    relation = synthetic_relation("com-orkut", 16, scale=0.002)
    topology = preset("dgx1x2")
    mixed = placed_relation(relation, np.array(order))
    found = place(mixed, topology)
    assert found.seconds_after <= found.seconds_before
    assert sorted(found.device_of_part.tolist()) == list(range(16))
    unmoved = place(relation, topology).seconds_after
    assert found.seconds_after <= 1.15 * unmoved


def test_a_placement_never_cuts_off_what_was_reachable():
    one_way = line(4, two_way=False)
    relation = Relation.from_classes(4, [(0, {1, 3}, 5), (1, {2}, 900)])
    found = place(relation, one_way)
    make_plan(found.relation, one_way)

"""Bounds by prices against the true optimum, and as tight as linear programming allows."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import Bound, PlanOptions, Relation
from dgcl.planner.column_generation.master.price_bound import (
    bound_over_stages,
    excess_factor,
    price_bound,
)
from dgcl.planner.column_generation.search.incumbent import Effort, Incumbent
from dgcl.planner.column_generation.search.stage_search import StageSearch
from dgcl.planner.methods import make_plan
from dgcl.topology import Topology
from tests.support.optimal_plans import optimum
from tests.support.random_machines import instances
from tests.support.samples import examples, named
from tests.support.small_machines import line, small_topology, with_latency

GB = 10**9


def free_bound(relation: Relation, topology: Topology, node_of: list[int] | None = None) -> float:
    nodes = np.arange(relation.world_size) if node_of is None else np.array(node_of)
    return price_bound(
        relation,
        topology.arrays(),
        nodes,
        factor=np.ones(topology.arrays().num_links),
        aim=1.0,
        tolerance=1e-6,
    ).value


@named(
    "topology, classes, expected",
    {
        "every connection of a line carries all": (line(3), [(0, {2}, 5)], 5.0),
        "half duplex": (small_topology(2, [(0, 1, 2.0)], "half"), [(0, {1}, 3), (1, {0}, 1)], 2.0),
        "two wires of a star": (small_topology(3, [(0, 1, 2.0), (0, 2, 2.0)]), [(0, {1, 2}, 4)], 2.0),
        "a broadcast, half round each way": (
            small_topology(3, [(0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0)]),
            [(0, {1, 2}, 4)],
            2.0,
        ),
    },
)
def test_bounds_worked_out_by_hand(topology: Topology, classes: list, expected: float):
    relation = Relation.from_classes(topology.num_devices, classes)
    assert free_bound(relation, topology) == pytest.approx(expected, rel=1e-5)


@examples(20, 40)
@given(
    case=instances(min_devices=2, max_devices=4, latency=False, max_total=30),
    nodes=st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_no_contraction_is_above_the_fractional_optimum(case: tuple[Relation, Topology], nodes: list[int]):
    relation, topology = case
    best = optimum(relation, topology, GB, whole=False)
    names = sorted(set(nodes[: relation.world_size]))
    node_of = [names.index(n) for n in nodes[: relation.world_size]]
    assert free_bound(relation, topology, node_of) <= best * (1 + 1e-7)
    assert free_bound(relation, topology) <= best * (1 + 1e-7)


@examples(2, 40)
@given(
    case=instances(min_devices=2, max_devices=4, max_classes=4, max_total=24),
    row_bytes=st.sampled_from([1, 1000, 10**6]),
    gap=st.sampled_from([0.001, 0.3]),
)
def test_the_optimum_is_between_bound_and_plan(case: tuple[Relation, Topology], row_bytes: int, gap: float):
    relation, topology = case
    best = optimum(relation, topology, row_bytes)
    for method in ("auto", "optimal"):
        plan = make_plan(relation, topology, method, PlanOptions(row_bytes=row_bytes, gap=gap))
        assert plan.lower_bound_seconds <= best * (1 + 1e-6)
        assert best * (1 - 1e-6) <= plan.predicted_seconds <= best * (1 + gap + 1e-6)


@examples(10, 30)
@given(case=instances(min_devices=3, max_devices=4, max_classes=4, latency=False, max_total=24))
def test_the_bound_is_the_linear_program_of_all_trees(case: tuple[Relation, Topology]):
    relation, topology = case
    if relation.num_classes == 0:
        return
    effort = Effort(1e-6, steps=100, progress=0.0)
    found = Incumbent(relation, topology, PlanOptions(row_bytes=GB), effort)
    if relation.world_size > 2 and not found.is_good():
        StageSearch(found).run()
    trees = found.trees()
    best = optimum(relation, topology, GB, whole=False)
    assert isinstance(trees.bound, Bound)
    whole_row = trees.bound.where.startswith("the way of one row")  # a row that is not split
    limit = optimum(relation, topology, GB) if whole_row else best
    assert trees.bound.seconds <= limit * (1 + 1e-7)
    plan = make_plan(relation, topology, "optimal", PlanOptions(row_bytes=GB, gap=1e-5))
    if plan.gap > 1e-3:  # otherwise the search may stop early
        assert plan.lower_bound_seconds >= best * (1 - 2e-3)


def test_latencies_are_counted_for_every_stage_that_must_be():
    """A line of three with 1 s of latency per link: two rows need two stages of 3 s each."""
    topology = with_latency(line(3), 1.0)
    relation = Relation.from_classes(3, [(0, {2}, 2)])
    plan = make_plan(relation, topology, "auto", PlanOptions(row_bytes=GB))
    assert plan.predicted_seconds == 6.0
    assert plan.lower_bound_seconds == pytest.approx(6.0, rel=1e-3)


def test_factors_follow_from_what_a_stage_has_left():
    topology = with_latency(line(3), 1.0, 3.0)
    # A stage may take what a plan of 6 s leaves of two stages beyond 1 s each: 4 s, half of which the far link costs.
    assert sorted(excess_factor(topology, 6.0)) == [1.0, 1.0, 2.0, 2.0]
    assert sorted(excess_factor(topology, np.inf)) == [1.0] * 4
    relation = Relation.from_classes(3, [(0, {2}, 1)])
    free = price_bound(relation, topology.arrays(), np.arange(3), factor=np.ones(4), aim=1.0)
    bound = bound_over_stages(free, {2: 2.0}, None, np.inf, topology, GB)
    assert bound.seconds == pytest.approx(2 * 1.0 + 2.0)
    assert (
        bound_over_stages(free, {2: 2.0}, 3.5, np.inf, topology, GB).seconds == 3.5
    )  # peer-to-peer may be better
    assert bound_over_stages(free, {2: 2.0}, None, 3.0, topology, GB).seconds == 3.0  # there is a plan of 3 s


def test_a_deadline_cuts_the_rounds_short_and_changes_nothing_else():
    relation = Relation.from_classes(4, [(0, {1, 2, 3}, 9), (1, {0, 3}, 5), (2, {0}, 7)])
    arrays = small_topology(4, [(0, 1, 2.0), (1, 2, 1.0), (2, 3, 3.0), (3, 0, 1.0)]).arrays()

    def bound(deadline: float) -> float:
        factor = np.ones(arrays.num_links)
        return price_bound(relation, arrays, np.arange(4), factor=factor, aim=10.0, deadline=deadline).value

    assert 0.0 < bound(0.0) <= bound(np.inf)
    assert bound(time.process_time() + 600.0) == bound(np.inf)

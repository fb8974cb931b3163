"""Plans for devices in groups: bundles, the aggregated problem, and coordinate descent over all bundles."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.column_generation.improvement.makespan import load
from dgcl.planner.column_generation.master.aggregated import direction_kinds, solve_aggregated
from dgcl.planner.column_generation.master.fractional import Problem
from dgcl.planner.column_generation.pricing.device_groups import least_stages, plan_states
from dgcl.planner.column_generation.pricing.flows import Routes
from dgcl.planner.column_generation.rounding.bundles import assign_vertices, make_bundles
from dgcl.planner.column_generation.search.grouped import CoordinateDescent, _divide_rows
from dgcl.planner.cost import GIGA, predicted_seconds
from dgcl.planner.methods import make_plan
from dgcl.planner.synthetic import synthetic_relation
from dgcl.planner.verify.delivery import verify_trees
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.latencies import without_latencies
from tests.support.samples import matrix, named, slow

ROW_BYTES = 512
UNIT = ROW_BYTES / GIGA


def problem_of(relation: Relation, topology: Topology) -> Problem:
    arrays = topology.arrays()
    ones, hop = np.ones(arrays.num_links), np.full(arrays.num_links, 1e-9)
    routes = Routes(arrays.link_ptr, arrays.link_directions, 1.0 / arrays.bandwidth, ones, hop)
    return Problem(plan_states(relation, topology), routes, 1.0 / UNIT)


@pytest.fixture(scope="module")
def drawn() -> Relation:
    return synthetic_relation("reddit", 32, scale=0.02)


@named(
    "machine, kinds",
    {"ports in and out, NICs in four places": ("dgx_a100x4", 6), "ports in and out": ("hgx_h100", 2)},
)
def test_directions_of_a_kind_are_as_fast_and_in_the_same_places(machine: str, kinds: int):
    arrays = resolve_topology(machine).arrays()
    kind = direction_kinds(arrays)
    assert kind.shape == arrays.bandwidth.shape
    assert int(kind.max()) + 1 == kinds
    for k in range(kinds):
        assert np.unique(arrays.bandwidth[kind == k]).size == 1


def test_bundles_hold_every_row_once_for_each_group(drawn: Relation):
    space = plan_states(drawn, resolve_topology("dgx_a100x4"))
    bundles = make_bundles(space)
    wanted: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for c in range(drawn.num_classes):
        for group in space.groups:
            part = tuple(sorted(set(drawn.dest_ranks(c)) & set(group.tolist())))
            if part:
                wanted[int(drawn.source[c]), part] += int(drawn.count[c])
    found = {
        (int(s), tuple(d for d in range(32) if int(mask[0]) >> d & 1)): int(n)
        for s, mask, n in zip(bundles.source, bundles.dests, bundles.count, strict=True)
    }
    assert found == wanted
    assert (bundles.number[bundles.source, bundles.set_] == np.arange(len(found))).all()


@pytest.mark.parametrize("machine", [slow(name) for name in ("dgx_a100x4", "dgx1x4")])
def test_passes_only_gain_and_classes_get_what_their_bundles_got(drawn: Relation, machine: str):
    topology = resolve_topology(machine)
    problem, arrays = problem_of(drawn, topology), topology.arrays()
    bundles, least = make_bundles(problem.space), least_stages(problem.space)
    aggregated = solve_aggregated(problem, direction_kinds(arrays), 3, aim=1.0)
    assert least <= 3
    assert aggregated is not None
    assert aggregated.share.sum() == pytest.approx(1.0)
    descent = CoordinateDescent(problem, bundles, aggregated)
    reached = [descent.time]
    for _ in range(3):
        descent.run_pass(0.0)
        reached.append(descent.time)
    assert reached == sorted(reached, reverse=True)
    assert reached[-1] < reached[0]
    loaded = descent._smooth.rows.copy()
    load(descent._smooth, descent._forest)
    assert (descent._smooth.rows == loaded).all()
    trees = assign_vertices(descent.best, bundles, problem.space)
    verify_trees(drawn, trees, topology)
    # Trees to several groups that share an edge are joined, which can only take load away.
    assert predicted_seconds(trees, arrays, ROW_BYTES) <= descent.time * UNIT * (1.0 + 1e-9)


def test_a_pass_that_gains_nothing_leaves_the_best_as_it_was(monkeypatch):
    """Prices that hardly differ send rows where that does not help."""
    monkeypatch.setattr("dgcl.planner.column_generation.search.grouped.SHARPNESS", (0.1,))
    topology = resolve_topology("dgx1x4")
    gains = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        classes = [
            (s, {int(d) for d in rng.choice(32, 5, replace=False)} - {s}, int(rng.integers(1, 40)))
            for s in rng.integers(0, 32, 60).tolist()
        ]
        relation = Relation.from_classes(32, classes)
        problem, arrays = problem_of(relation, topology), topology.arrays()
        bundles = make_bundles(problem.space)
        aggregated = solve_aggregated(problem, direction_kinds(arrays), 3, aim=1.0)
        assert aggregated is not None
        descent = CoordinateDescent(problem, bundles, aggregated)
        before = descent.time
        descent.run_pass(0.0)
        gains.append(before - descent.time)
        trees = assign_vertices(descent.best, bundles, problem.space)
        verify_trees(relation, trees, topology)
        assert predicted_seconds(trees, arrays, ROW_BYTES) <= descent.time * UNIT * (1.0 + 1e-9)
    assert min(gains) == 0.0


def test_too_few_stages_have_no_aggregated_solution():
    """The last device of a chain of clusters is out of reach in one stage without a direct link."""
    topology = resolve_topology("dgx1x4")
    problem = problem_of(Relation.from_classes(32, [(0, {7, 31}, 5)]), topology)
    least = least_stages(problem.space)
    assert solve_aggregated(problem, direction_kinds(topology.arrays()), least, 1.0) is not None
    if least > 1:
        assert solve_aggregated(problem, direction_kinds(topology.arrays()), least - 1, 1.0) is None


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=50),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_amounts_add_up_and_keep_the_shares(count: list[int], parts: list[int]):
    rows, share = np.array(count), np.array(parts) / sum(parts)
    amounts = _divide_rows(rows, share)
    assert (amounts >= 0).all()
    assert (amounts.sum(axis=0) == rows).all()
    large = rows >= 64
    assert (np.abs(amounts[:, large] - share[:, None] * rows[large]) <= 1.0 + 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine",
    ["hgx_h100x4", *(matrix(name) for name in ("dgx1x4", "dgx_a100x4"))],
)
def test_32_devices_are_planned_within_three_percent_and_equal_each_time(machine: str):
    relation, topology = (
        synthetic_relation("reddit", 32, scale=0.3),
        without_latencies(resolve_topology(machine)),
    )
    plan = make_plan(relation, topology, options=PlanOptions())
    assert plan.gap <= 0.03
    assert make_plan(relation, topology, options=PlanOptions()).fingerprint == plan.fingerprint


@pytest.mark.slow
def test_groups_that_send_each_other_nothing():
    """The bound between groups is 0 then; it was once divided by."""
    generator = np.random.default_rng(1)
    classes = []
    for source in np.repeat(np.arange(32), 8).tolist():
        group = np.arange(8) + source // 8 * 8
        dests = set(generator.choice(group, generator.integers(1, 5), replace=False).tolist()) - {source}
        classes += [(source, dests, int(generator.integers(1, 3000)))] if dests else []
    whole = resolve_topology("dgx1x4")
    machine = {device.name: device.machine for device in whole.devices}
    links = tuple(link for link in whole.links if machine[link.src] == machine[link.dst])
    group_bound = Topology("apart", whole.devices, whole.connections, links)
    plan = make_plan(Relation.from_classes(32, classes), group_bound, "auto", PlanOptions(time_limit=5.0))
    assert (plan.trees.edge_src // 8 == plan.trees.edge_dst // 8).all()
    assert 0 < plan.lower_bound_seconds <= plan.predicted_seconds
    assert plan.direct_seconds is not None
    assert plan.predicted_seconds <= plan.direct_seconds

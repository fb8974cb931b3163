"""From fractional plans to trees: nothing is lost, nothing is invented, little is added."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import Relation
from dgcl.planner.column_generation.improvement.tree_exchange import improve
from dgcl.planner.column_generation.master.fractional import Problem, StageProgram
from dgcl.planner.column_generation.pricing.flows import Routes
from dgcl.planner.column_generation.pricing.states import build_states
from dgcl.planner.column_generation.rounding.bundles import assign_vertices, make_bundles, whole_forest
from dgcl.planner.column_generation.rounding.forest import trees_from_forest
from dgcl.planner.cost import link_rows, predicted_seconds
from dgcl.planner.trees import Trees
from dgcl.planner.verify.delivery import verify_trees
from dgcl.topology import Topology
from tests.support.planner_oracle import delivers
from tests.support.random_machines import instances
from tests.support.samples import examples
from tests.support.small_machines import small_topology


def solved(
    relation: Relation, topology: Topology, num_stages: int, grouped: bool = False
) -> StageProgram | None:
    """A program with its solution; None if some row cannot arrive."""
    arrays, world = topology.arrays(), relation.world_size
    groups = [np.arange(0, world, 2), np.arange(1, world, 2)] if grouped else [np.arange(world)]
    ones = np.ones(arrays.num_links)
    routes = Routes(arrays.link_ptr, arrays.link_directions, 1 / arrays.bandwidth, ones, 1e-6 * ones)
    program = StageProgram(Problem(build_states(relation, arrays, groups), routes, 1e9 / 512), num_stages)
    if relation.num_classes == 0 or not program.is_feasible():
        return None
    program.sample_columns(40, 10.0, 12)
    program.solve(0.0, 10.0, 1e-4, steps=5)
    return program


def whole(program: StageProgram) -> tuple[Trees, Trees]:
    """Trees of bundles, and of classes."""
    space = program.problem.space
    bundles = make_bundles(space)
    forest = whole_forest(program.answers(), bundles, program.problem)
    trees = trees_from_forest(forest, space.arrays)
    rows = np.bincount(trees.tree_class, weights=trees.tree_count, minlength=bundles.count.shape[0])
    assert rows.tolist() == bundles.count.tolist()
    return trees, assign_vertices(forest, bundles, space)


@examples(20, 50)
@given(case=instances(min_devices=2, max_devices=6, max_classes=6, max_count=300), grouped=st.booleans())
def test_every_vertex_gets_a_tree_and_loads_do_not_grow(case: tuple[Relation, Topology], grouped: bool):
    relation, topology = case
    program = solved(relation, topology, max(1, relation.world_size - 1), grouped)
    if program is None:
        return
    of_bundles, trees = whole(program)
    verify_trees(relation, trees, topology)
    assert delivers(relation, trees, topology)
    used, most = (link_rows(each, topology.arrays()) for each in (trees, of_bundles))
    assert (used <= most[: used.shape[0]]).all()  # second deliveries and useless relays are dropped


def test_rounding_keeps_stages_within_a_row_or_two_of_their_time():
    """Many classes of one vertex, of which a solution sends fractions: remainders must not all take one way."""
    topology = small_topology(4, [(a, b, 1.0 + a + 2 * b) for a in range(4) for b in range(a)])
    classes = [
        (s, {d for d in range(4) if m >> d & 1}, 1) for s in range(4) for m in range(1, 16) if not m >> s & 1
    ]
    relation = Relation.from_classes(4, classes)
    program = solved(relation, topology, 3)
    assert program is not None
    assert program.solution is not None
    trees, _ = whole(program)
    assert predicted_seconds(trees, topology.arrays(), 10**9) <= program.solution.time + 3 * 2.0  # GB/s >= 1


@examples(10, 30)
@given(case=instances(min_devices=3, max_devices=5, max_classes=6, max_count=40))
def test_polishing_keeps_delivery_and_never_slows_a_plan_down(case: tuple[Relation, Topology]):
    relation, topology = case
    arrays, most = topology.arrays(), relation.world_size - 1
    program = solved(relation, topology, most)
    if program is None:
        return
    _, trees = whole(program)
    better = improve(trees, program.problem, most, enough=0.0, thorough=True)
    verify_trees(relation, better, topology)
    assert predicted_seconds(better, arrays, 512) <= predicted_seconds(trees, arrays, 512) * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_class_is_cut_only_where_the_solution_says_so(count: int):
    """Two equal ways of two hops each: a class goes half over each, in two trees."""
    topology = small_topology(4, [(0, 1, 1.0), (0, 2, 1.0), (1, 3, 1.0), (2, 3, 1.0)])
    relation = Relation.from_classes(4, [(0, {3}, count)])
    program = solved(relation, topology, 2)
    assert program is not None
    _, trees = whole(program)
    assert trees.num_trees == min(2, count)
    assert abs(int(trees.tree_count.max()) - count / 2) <= 1

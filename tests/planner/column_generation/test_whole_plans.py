"""From fractional flows to trees: nothing is lost, nothing is invented, little is added."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import Relation
from dgcl.planner.column_generation.improvement.exchange import improve
from dgcl.planner.column_generation.master.fractional import Problem, StageProgram, make_problem
from dgcl.planner.column_generation.pricing.flows import Routes
from dgcl.planner.column_generation.pricing.states import build_states
from dgcl.planner.column_generation.rounding.assembly import assemble
from dgcl.planner.column_generation.rounding.decomposition import decompose
from dgcl.planner.column_generation.rounding.whole_flows import WholeFlows, whole_flows
from dgcl.planner.cost import link_rows, predicted_seconds
from dgcl.planner.trees import Trees
from dgcl.planner.verify.delivery import verify_trees
from dgcl.topology import Topology
from tests.planner.oracle import delivers
from tests.planner.strategies import instances
from tests.samples import examples


def problem_of(relation: Relation, topology: Topology, groups: list[np.ndarray] | None = None) -> Problem:
    arrays = topology.arrays()
    space = build_states(relation, arrays, groups or [np.arange(relation.world_size)])
    ones = np.ones(arrays.num_links)
    routes = Routes(arrays.link_ptr, arrays.link_directions, 1 / arrays.bandwidth, ones, 1e-6 * ones)
    return make_problem(space, routes)


def rounded(problem: Problem, topology: Topology, num_stages: int) -> tuple[StageProgram, WholeFlows]:
    program = StageProgram(problem, num_stages)
    program.sample_columns(40, 10.0, 12)
    program.solve_master_program()
    space = problem.space
    flows = program.result().flows
    return program, whole_flows(space.family, space.moves, space.rows, flows, topology.arrays().num_links)


def trees_of(
    problem: Problem, relation: Relation, topology: Topology, program: StageProgram, whole: WholeFlows
) -> Trees:
    space, flows = problem.space, program.result().flows
    interval_hops = decompose(
        space.family, space.moves, flows, whole, space.items.ptr, space.item_set, relation.source, relation.count,
        topology.arrays().num_links,
    )  # fmt: skip
    return assemble(interval_hops, relation, topology.arrays())


@examples(20, 50)
@given(
    case=instances(min_devices=2, max_devices=6, max_classes=6, max_count=300),
    grouped=st.booleans(),
)
def test_every_vertex_gets_a_tree_and_loads_do_not_grow(
    case: tuple[Relation, Topology], grouped: bool
) -> None:
    relation, topology = case
    if relation.num_classes == 0:
        return
    world = relation.world_size
    groups = [np.arange(0, world, 2), np.arange(1, world, 2)] if grouped else None
    problem = problem_of(relation, topology, groups)
    program = StageProgram(problem, max(1, world - 1))
    if not program.is_feasible():
        return
    program, whole = rounded(problem, topology, max(1, world - 1))
    space = problem.space
    for k, v in np.ndindex(*whole.wait.shape[:2]):
        assert (whole.wait[k, v] >= 0).all()
    links = np.zeros((whole.wait.shape[0], topology.arrays().num_links))
    flows = program.result().flows
    for at in range(world * len(space.groups)):
        g = at % len(space.groups)
        sets = int(space.family.set_ptr[g + 1] - space.family.set_ptr[g])
        moves = space.moves.link[space.moves.ptr[at] : space.moves.ptr[at + 1]]
        if moves.shape[0] == 0:
            continue
        base = int(flows.move_base[at])
        part = whole.move[:, base : base + sets * len(moves)].reshape(-1, sets, len(moves))
        np.add.at(links, (slice(None), moves), part.sum(axis=1))
    trees = trees_of(problem, relation, topology, program, whole)
    verify_trees(relation, trees, topology)
    assert delivers(relation, trees, topology)
    used = link_rows(trees, topology.arrays())
    assert (used <= links[: used.shape[0]] + 1e-9).all()  # second deliveries and useless relays are dropped


def test_rounding_keeps_links_within_a_row_or_two_of_their_share() -> None:
    """Many classes of one vertex, of which a solution sends fractions: remainders must not all take one option."""
    wires = {
        "schema": "dgcl-topology/1",
        "name": "square",
        "devices": [{"name": f"d{r}"} for r in range(4)],
        "connections": [
            {"name": f"w{a}{b}", "kind": "w", "a": f"d{a}", "b": f"d{b}", "bandwidth": 1.0 + a + 2 * b}
            for a in range(4)
            for b in range(a)
        ],
    }
    topology = Topology.from_json(wires)
    classes = [
        (s, {d for d in range(4) if m >> d & 1}, 1) for s in range(4) for m in range(1, 16) if not m >> s & 1
    ]
    relation = Relation.from_classes(4, classes)
    problem = problem_of(relation, topology)
    program = StageProgram(problem, 3)
    program.sample_columns(200, 10.0, 24)
    program.solve(0.0, 10.0, 1e-4, hopeless=np.inf, steps=20, progress=0.0, deadline=np.inf)
    space, fractional = problem.space, program.result()
    whole = whole_flows(space.family, space.moves, space.rows, fractional.flows, topology.arrays().num_links)
    moves = whole.move.sum() - fractional.flows.move.sum()
    assert abs(moves) <= 6
    assert (np.abs(whole.wait.sum(axis=(1, 2)) - fractional.flows.wait.sum(axis=(1, 2))) <= 6).all()


@examples(10, 30)
@given(case=instances(min_devices=3, max_devices=5, max_classes=6, max_count=40))
def test_polishing_keeps_delivery_and_never_slows_a_plan_down(case: tuple[Relation, Topology]) -> None:
    relation, topology = case
    if relation.num_classes == 0:
        return
    problem = problem_of(relation, topology)
    program, whole = rounded(problem, topology, relation.world_size - 1)
    trees = trees_of(problem, relation, topology, program, whole)
    arrays = topology.arrays()
    better = improve(
        trees,
        problem,
        relation,
        arrays,
        relation.world_size - 1,
        enough=0.0,
        latency_unit=1e9 / 512,
        thorough=True,
    )
    verify_trees(relation, better, topology)
    assert predicted_seconds(better, arrays, 512) <= predicted_seconds(trees, arrays, 512) * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_class_is_cut_only_where_the_flows_say_so(count: int) -> None:
    """Two equal ways of two hops each: a class goes half over each, in two trees."""
    topology = Topology.from_json(
        {
            "schema": "dgcl-topology/1",
            "name": "diamond",
            "devices": [{"name": f"d{r}"} for r in range(4)],
            "connections": [
                {"name": f"w{a}{b}", "kind": "w", "a": f"d{a}", "b": f"d{b}", "bandwidth": 1.0}
                for a, b in ((0, 1), (0, 2), (1, 3), (2, 3))
            ],
        }
    )
    relation = Relation.from_classes(4, [(0, {3}, count)])
    problem = problem_of(relation, topology)
    program = StageProgram(problem, 2)
    program.sample_columns(200, float(count), 24)
    program.solve_master_program()
    space = problem.space
    whole = whole_flows(
        space.family, space.moves, space.rows, program.result().flows, topology.arrays().num_links
    )
    trees = trees_of(problem, relation, topology, program, whole)
    assert trees.num_trees == min(2, count)
    assert abs(int(trees.tree_count.max()) - count / 2) <= 1

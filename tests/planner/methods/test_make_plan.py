"""Plans of every method, judged by the literal oracle."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import PlanError, PlanOptions, Relation, Trees
from dgcl.planner.methods import METHODS, make_plan
from dgcl.planner.verify.check_plan import verify_plan
from dgcl.topology import Connection, Device, Link, Topology
from tests.support.make_plan import has_the_links
from tests.support.planner_oracle import delivers, literal_cost, tree_edges
from tests.support.random_machines import instances
from tests.support.samples import examples, sampled
from tests.support.small_machines import known_answer_topology, line, switched

GB = 10**9
ARRAYS = ("tree_class", "tree_count", "edge_ptr", "edge_src", "edge_dst", "edge_stage")


EVERY_METHOD = pytest.mark.parametrize(
    "method", sampled(METHODS, keep=lambda n: list(METHODS)[n] != "optimal")
)


@EVERY_METHOD
@examples(10, 30)
@given(case=instances(), row_bytes=st.sampled_from([1, 512, 4096]))
def test_every_plan_delivers_at_the_stated_cost(method: str, case: tuple[Relation, Topology], row_bytes: int):
    relation, topology = case
    if not has_the_links(method, relation, topology):
        with pytest.raises(ValueError, match="no such link"):
            make_plan(relation, topology, method)
        return
    plan = make_plan(relation, topology, method, PlanOptions(row_bytes=row_bytes))
    verify_plan(plan)
    assert delivers(relation, plan.trees, topology)
    assert plan.predicted_seconds == pytest.approx(float(sum(literal_cost(plan))), rel=1e-12)
    assert 0 <= plan.lower_bound_seconds <= plan.predicted_seconds
    assert (plan.lower_bound_seconds > 0) == (relation.num_classes > 0)
    assert plan.direct_seconds is None or method != "auto" or plan.predicted_seconds <= plan.direct_seconds
    assert all(seconds > 0 for seconds in plan.stage_seconds)
    assert np.all(np.diff(plan.trees.tree_class) >= 0)


@EVERY_METHOD
@examples(10, 30)
@given(case=instances())
def test_the_same_input_gives_the_same_plan(method: str, case: tuple[Relation, Topology]):
    relation, topology = case
    if not has_the_links(method, relation, topology):
        return
    one, two = (make_plan(relation, topology, method) for _ in range(2))
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one.trees, name), getattr(two.trees, name))
    assert {**one.meta, "planning_seconds": 0} == {**two.meta, "planning_seconds": 0}


def test_the_known_answer():
    relation = Relation.from_classes(3, [(0, {2}, 8)])
    options = PlanOptions(row_bytes=GB)
    seconds = {m: make_plan(relation, known_answer_topology(), m, options) for m in METHODS}
    assert seconds["direct"].predicted_seconds == 8.0
    assert seconds["spst"].predicted_seconds == 3.5
    assert seconds["auto"].predicted_seconds == seconds["optimal"].predicted_seconds == pytest.approx(3.0)
    assert seconds["direct"].lower_bound_seconds == pytest.approx(1.6)
    assert seconds["direct"].direct_seconds == 8.0


def test_meta_is_json_with_the_names_of_the_format():
    plan = make_plan(
        Relation.from_classes(3, [(0, {2}, 8)]), line(3), options=PlanOptions(seed=7, row_bytes=4)
    )
    meta = json.loads(json.dumps(plan.meta, allow_nan=False))
    assert meta == plan.meta
    named = {
        "schema", "world_size", "topology", "method", "seed", "row_bytes", "stage_seconds",
        "predicted_seconds", "lower_bound_seconds", "gap", "direct_seconds", "planning_seconds", "version",
        "fingerprint",
    }  # fmt: skip
    assert named <= set(meta)
    assert meta["schema"] == "dgcl-plan/1"
    assert (meta["seed"], meta["row_bytes"], meta["world_size"], meta["method"]) == (7, 4, 3, "auto")
    assert meta["direct_seconds"] is None
    assert {(x["src"], x["dst"]) for x in meta["topology"]["links"]} == {
        ("d0", "d1"), ("d1", "d0"), ("d1", "d2"), ("d2", "d1"),
    }  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_nothing_to_send(method: str):
    for world in (1, 2, 70):
        plan = make_plan(Relation.from_classes(world, []), switched(world), method)
        assert (plan.predicted_seconds, plan.lower_bound_seconds, plan.gap) == (0, 0, 0)
        assert (plan.stage_seconds, plan.direct_seconds, plan.trees.num_trees) == ([], 0, 0)


def test_a_line_needs_a_relay_and_exactly_two_stages():
    plan = make_plan(Relation.from_classes(3, [(0, {2}, 4)]), line(3), "spst", PlanOptions(row_bytes=GB))
    assert [tree_edges(plan.trees, t) for t in range(plan.trees.num_trees)] == [[(0, 1, 0), (1, 2, 1)]]
    assert plan.stage_seconds == [4.0, 4.0]


def test_direct_names_the_pair_without_a_link():
    relation = Relation.from_classes(3, [(0, {1}, 4), (2, {0}, 1)])
    with pytest.raises(ValueError, match=r"rank 2 \(d2\) -> rank 0 \(d0\).*no such link.*'auto'"):
        make_plan(relation, line(3), "direct")


@pytest.mark.parametrize("method", METHODS)
def test_a_pair_that_relays_cannot_reach_is_named_with_the_missing_link(method: str):
    relation = Relation.from_classes(4, [(0, {1, 3}, 4), (2, {1}, 1), (3, {1}, 1)])
    with pytest.raises(
        ValueError, match=r"rank 2 \(d2\) -> rank 1 \(d1\).*not even through relays.*d2 -> d1"
    ):
        make_plan(relation, line(4, two_way=False), method)


def test_a_topology_of_another_size_is_refused_with_a_way_out():
    relation = Relation.from_classes(3, [(0, {1}, 4)])
    with pytest.raises(ValueError, match=r"4 device\(s\).*world_size 3.*restrict\(3\)"):
        make_plan(relation, line(4))
    with pytest.raises(ValueError, match="partition into 2 parts"):
        make_plan(relation, line(2))


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"method must be one of auto, .*did you mean 'direct'"):
        make_plan(Relation.from_classes(1, []), switched(1), "dirct")


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"row_bytes": 0}, ValueError, "row_bytes must be an integer from 1"),
        ({"row_bytes": 2.5}, TypeError, "row_bytes must be an integer"),
        ({"seed": -1}, ValueError, "seed must be an integer from 0"),
        ({"time_limit": 0.0}, ValueError, "time_limit .* must be a positive number"),
        ({"gap": float("nan")}, ValueError, "gap must be a number >= 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        PlanOptions(**options)


def test_stages_that_nothing_uses_are_closed_up():
    trees = Trees([1, 0], [1, 2], [0, 1, 3], [1, 0, 1], [2, 1, 2], [4, 1, 6])
    tidy = trees.normalised()
    assert tidy.tree_class.tolist() == [0, 1]
    assert tidy.tree_count.tolist() == [2, 1]
    assert [tree_edges(tidy, t) for t in (0, 1)] == [[(0, 1, 0), (1, 2, 2)], [(1, 2, 1)]]


def test_spst_keeps_one_way_links_one_way():
    links = (Link("d0", "d1", ("w0",)), Link("d1", "d2", ("w1",)), Link("d2", "d0", ("w2",)))
    wires = tuple(Connection(f"w{i}", "w", f"d{i}", f"d{(i + 1) % 3}", 1.0) for i in range(3))
    ring = Topology("ring", tuple(Device(f"d{i}") for i in range(3)), wires, links)
    plan = make_plan(Relation.from_classes(3, [(1, {0}, 3)]), ring, "spst")
    assert tree_edges(plan.trees, 0) == [(1, 2, 0), (2, 0, 1)]


def test_plan_error_is_a_value_error():
    assert issubclass(PlanError, ValueError)

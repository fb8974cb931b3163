import dataclasses

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from dgcl.planner import PlanError, PlanOptions, Relation, Trees
from dgcl.planner.fold import Fold, reverse_plan, reverse_trees, transpose, verify_fold
from dgcl.planner.methods import make_plan
from dgcl.topology import Connection, Device, Link, Topology
from tests.support.optimal_plans import optimum
from tests.support.plan_cost import trees_of
from tests.support.planner_oracle import classes_of, literal_stage_seconds, tree_edges
from tests.support.random_machines import instances
from tests.support.samples import named
from tests.support.small_machines import known_answer_topology, line, switched

ARRAYS = ("tree_class", "tree_count", "edge_ptr", "edge_src", "edge_dst", "edge_stage")


def folds(fold: Fold) -> bool:
    """Whether each owner ends up with every contribution once, by adding symbols up, edge after edge, stage
    after stage.
    """
    classes = classes_of(fold.relation)
    for t in range(fold.trees.num_trees):
        source, dests, _ = classes[int(fold.trees.tree_class[t])]
        held = {r: [r] if r in dests else [] for r in range(fold.relation.world_size)}
        sent: set[int] = set()
        for s, d, _ in sorted(tree_edges(fold.trees, t), key=lambda edge: edge[2]):
            if s in sent or d in sent:
                return False  # a rank sends once, and nothing reaches it after that
            sent.add(s)
            held[d] = held[d] + held[s]
            held[s] = []
        if sorted(held[source]) != sorted(dests):
            return False
    return True


def two_way(case: tuple[Relation, Topology]) -> bool:
    return {(x.src, x.dst) for x in case[1].links} == {(x.dst, x.src) for x in case[1].links}


# Not shrunk: most smaller machines have a link that leads one way only, and looking for others takes minutes.
@settings(phases=[phase for phase in Phase if phase is not Phase.shrink])
@given(instances().filter(two_way))
def test_the_fold_of_every_plan_adds_each_contribution_once(case: tuple[Relation, Topology]):
    plan = make_plan(*case, "spst", PlanOptions(row_bytes=64))
    fold = reverse_plan(plan)
    assert folds(fold)
    rows = [
        (edge, int(fold.trees.tree_count[t]))
        for t in range(fold.trees.num_trees)
        for edge in tree_edges(fold.trees, t)
    ]
    want = [float(x) for x in literal_stage_seconds(plan.topology, rows, 64)]
    assert list(fold.stage_seconds) == pytest.approx(want, rel=1e-12)
    assert fold.trees.rows_moved() == plan.trees.rows_moved()
    assert fold.bound.seconds <= fold.predicted_seconds * (1 + 1e-9)


@named("latency", {"": 0.0, "with latency": 3e-7})
@pytest.mark.parametrize("thin", [0.25, 1.0, 4.0])
def test_no_fold_is_below_its_bound(thin: float, latency: float):
    """Three devices in a ring, one way over wires of 1 GB/s and the other over `thin` ones; by exhaustive search."""
    names = ("a", "b", "c")
    wires, links = [], []
    for r in range(3):
        here, there = names[r], names[(r + 1) % 3]
        wires += [
            Connection(f"out{r}", "w", here, there, 1.0, latency),
            Connection(f"back{r}", "w", here, there, thin),
        ]
        links += [Link(here, there, (f"out{r}",)), Link(there, here, (f"back{r}",))]
    topology = Topology("ring", tuple(map(Device, names)), tuple(wires), tuple(links))
    relation = Relation.from_classes(3, [(0, {1, 2}, 4), (1, {0}, 3), (2, {0, 1}, 2)])
    fold = reverse_plan(make_plan(relation, topology, options=PlanOptions(row_bytes=1000)))
    best = optimum(relation, transpose(topology), 1000)
    assert 0.0 < fold.bound.seconds <= best * (1 + 1e-9)
    assert best <= fold.predicted_seconds * (1 + 1e-6)


def test_on_symmetric_links_the_fold_takes_as_long_as_the_plan():
    plan = make_plan(Relation.from_classes(4, [(0, {1, 3}, 5), (2, {0}, 3), (1, {3}, 2)]), line(4), "spst")
    fold = reverse_plan(plan)
    assert fold.stage_seconds == tuple(plan.stage_seconds[::-1])
    assert fold.bound.seconds == pytest.approx(plan.lower_bound_seconds)


def test_where_links_are_symmetric_the_bound_is_the_plan_s_own():
    """The fold is as certain as the plan, though cuts alone say less: 1.6 here, prices 8/3."""
    relation = Relation.from_classes(3, [(0, {2}, 8)])
    plan = make_plan(relation, known_answer_topology(), options=PlanOptions(row_bytes=10**9))
    fold = reverse_plan(plan)
    assert fold.symmetric
    assert fold.bound.seconds == plan.lower_bound_seconds == pytest.approx(8 / 3, rel=1e-3)
    assert fold.predicted_seconds == pytest.approx(3.0)


def test_relays_that_serve_nobody_have_nothing_to_send_back():
    """Rank 0 to rank 1, and on to 2 and 3, of which nobody needs the row."""
    topology = line(4)
    relation = Relation.from_classes(4, [(0, {1}, 8)])
    options = PlanOptions(row_bytes=10**9)
    plan = make_plan(relation, topology, "direct", options)
    idle = trees_of((0, 8, [(0, 1, 0), (1, 2, 1), (2, 3, 2)]))
    fold = reverse_plan(dataclasses.replace(plan, trees=idle))
    assert [tree_edges(fold.trees, t) for t in range(fold.trees.num_trees)] == [[(1, 0, 0)]]
    assert fold.stage_seconds == (8.0,)
    assert reverse_plan(plan).stage_seconds == (8.0,)


def test_twice_turned_round_is_the_same():
    trees = make_plan(Relation.from_classes(4, [(0, {1, 3}, 5), (2, {0}, 3)]), line(4), "spst").trees
    again = reverse_trees(reverse_trees(trees))
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(trees, name))


def test_the_way_back_may_use_other_connections():
    """Out over a wire of 4 GB/s, back over one of 1 GB/s."""
    wires = (Connection("out", "w", "a", "b", 4.0), Connection("back", "w", "a", "b", 1.0))
    links = (Link("a", "b", ("out",)), Link("b", "a", ("back",)))
    topology = Topology("t", (Device("a"), Device("b")), wires, links)
    plan = make_plan(
        Relation.from_classes(2, [(0, {1}, 8)]), topology, "direct", PlanOptions(row_bytes=10**9)
    )
    fold = reverse_plan(plan)
    assert (plan.stage_seconds, fold.stage_seconds, fold.bound.seconds) == ([2.0], (8.0,), 8.0)
    assert not fold.symmetric
    assert transpose(transpose(topology)) == topology


def test_a_one_way_link_cannot_be_folded_over():
    topology = Topology(
        "one way",
        (Device("a"), Device("b")),
        (Connection("w", "w", "a", "b", 1.0),),
        (Link("a", "b", ("w",)),),
    )
    plan = make_plan(Relation.from_classes(2, [(0, {1}, 8)]), topology)
    with pytest.raises(
        ValueError, match=r"from rank 0 \(a\) to rank 1 \(b\).*no link b -> a for the way back"
    ):
        reverse_plan(plan)


def changed(trees: Trees, **arrays: list[int]) -> Trees:
    return dataclasses.replace(trees, **{k: np.array(v) for k, v in arrays.items()})


@named(
    "arrays, message",
    {
        "sums before all have come": ({"edge_stage": [0, 0]}, "not earlier"),
        "stages the wrong way": ({"edge_stage": [1, 0]}, "not earlier"),
        "to another rank": ({"edge_dst": [0, 2]}, "no such link|never receives|parents first"),
        "a row left out": ({"tree_count": [3]}, "trees take 3"),
    },
)
def test_a_broken_fold_is_found(arrays: dict[str, list[int]], message: str):
    fold = reverse_plan(make_plan(Relation.from_classes(3, [(0, {1, 2}, 4)]), line(3), "spst"))
    assert tree_edges(fold.trees, 0) == [(2, 1, 0), (1, 0, 1)]
    verify_fold(fold)
    with pytest.raises(PlanError, match=f"^fold, seen from the owner: .*({message})"):
        verify_fold(dataclasses.replace(fold, trees=changed(fold.trees, **arrays)))


def test_nothing_to_fold():
    fold = reverse_plan(make_plan(Relation.from_classes(2, []), switched(2)))
    assert (fold.predicted_seconds, fold.trees.num_edges) == (0.0, 0)

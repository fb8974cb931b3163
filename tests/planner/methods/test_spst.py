import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import get_planner, make_plan
from dgcl.planner.methods.spst import pieces
from dgcl.topology import Connection, Device, Topology
from tests.support.planner_oracle import literal_stage_seconds, tree_edges
from tests.support.random_machines import instances
from tests.support.small_machines import known_answer_topology, small_topology, switched

GB = 10**9
spst = get_planner("spst")


@given(instances(), st.sampled_from([1, 512]))
def test_the_stage_of_an_edge_is_its_depth_and_leaves_are_destinations(
    case: tuple[Relation, Topology], row_bytes: int
):
    relation, topology = case
    trees = spst(relation, topology, PlanOptions(row_bytes=row_bytes))
    for t in range(trees.num_trees):
        c = int(trees.tree_class[t])
        depth = {int(relation.source[c]): 0}
        edges = tree_edges(trees, t)
        for s, d, stage in edges:
            assert stage == depth[s]
            depth[d] = stage + 1
        leaves = set(depth) - {s for s, _, _ in edges}
        assert leaves <= set(relation.dest_ranks(c))


@given(instances())
def test_pieces_with_the_same_parents_are_one_tree(case: tuple[Relation, Topology]):
    trees = spst(*case, PlanOptions())
    same = {(int(trees.tree_class[t]), tuple(tree_edges(trees, t))) for t in range(trees.num_trees)}
    assert len(same) == trees.num_trees


@given(st.lists(st.integers(1, 10**6), max_size=30), st.integers(1, 500))
def test_pieces_add_up_and_are_spread_evenly(counts: list[int], aim: int):
    relation = Relation.from_classes(40, [(i, {39}, n) for i, n in enumerate(counts)])
    of_class, rows = pieces(relation, aim)
    assert (rows > 0).all()
    assert len(rows) <= aim + len(counts)
    for c, count in enumerate(counts):
        mine = rows[of_class == c]
        assert mine.sum() == count
        assert mine.max() - mine.min() <= 1
        middle = np.flatnonzero(of_class == c).mean() / max(1, len(rows) - 1)
        assert len(mine) < 10 or abs(middle - 0.5) < 0.2


def test_one_piece_takes_the_cheapest_way():
    """1 vertex: 0-2 takes 1 s directly, 0.5 s over 1."""
    trees = spst(Relation.from_classes(3, [(0, {2}, 1)]), known_answer_topology(), PlanOptions(row_bytes=GB))
    assert [tree_edges(trees, t) for t in range(trees.num_trees)] == [[(0, 1, 0), (1, 2, 1)]]


def test_of_equal_ways_the_shorter_wins():
    """0 -> 2 directly at 1 GB/s, or over 1 at 2 GB/s: 1 s either way; own time is equal too."""
    topology = small_topology(3, [(0, 2, 1.0), (0, 1, 2.0), (1, 2, 2.0)])
    trees = spst(Relation.from_classes(3, [(0, {2}, 1)]), topology, PlanOptions(row_bytes=GB))
    assert tree_edges(trees, 0) == [(0, 2, 0)]


def test_of_ways_that_slow_the_plan_equally_the_one_with_less_time_of_its_own_wins():
    """While 3 -> 4 keeps the stage busy for 100 s, both of 0's ways to 2 are free; the wide direct one is
    taken.
    """
    topology = small_topology(5, [(0, 2, 4.0), (0, 1, 5.0), (1, 2, 5.0), (3, 4, 1.0)])
    relation = Relation.from_classes(5, [(0, {2}, 1), (3, {4}, 100)])
    trees = spst(relation, topology, PlanOptions(row_bytes=GB))
    assert tree_edges(trees, 0) == [(0, 2, 0)]


def test_a_long_line_uses_all_the_stages_there_are():
    topology = small_topology(5, [(r, r + 1, 1.0) for r in range(4)])
    trees = spst(Relation.from_classes(5, [(0, {4}, 3)]), topology, PlanOptions())
    assert tree_edges(trees, 0) == [(0, 1, 0), (1, 2, 1), (2, 3, 2), (3, 4, 3)]


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_greedy_reaches_the_best_strict_plan_of_the_known_answer(count: int):
    relation, topology = Relation.from_classes(3, [(0, {2}, count)]), known_answer_topology()
    trees = spst(relation, topology, PlanOptions(row_bytes=GB))
    rows = [(edge, int(trees.tree_count[t])) for t in range(trees.num_trees) for edge in tree_edges(trees, t)]
    cost = float(sum(literal_stage_seconds(topology, rows, GB)))
    relayed = [
        (count - rows) / 4 for rows in range(count + 1)
    ]  # seconds at 4 GB/s; the other `rows` go at 1 GB/s
    assert cost == min(max(rows, seconds) + seconds for rows, seconds in enumerate(relayed))


def test_a_multicast_on_a_switch_is_relayed():
    """One owner, three readers of all: three copies take 3 s, a relay by one of the readers less."""
    relation = Relation.from_classes(4, [(0, {1, 2, 3}, 3000)])
    trees = spst(relation, switched(4, 3.0), PlanOptions(row_bytes=10**6))
    rows = [(edge, int(trees.tree_count[t])) for t in range(trees.num_trees) for edge in tree_edges(trees, t)]
    assert sum(literal_stage_seconds(switched(4, 3.0), rows, 10**6)) < 3


def test_a_latency_that_all_rows_share_keeps_nobody_from_a_stage():
    """A slow wire, or fast ones over a relay: 5 us for a stage are little for all rows and much for the first."""
    wires = [(0, 2, 1.0), (0, 1, 50.0), (1, 2, 50.0)]
    topology = small_topology(3, wires)
    late = dataclasses.replace(
        topology, connections=tuple(dataclasses.replace(c, latency=5e-6) for c in topology.connections)
    )
    relation = Relation.from_classes(3, [(0, {2}, 100_000)])
    trees = spst(relation, late, PlanOptions(row_bytes=1000))
    rows = [(edge, int(trees.tree_count[t])) for t in range(trees.num_trees) for edge in tree_edges(trees, t)]
    over_the_relay = 2 * (5e-6 + 100_000 * 1000 / 50e9)
    assert sum(literal_stage_seconds(late, rows, 1000)) <= over_the_relay


def test_auto_asks_the_greedy_where_few_rows_travel_between_many_devices():
    """Latencies of odd wires count for more than rows do here; without the greedy, `auto` takes 1.25 times as long."""
    rng = np.random.default_rng(3)
    chords = [(a, b) for a in range(10) for b in range(a + 2, 10) if rng.random() < 0.3 and (a, b) != (0, 9)]
    connections = tuple(
        Connection(
            f"c{a}{b}", "NV", f"d{a}", f"d{b}", float(rng.integers(1, 30)), 1e-6 * int(rng.integers(0, 4))
        )
        for a, b in [(r, (r + 1) % 10) for r in range(10)] + chords
    )
    topology = Topology("odd", tuple(Device(f"d{r}") for r in range(10)), connections)
    classes = []
    for r in range(0, 10, 2):
        others = np.delete(np.arange(10), r)
        classes.append((r, set(rng.choice(others, 1 + r % 5, replace=False).tolist()), 1 + r % 3))
    relation, options = Relation.from_classes(10, classes), PlanOptions(row_bytes=4)
    auto, greedy = (make_plan(relation, topology, method, options) for method in ("auto", "spst"))
    assert auto.predicted_seconds <= 1.01 * greedy.predicted_seconds

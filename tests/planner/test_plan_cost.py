import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.cost import direct_seconds, direction_loads, link_rows, predicted_seconds, stage_seconds
from dgcl.planner.methods import get_planner
from dgcl.topology import Connection, Device, Topology
from tests.support.plan_cost import trees_of
from tests.support.planner_oracle import literal_stage_seconds, tree_edges
from tests.support.random_machines import instances

GB = 10**9


def machine(*wires: tuple[str, str, float, float, str]) -> Topology:
    """Devices a, b, c and whatever switches the (end, end, bandwidth, latency, duplex) wires name."""
    return Topology(
        "m",
        tuple(Device(name) for name in "abc"),
        tuple(
            Connection(f"{x}{y}{i}", "w", x, y, bw, lat, dup) for i, (x, y, bw, lat, dup) in enumerate(wires)
        ),
    )


SWITCH = machine(("a", "s", 10, 0, "full"), ("b", "s", 10, 0, "full"), ("c", "s", 10, 0, "full"))
CASES = [
    pytest.param(
        machine(("a", "b", 4, 0, "full"), ("b", "c", 4, 0, "full"), ("a", "c", 1, 0, "full")),
        [(0, 5, [(0, 1, 0), (1, 2, 1)]), (0, 3, [(0, 2, 1)])],
        [1.25, 3.0],
        id="relay and direct in the second stage",
    ),
    pytest.param(
        SWITCH,
        [(0, 5, [(0, 1, 0), (0, 2, 0)])],
        [1.0],
        id="two links share the sender's port",
    ),
    pytest.param(
        SWITCH,
        [(0, 5, [(0, 1, 0)]), (1, 5, [(1, 0, 0)])],
        [0.5],
        id="full duplex: both ways at once",
    ),
    pytest.param(
        machine(("a", "b", 10, 0, "half"), ("b", "c", 10, 0, "half")),
        [(0, 5, [(0, 1, 0)]), (1, 5, [(1, 0, 0)])],
        [1.0],
        id="half duplex: both ways share",
    ),
    pytest.param(
        machine(("a", "s", 10, 0.25, "full"), ("b", "s", 10, 0.5, "full"), ("c", "s", 1, 0, "full")),
        [(0, 10, [(0, 1, 0)]), (2, 1, [(2, 1, 2)])],
        [1.75, 0.0, 1.5],
        id="latency over the route, and a stage that nothing uses",
    ),
    pytest.param(
        machine(("a", "b", 10, 5.0, "full"), ("b", "c", 1, 0, "full")),
        [(0, 10, [(0, 1, 0)]), (1, 7, [(1, 2, 0)])],
        [7.0],
        id="the slowest link decides, not slowest latency plus slowest load",
    ),
]


@pytest.mark.parametrize("topology, trees, seconds", CASES)
def test_cost_worked_out_by_hand(topology: Topology, trees: list, seconds: list[float]):
    made = trees_of(*trees)
    assert stage_seconds(made, topology.arrays(), GB).tolist() == pytest.approx(seconds)
    assert predicted_seconds(made, topology.arrays(), GB) == pytest.approx(sum(seconds))


def test_loads_are_bytes_per_stage_and_direction():
    topology = machine(("a", "b", 4, 0, "full"), ("b", "c", 4, 0, "half"))
    arrays = topology.arrays()
    trees = trees_of((0, 5, [(0, 1, 0), (1, 2, 1)]), (1, 2, [(2, 1, 1)]))
    loads = direction_loads(link_rows(trees, arrays), arrays, 8)
    names = arrays.direction_names
    assert dict(zip(names, loads.T.tolist(), strict=True)) == {
        "ab0:a>b": [40.0, 0.0],
        "ab0:b>a": [0.0, 0.0],
        "bc1": [0.0, 56.0],
    }


def test_no_trees_cost_nothing():
    topology = machine(("a", "b", 4, 0, "full"), ("b", "c", 4, 0, "full"))
    assert stage_seconds(trees_of(), topology.arrays(), 1).shape == (0,)
    assert predicted_seconds(trees_of(), topology.arrays(), 1) == 0.0
    assert direct_seconds(Relation.from_classes(3, []), topology, 1) == 0.0


def test_a_missing_link_is_named():
    topology = machine(("a", "b", 4, 0, "full"), ("b", "c", 4, 0, "full"))
    with pytest.raises(ValueError, match="edge 0 goes from rank 0 to rank 2"):
        stage_seconds(trees_of((0, 1, [(0, 2, 0)])), topology.arrays(), 1)
    assert direct_seconds(Relation.from_classes(3, [(0, {2}, 1)]), topology, 1) is None


@given(instances(), st.integers(1, 4096))
def test_cost_is_the_literal_reading_of_the_format(case: tuple[Relation, Topology], row_bytes: int):
    relation, topology = case
    trees = get_planner("spst")(relation, topology, PlanOptions(row_bytes=row_bytes))
    rows = [(edge, int(trees.tree_count[t])) for t in range(trees.num_trees) for edge in tree_edges(trees, t)]
    want = [float(x) for x in literal_stage_seconds(topology, rows, row_bytes)]
    assert stage_seconds(trees, topology.arrays(), row_bytes).tolist() == pytest.approx(want, rel=1e-12)


@given(instances())
def test_direct_seconds_is_the_cost_of_the_stars(case: tuple[Relation, Topology]):
    relation, topology = case
    pairs = {(link.src, link.dst) for link in topology.links}
    names = [d.name for d in topology.devices]
    rows, possible = [], True
    for c in range(relation.num_classes):
        for d in relation.dest_ranks(c):
            s = int(relation.source[c])
            possible = possible and (names[s], names[d]) in pairs
            rows.append(((s, d, 0), int(relation.count[c])))
    seconds = direct_seconds(relation, topology, 64)
    if possible:
        assert seconds == pytest.approx(float(sum(literal_stage_seconds(topology, rows, 64))), rel=1e-12)
    else:
        assert seconds is None

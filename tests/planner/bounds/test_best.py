"""Bounds: never above the best plan, found by exhaustive search; and as high as a hand calculation says."""

import numpy as np
import pytest
from hypothesis import given

from dgcl.planner import Bound, PlanOptions, Relation
from dgcl.planner.bounds.best import best_bound, cut_bound, distance_bound
from dgcl.planner.bounds.cut_kernels import covers
from dgcl.planner.bounds.cuts import candidate_cuts, labels
from dgcl.planner.methods import METHODS, make_plan
from dgcl.topology import Connection, Device, Link, Topology
from tests.support.make_plan import has_the_links
from tests.support.optimal_plans import optimum
from tests.support.random_machines import instances, topologies
from tests.support.samples import examples
from tests.support.small_machines import known_answer_topology, line, small_topology, switched

GB = 10**9


@given(instances(min_devices=2, max_devices=4, max_classes=3, max_total=8))
def test_no_plan_of_a_small_instance_beats_the_bound(case: tuple[Relation, Topology]):
    best = optimum(*case, GB)
    for bound in (cut_bound, distance_bound, best_bound):
        assert bound(*case, GB).seconds <= best * (1 + 1e-6)


def test_the_known_answer():
    bound = best_bound(Relation.from_classes(3, [(0, {2}, 8)]), known_answer_topology(), GB)
    assert bound.seconds == pytest.approx(1.6)


CASES = [
    pytest.param(
        switched(4),
        [(0, {1}, 10), (2, {1}, 20), (3, {1}, 5)],
        3.5,
        "device d1's port, in",
        id="rows that a device takes in",
    ),
    pytest.param(
        switched(4),
        [(0, {1}, 10), (0, {2}, 20), (0, {1, 3}, 5)],
        3.5,
        "device d0's port, out",
        id="rows that a device gives out, each once",
    ),
    pytest.param(
        small_topology(2, [(0, 1, 2.0), (0, 1, 3.0)]),
        [(0, {1}, 6)],
        2.0,
        "device d0's wire, out",
        id="parallel wires: only the one in the route counts",
    ),
    pytest.param(
        small_topology(2, [(0, 1, 2.0)], "half"),
        [(0, {1}, 6), (1, {0}, 4)],
        5.0,
        "device d0's wire, in and out",
        id="half duplex: both ways share",
    ),
    pytest.param(
        Topology(
            "bus",
            tuple(Device(f"d{r}") for r in range(4)),
            (
                *(Connection(f"p{r}", "port", f"d{r}", "LLRR"[r], 100.0) for r in range(4)),
                Connection("bus", "bus", "L", "R", 1.0),
            ),
        ),
        [(0, {2}, 3), (1, {2, 3}, 4), (0, {1}, 9)],
        7.0,
        "the group {d2, d3}'s bus, in",
        id="a bus between two switches",
    ),
    pytest.param(
        Topology(
            "two",
            tuple(Device(f"d{r}", machine=r // 2) for r in range(4)),
            (
                *(Connection(f"p{r}", "NV", f"d{r}", f"switch{r // 2}", 100.0) for r in range(4)),
                *(Connection(f"nic{m}", "IB", f"switch{m}", "fabric", 5.0) for m in (0, 1)),
            ),
        ),
        [(0, {2, 3}, 10), (1, {2}, 5), (2, {0}, 2)],
        3.0,
        "machine 0's IB, out",
        id="a machine's network card",
    ),
    pytest.param(
        Topology(
            "memory",
            tuple(Device(f"d{r}") for r in range(3)),
            (
                *(Connection(f"p{r}", "core", f"d{r}", "near", 100.0) for r in range(3)),
                *(Connection(f"q{r}", "core", f"d{r}", "far", 100.0) for r in range(3)),
                Connection("bus", "memory", "near", "far", 1.0, duplex="half"),
            ),
            tuple(
                Link(f"d{s}", f"d{d}", (f"p{s}", "bus", f"q{d}"))
                for s in range(3)
                for d in range(3)
                if s != d
            ),
        ),
        [(0, {1, 2}, 2), (1, {0}, 3), (2, {0, 1}, 1)],
        9.0,
        "all devices' memory, in and out",
        id="one memory bus for all: every delivery crosses it",
    ),
    pytest.param(
        Topology(
            "slow start",
            (Device("a"), Device("b")),
            (Connection("w", "wire", "a", "b", 1.0, latency=0.5),),
        ),
        [(0, {1}, 2)],
        2.5,
        "device a's wire, out",
        id="latency adds to the cut",
    ),
    pytest.param(line(4), [(0, {3}, 1)], 3.0, "the way of one row from d0 to d3", id="a long way"),
]


@pytest.mark.parametrize("topology, classes, seconds, where", CASES)
def test_bounds_worked_out_by_hand(topology: Topology, classes: list, seconds: float, where: str):
    relation = Relation.from_classes(topology.num_devices, classes)
    bound = best_bound(relation, topology, GB)
    assert bound.seconds == pytest.approx(seconds)
    assert bound.where == where


def test_a_given_list_of_links_limits_what_connections_can_do():
    """Two parallel wires, of which the only link uses the slow one: the fast one is out of reach."""
    fast = small_topology(2, [(0, 1, 1.0), (0, 1, 9.0)])
    slow = Topology(fast.name, fast.devices, fast.connections, (Link("d0", "d1", ("w0",)),))
    relation = Relation.from_classes(2, [(0, {1}, 9)])
    assert cut_bound(relation, fast, GB).seconds == pytest.approx(1.0)
    assert cut_bound(relation, slow, GB).seconds == pytest.approx(9.0)


def test_a_relation_that_cannot_be_delivered_has_no_bound():
    with pytest.raises(ValueError, match=r"rank 0 \(d0\) -> rank 1 \(d1\).*not even through relays"):
        cut_bound(Relation.from_classes(2, [(0, {1}, 1)]), small_topology(2, []), GB)


def test_the_best_of_the_planners_own_bound_and_ours_counts():
    relation, topology = Relation.from_classes(2, [(0, {1}, 10)]), switched(2)
    assert best_bound(relation, topology, GB, Bound(9.0, "prices")).where == "prices"
    assert best_bound(relation, topology, GB, Bound(0.5, "prices"), None).seconds == pytest.approx(1.0)


@given(topologies(min_devices=2))
def test_every_crossing_link_is_covered(topology: Topology):
    arrays = topology.arrays()
    cuts = candidate_cuts(topology)
    label = labels(cuts, topology.num_devices)
    cover, latency = covers(label, arrays)
    for n in range(len(cuts)):
        crossing = [
            link
            for link in range(arrays.num_links)
            if label[n, arrays.link_dst[link]] >= 0
            and label[n, arrays.link_dst[link]] != label[n, arrays.link_src[link]]
        ]
        for link in crossing:
            route = arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]]
            assert cover[n, route].any()
        assert latency[n] == min((arrays.link_latency[link] for link in crossing), default=np.inf)
        for c in np.flatnonzero(cover[n]):  # none is superfluous
            left = cover[n].copy()
            left[c] = False
            routes = [arrays.link_directions[arrays.link_ptr[x] : arrays.link_ptr[x + 1]] for x in crossing]
            assert not all(left[route].any() for route in routes)


@pytest.mark.parametrize("num_devices", [2, 3, 8, 11, 64, 130])
def test_cuts_are_many_for_few_ranks_and_few_for_many(num_devices: int):
    cuts = candidate_cuts(switched(num_devices))
    assert len({cut.groups for cut in cuts}) == len(cuts)
    assert len(cuts) <= max(1 << min(num_devices, 10), 6 * num_devices)
    for cut in cuts:
        assert not frozenset.intersection(*cut.groups) or len(cut.groups) == 1
        assert 0 < len(frozenset().union(*cut.groups)) <= num_devices


@examples(6, 40)
@given(instances(max_devices=5))
def test_bounds_hold_for_every_method(case: tuple[Relation, Topology]):
    relation, topology = case
    bound = best_bound(relation, topology, 512).seconds
    for method in METHODS:
        if not has_the_links(method, relation, topology):
            continue
        plan = make_plan(relation, topology, method, PlanOptions(row_bytes=512))
        assert bound <= plan.predicted_seconds * (1 + 1e-9)

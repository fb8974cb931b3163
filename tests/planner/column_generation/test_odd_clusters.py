"""Clusters beyond the size that is searched whole, where a group is cut off, slow to begin with, or badly joined."""

from collections.abc import Callable

import pytest

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.column_generation.search.stage_search import StageSearch
from dgcl.planner.methods import auto, make_plan
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import Connection, Device, Link, Topology
from tests.support.samples import slow
from tests.support.small_machines import line

MACHINES, EACH = 4, 8
NUM_DEVICES = MACHINES * EACH
Classes = list[tuple[int, list[int], int]]


def cluster(inside: float, between: Callable[[int, int], tuple[float, float] | None]) -> Topology:
    """Machines of 8 devices on a switch of 100 GB/s and a latency of ``inside`` seconds; ``between`` gives GB/s and
    seconds of the cable from one machine to another, or None."""
    devices = [Device(f"g{m}_{d}", m, 0) for m in range(MACHINES) for d in range(EACH)]
    ports = [
        Connection(f"nv{m}_{d}", "NV", f"g{m}_{d}", f"sw{m}", 100.0, latency=inside / 2)
        for m in range(MACHINES)
        for d in range(EACH)
    ]
    cables, links = {}, []
    for a in range(MACHINES):
        for b in range(a + 1, MACHINES):
            if (facts := between(a, b)) is not None:
                cables[a, b] = Connection(f"ib{a}_{b}", "IB", f"sw{a}", f"sw{b}", facts[0], latency=facts[1])
    for m in range(MACHINES):
        for n in range(MACHINES):
            pair = (min(m, n), max(m, n))
            if m != n and pair not in cables:
                continue
            way = () if m == n else (cables[pair].name,)
            links += [
                Link(f"g{m}_{d}", f"g{n}_{e}", (f"nv{m}_{d}", *way, f"nv{n}_{e}"))
                for d in range(EACH)
                for e in range(EACH)
                if (m, d) != (n, e)
            ]
    return Topology("cluster", tuple(devices), (*ports, *cables.values()), tuple(links))


def inside_only() -> Classes:
    return [
        (EACH * m + d, [EACH * m + (d + step) % EACH for step in steps], 10 + d)
        for m in range(MACHINES)
        for d in range(EACH)
        for steps in ((1,), (2, 5), (1, 3, 4))
    ]


def from_first_to_last(rows: int) -> Classes:
    return [(d, [EACH * (MACHINES - 1) + d], rows) for d in range(EACH)]


@pytest.mark.parametrize("method", ["auto", "optimal"])
@pytest.mark.parametrize("latency", [0.0, 1e-6])
def test_machines_that_send_each_other_nothing(method: str, latency: float):
    topology = cluster(latency, lambda a, b: None)
    relation = Relation.from_classes(NUM_DEVICES, inside_only())
    plan = make_plan(relation, topology, method, PlanOptions(row_bytes=512))
    assert plan.direct_seconds is not None
    assert plan.lower_bound_seconds <= plan.predicted_seconds <= plan.direct_seconds


def test_a_pair_that_is_slow_to_begin_with():
    """The cable between the first and the last machine takes longer to begin than all rows take on the others."""
    topology = cluster(4e-6, lambda a, b: (10.0, 50e-6 if (a, b) == (0, MACHINES - 1) else 2e-6))
    classes = [*from_first_to_last(3), (0, [NUM_DEVICES - 1], 1)]
    plan = make_plan(
        Relation.from_classes(NUM_DEVICES, classes), topology, "auto", PlanOptions(row_bytes=512)
    )
    assert plan.direct_seconds is not None
    assert plan.predicted_seconds <= plan.direct_seconds


def test_rows_go_round_a_thin_pair():
    """0.1 GB/s between two machines and 10 GB/s by way of a third: by the third it takes less than a tenth."""
    topology = cluster(0.0, lambda a, b: (0.1 if (a, b) == (0, MACHINES - 1) else 10.0, 0.0))
    relation = Relation.from_classes(NUM_DEVICES, from_first_to_last(1000))
    plan = make_plan(relation, topology, "auto", PlanOptions(row_bytes=512))
    assert plan.direct_seconds == pytest.approx(8000 * 512 / 0.1e9)
    assert plan.predicted_seconds < plan.direct_seconds / 10


@pytest.mark.parametrize(
    "machines, each, neighbours_only, gap",
    [slow(6, 4, False, 0.22), (2, 8, True, 0.02), slow(3, 8, True, 0.02)],
)
def test_machines_in_a_ring_of_slow_cables(machines: int, each: int, neighbours_only: bool, gap: float):
    """Rows take many stages to the other side; ways that are longer than they must be leave cables less busy."""
    devices = [Device(f"g{m}_{d}", m) for m in range(machines) for d in range(each)]
    inside = [(d, e) for e in range(each) for d in range(e) if not neighbours_only or e == d + 1]
    wires = [
        Connection(f"w{m}_{d}_{e}", "wire", f"g{m}_{d}", f"g{m}_{e}", 4.0 + 3 * ((d + e + m) % 5))
        for m in range(machines)
        for d, e in inside
    ]
    cables = [
        Connection(f"c{m}", "cable", f"g{m}_{m % each}", f"g{(m + 1) % machines}_{each - 1 - m % each}", 0.5)
        for m in range(machines)
    ]
    topology = Topology("ring", tuple(devices), (*wires, *cables))
    relation = synthetic_relation("web-google", machines * each, scale=0.01)
    plan, greedy = (make_plan(relation, topology, method) for method in ("auto", "spst"))
    in_a_hurry = make_plan(relation, topology, "auto", PlanOptions(time_limit=1e-3))
    assert max(plan.predicted_seconds, in_a_hurry.predicted_seconds) <= greedy.predicted_seconds
    assert plan.predicted_seconds <= (1.0 + gap) * plan.lower_bound_seconds


def test_a_search_that_finds_nothing_leaves_it_to_the_greedy(monkeypatch):
    monkeypatch.setattr(StageSearch, "run", lambda self: None)
    monkeypatch.setattr(auto, "GREEDY_STEPS", 0)
    topology = line(12)
    relation = synthetic_relation("web-google", 12, scale=0.01)
    plan, greedy = (make_plan(relation, topology, method) for method in ("auto", "spst"))
    assert plan.predicted_seconds == greedy.predicted_seconds

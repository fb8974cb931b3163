"""Plans machine by machine, for many ranks: judged by walking the trees over sets, and by the bounds by cuts."""

import time

import numpy as np
import pytest

from dgcl.planner import PlanOptions, Relation, make_plan
from dgcl.planner.bounds.stages import stage_times
from dgcl.planner.cost import predicted_seconds
from dgcl.planner.methods.hierarchical import best_trees
from dgcl.planner.synthetic import synthetic_relation
from dgcl.planner.trees import Trees
from dgcl.topology import Connection, Device, Topology, resolve_topology
from dgcl.topology.combine import Nic, cluster
from dgcl.topology.latencies import without_latencies
from tests.support.samples import named

OPTIONS = PlanOptions()


def without_latency(name: str) -> Topology:
    """A preset in which only bytes count: a few rows on many ranks would be all latency."""
    return without_latencies(resolve_topology(name))


def one_nic(node: str, machines: int) -> Topology:
    return cluster(without_latency(node), machines, nics=[Nic("nvswitch", 50.0)])


def joined(machines: int, wires: list[tuple[str, str]]) -> Topology:
    """Machines of two devices, and wires between the NICs of these and switches."""
    pairs = [(f"d{i}", f"nic{i // 2}", 100.0) for i in range(2 * machines)] + [
        (*wire, 50.0) for wire in wires
    ]
    links = tuple(Connection(f"{a}-{b}", "wire", a, b, rate) for a, b, rate in pairs)
    return Topology("joined", tuple(Device(f"d{i}", machine=i // 2) for i in range(2 * machines)), links)


RING = joined(12, [(f"nic{m}", f"nic{(m + 1) % 12}") for m in range(12)])
TORUS = joined(
    16,
    [(f"nic{m}", f"nic{m // 4 * 4 + (m + 1) % 4}") for m in range(16)]
    + [(f"nic{m}", f"nic{(m + 4) % 16}") for m in range(16)],
)


def planned(relation: Relation, topology: Topology) -> tuple[Trees, float]:
    """The trees, and how far they are above the bound."""
    times = stage_times(relation, topology, OPTIONS.row_bytes)
    trees = best_trees(relation, topology, OPTIONS, times)
    assert trees is not None
    return trees, predicted_seconds(trees, topology.arrays(), OPTIONS.row_bytes) / times.bound().seconds - 1.0


def walk(relation: Relation, trees: Trees, topology: Topology) -> None:
    """Follow every tree stage by stage over sets: all destinations get the row once, each machine is entered once."""
    served = np.zeros(relation.num_classes, np.int64)
    for t in range(trees.num_trees):
        c = int(trees.tree_class[t])
        owner = int(relation.source[c])
        edges = slice(int(trees.edge_ptr[t]), int(trees.edge_ptr[t + 1]))
        columns = (trees.edge_stage, trees.edge_src, trees.edge_dst)
        sent = sorted(zip(*(column[edges].tolist() for column in columns), strict=True))
        since, entered = {owner: -1}, [topology.devices[owner].machine]
        for stage, src, dst in sent:
            assert since[src] < stage
            assert dst not in since
            since[dst] = stage
            if topology.devices[src].machine != topology.devices[dst].machine:
                entered.append(topology.devices[dst].machine)
        assert set(relation.dest_ranks(c)) <= set(since)
        assert len(set(entered)) == len(entered)
        served[c] += int(trees.tree_count[t])
    assert (served == relation.count).all()


@named(
    "topology, graph, scale, most",
    {
        "a NIC for each GPU": (without_latency("dgx_a100x8"), "web-google", 0.2, 0.05),
        "nearly every row to every machine": (without_latency("hgx_h100x4"), "reddit", 0.01, 0.25),
        "a NIC for each machine": (one_nic("dgx_a100", 8), "web-google", 0.2, 0.05),
        "no switch inside": (without_latency("dgx1x4"), "web-google", 0.1, 0.10),
        "machines in a ring": (RING, "reddit", 0.01, 0.75),
        "machines in a torus": (TORUS, "reddit", 0.01, 0.5),
    },
)
def test_every_row_arrives_and_the_time_is_near_the_bound(
    topology: Topology, graph: str, scale: float, most: float
):
    relation = synthetic_relation(graph, topology.num_devices, scale=scale)
    trees, gap = planned(relation, topology)
    walk(relation, trees, topology)
    assert gap <= most


@pytest.mark.parametrize("row_bytes, stages", [(4, 1), (512, 1), (2048, 2), (16384, 2)])
def test_latencies_decide_how_many_stages_there_are(row_bytes: int, stages: int):
    topology = resolve_topology("dgx_a100x9")
    relation = synthetic_relation("web-google", 72, scale=0.2)
    plan = make_plan(relation, topology, "auto", PlanOptions(row_bytes=row_bytes))
    assert plan.num_stages == stages
    assert plan.gap <= 0.05


def test_links_of_large_latency_stay_open():
    """Stages last as long as the latest link between machines, before any tree has used it, too."""
    devices = tuple(Device(f"d{i}", machine=i // 2) for i in range(4))
    wires = tuple(Connection(f"w{i}", "wire", f"d{i}", f"d{i + 2}", 1.0, float(i)) for i in range(2))
    relation, topology = (
        Relation.from_classes(4, [(i, {(i + 2) % 4}, 1) for i in range(4)]),
        Topology("apart", devices, wires),
    )
    walk(relation, planned(relation, topology)[0], topology)


def test_rows_leave_a_busy_machine_once_and_go_on_from_others():
    """Machine 0 owns all, every machine needs all: straight from it would take seven times as long as entering does."""
    topology = without_latency("dgx_a100x8")
    relation = Relation.from_classes(
        64, [(i % 8, {8 * m + i // 8 % 8 for m in range(1, 8)}, 1) for i in range(64)]
    )
    many = Relation(64, relation.source, relation.dests, np.ones_like(relation.count))
    trees, gap = planned(many, topology)
    walk(many, trees, topology)
    assert gap < 6.0
    first = np.isin(trees.edge_src, np.arange(8)) & ~np.isin(trees.edge_dst, np.arange(8))
    assert first.sum() < many.deliveries


def test_rows_take_the_wide_way_inside_a_machine():
    """All rows enter the second machine at d6; from there to d8 the wires by way of d7 are ten times as wide."""
    devices = tuple(Device(f"d{i}", machine=int(i > 5)) for i in range(9))
    wires = [(i, 6, 1.0) for i in range(6)] + [(6, 8, 1.0), (6, 7, 10.0), (7, 8, 10.0)]
    topology = Topology(
        "wide", devices, tuple(Connection(f"{a}{b}", "wire", f"d{a}", f"d{b}", rate) for a, b, rate in wires)
    )
    relation = Relation.from_classes(9, [(i, {6, 8}, 50) for i in range(6)])
    trees, gap = planned(relation, topology)
    walk(relation, trees, topology)
    assert gap < 1.5
    assert ((trees.edge_src == 7) & (trees.edge_dst == 8)).sum() > 2


def test_devices_of_a_machine_need_not_follow_each_other():
    wires = tuple(Connection(f"{a}{b}", "wire", f"d{a}", f"d{b}", 1.0) for a in range(4) for b in range(a))
    topology = Topology("mixed", tuple(Device(f"d{i}", machine=int(i == 2)) for i in range(4)), wires)
    relation = Relation.from_classes(4, [(1, {0, 2, 3}, 1), (2, {0, 1, 3}, 1)])
    walk(relation, planned(relation, topology)[0], topology)


def test_links_that_are_missing_and_time_that_is_over_give_no_trees():
    devices = tuple(Device(f"d{i}", machine=i // 2) for i in range(4))
    wires = tuple(Connection(f"{a}{b}", "IB", f"d{a}", f"d{b}", 1.0) for a, b in ((0, 1), (2, 3), (1, 2)))
    apart = Topology("apart", devices, wires)
    far = Relation.from_classes(4, [(0, {3}, 5)])
    times = stage_times(far, apart, OPTIONS.row_bytes)
    assert best_trees(far, apart, OPTIONS, times) is None
    near = Relation.from_classes(4, [(1, {2, 3}, 5)])
    times = stage_times(near, apart, OPTIONS.row_bytes)
    assert best_trees(near, apart, OPTIONS, times, deadline=time.process_time()) is None
    trees = best_trees(near, apart, OPTIONS, times, deadline=time.process_time(), needed=True)
    assert trees is not None
    walk(near, trees, apart)


def test_auto_plans_by_machines_on_many_ranks_and_where_few_rows_travel():
    many = make_plan(synthetic_relation("web-google", 128, scale=0.5), without_latency("dgx_a100x16"))
    assert many.meta["made_by"] == "hierarchical"
    assert many.gap <= 0.05
    machine = resolve_topology("dgx_a100x16")
    late = make_plan(
        synthetic_relation("reddit", 128, scale=0.01), machine, options=PlanOptions(time_limit=1e-6)
    )
    assert late.meta["made_by"] == "hierarchical"  # and not peer-to-peer, though there is no time
    few = make_plan(synthetic_relation("web-google", 32), resolve_topology("dgx_a100x4"))
    assert few.meta["made_by"] == "hierarchical"
    assert few.gap <= 0.001

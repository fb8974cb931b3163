"""`auto` and `optimal`: exact to rounding where the optimum is known, near proven bounds elsewhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.executed import executed_seconds
from dgcl.planner.synthetic import synthetic_relation
from dgcl.planner.verify.check_plan import verify_plan
from dgcl.topology import Connection, Device, Link, Topology, preset
from dgcl.topology.combine import Nic, cluster
from dgcl.topology.latencies import without_latencies
from tests.support.optimal_plans import optimum
from tests.support.planner_oracle import delivers
from tests.support.random_machines import instances
from tests.support.samples import examples, named, slow
from tests.support.small_machines import line, small_topology, switched

GB = 10**9


@named(
    "topology, classes",
    {
        "square": (
            small_topology(4, [(0, 1, 2.0), (1, 2, 2.0), (2, 3, 2.0), (3, 0, 1.0)]),
            [(0, {2}, 3), (1, {3}, 2), (2, {0, 1, 3}, 5)],
        ),
        "half duplex": (
            small_topology(4, [(0, 1, 3.0), (0, 2, 1.0), (0, 3, 1.0), (1, 2, 2.0)], "half"),
            [(0, {1, 2}, 3), (3, {1}, 4), (2, {0, 3}, 2)],
        ),
        "parallel wires": (
            small_topology(3, [(0, 1, 1.0), (0, 1, 2.0), (1, 2, 5.0)]),
            [(0, {1, 2}, 7), (2, {0}, 3)],
        ),
        "line": (line(4), [(0, {3}, 6), (3, {0, 1}, 5)]),
        "broadcast among equals": (
            small_topology(4, [(a, b, 1.0) for a in range(4) for b in range(a)]),
            [(0, {1, 2, 3}, 6)],
        ),
        "broadcast of an odd number": slow(
            small_topology(4, [(a, b, 1.0) for a in range(4) for b in range(a)]), [(0, {1, 2, 3}, 9)]
        ),
    },
)
@pytest.mark.parametrize("row_bytes", [GB, 4 * 10**6])
def test_small_instances_are_solved_exactly(
    topology: Topology, classes: list[tuple[int, set[int], int]], row_bytes: int
):
    relation = Relation.from_classes(topology.num_devices, classes)
    best = optimum(relation, topology, row_bytes)
    for method in ("auto", "optimal"):
        plan = make_plan(relation, topology, method, PlanOptions(row_bytes=row_bytes))
        assert plan.predicted_seconds == pytest.approx(best, rel=1e-6)


@examples(10, 30)
@given(
    case=instances(min_devices=5, max_devices=7, max_classes=8, max_count=2000),
    method=st.sampled_from(["auto", "optimal"]),
)
def test_plans_deliver_and_are_never_worse_than_direct_or_the_greedy(
    case: tuple[Relation, Topology], method: str
):
    relation, topology = case
    plan = make_plan(relation, topology, method)
    verify_plan(plan)
    assert delivers(relation, plan.trees, topology)
    assert plan.direct_seconds is None or plan.predicted_seconds <= plan.direct_seconds
    if method == "auto" and plan.gap > 0.01:
        greedy = make_plan(relation, topology, "spst")
        slower = plan.predicted_seconds > greedy.predicted_seconds * (1 + 1e-3)
        assert not slower or executed_seconds(plan) <= executed_seconds(greedy) * (1 + 1e-9)


@pytest.mark.parametrize("machine", ["dgx1", "pcie8", "summit", "dgx_a100", "hgx_h100"])
@pytest.mark.parametrize("shape", ["reddit", "wiki-talk"])
def test_eight_devices_within_a_percent_of_the_bound_in_two_to_four_stages(machine: str, shape: str):
    topology = without_latencies(preset(machine))
    relation = synthetic_relation(shape, topology.num_devices, scale=0.05)
    plan = make_plan(relation, topology)
    verify_plan(plan)
    assert plan.gap <= 0.01
    assert plan.num_stages <= 4


@pytest.mark.slow
def test_optimal_goes_on_where_auto_ends_above_the_gap():
    topology, options = without_latencies(preset("dgx1")), PlanOptions(gap=0.002)
    gained = []
    for seed in (0, 1):  # which solutions round best is chance
        relation = synthetic_relation("web-google", 8, scale=0.05, seed=seed)
        auto, optimal = (make_plan(relation, topology, method, options) for method in ("auto", "optimal"))
        assert auto.gap > options.gap
        assert optimal.gap <= auto.gap
        gained.append(auto.predicted_seconds - optimal.predicted_seconds)
    assert min(gained) >= 0.0
    assert max(gained) > 0.0


def test_where_every_device_has_one_port_peer_to_peer_is_returned_with_the_proof():
    rng = np.random.default_rng(0)
    classes = [(s, {int(d)}, int(rng.integers(1, 50))) for s in range(8) for d in range(8) if d != s]
    plan = make_plan(Relation.from_classes(8, classes), switched(8))
    assert plan.num_stages == 1
    assert plan.meta["made_by"] == "direct"
    assert plan.gap <= 1e-3


def machines_on_rails(num_machines: int, per_machine: int) -> Topology:
    node = Topology(
        "node",
        tuple(Device(f"gpu{g}") for g in range(per_machine)),
        tuple(Connection(f"nv{g}", "NVLink", f"gpu{g}", "nvswitch", 100.0) for g in range(per_machine)),
    )
    return cluster(node, num_machines, nics=[Nic(f"gpu{g}", 10.0) for g in range(per_machine)], rails=True)


@named(
    "topology, scale, gap",
    {
        "two DGX-1": (without_latencies(preset("dgx1x2")), 0.01, 0.01),
        "4 machines of 4 on rails": (machines_on_rails(4, 4), 0.01, 0.03),
        "8 machines of 8 on rails": slow(machines_on_rails(8, 8), 0.003, 0.03),
        "13 machines of 1": (machines_on_rails(13, 1), 0.01, 0.03),
        # 13 hops in at most 13 stages: nothing can be pipelined, which the bound does not know
        "a line of 14, one machine": slow(line(14), 0.01, 0.2),
    },
)
def test_many_devices_are_planned_by_groups(topology: Topology, scale: float, gap: float):
    relation = synthetic_relation("com-orkut", topology.num_devices, scale=scale)
    plan = make_plan(relation, topology)
    verify_plan(plan)
    assert plan.gap <= gap


def test_a_group_whose_devices_meet_only_outside_it():
    """Machine 0's devices have no way to each other but through machine 1; 16 devices, so sets are per group."""
    names = [f"d{r}" for r in range(16)]
    devices = tuple(Device(name, machine=r % 2) for r, name in enumerate(names))
    wires = [Connection(f"w{r}", "w", names[r], names[(r + 1) % 16], 1.0) for r in range(16)]
    links = [Link(names[r], names[(r + 1) % 16], (f"w{r}",)) for r in range(16)]
    ring = Topology("one-way ring", devices, tuple(wires), tuple(links))
    relation = Relation.from_classes(16, [(s, {(s + 3) % 16, (s + 6) % 16}, 2) for s in range(16)])
    plan = make_plan(relation, ring)
    verify_plan(plan)
    assert plan.direct_seconds is None


def test_counts_of_any_size():
    relation = Relation.from_classes(4, [(0, {1, 3}, 2**55 + 1), (2, {0}, 1), (1, {2, 3}, 2**40 + 7)])
    plan = make_plan(relation, small_topology(4, [(0, 1, 1.0), (1, 2, 3.0), (2, 3, 1.0), (3, 0, 2.0)]))
    verify_plan(plan)
    assert plan.gap < 0.5


@pytest.mark.parametrize("limit", [slow(1e-6), 0.05])
def test_a_time_limit_returns_a_plan_with_its_own_gap(limit: float):
    topology = preset("dgx1")
    relation = synthetic_relation("web-google", 8, scale=0.05)
    plan = make_plan(relation, topology, options=PlanOptions(time_limit=limit))
    verify_plan(plan)
    unlimited = make_plan(relation, topology)
    assert plan.predicted_seconds >= unlimited.lower_bound_seconds
    assert plan.direct_seconds is not None
    assert plan.predicted_seconds <= plan.direct_seconds
    assert plan.predicted_seconds <= make_plan(relation, topology, "spst").predicted_seconds


def test_a_time_limit_without_peer_to_peer_still_returns_a_plan():
    relation = Relation.from_classes(5, [(0, {4}, 9), (4, {0, 2}, 9)])
    plan = make_plan(relation, line(5), options=PlanOptions(time_limit=1e-9))
    verify_plan(plan)
    assert plan.num_stages == 4


@pytest.mark.slow
def test_a_wide_gap_ends_the_search_early():
    topology = preset("dgx1")
    relation = synthetic_relation("reddit", 8, scale=0.05)
    wide, narrow = (make_plan(relation, topology, options=PlanOptions(gap=gap)) for gap in (0.5, 0.001))
    assert wide.gap <= 0.5
    assert narrow.predicted_seconds <= wide.predicted_seconds
    assert narrow.gap <= 0.01


def test_equal_plans_move_less():
    """Everyone sends to everyone over one switch: relays would be free of charge where ports idle, and useless."""
    relation = Relation.from_classes(6, [(s, {(s + 1) % 6}, 10 * (s + 1)) for s in range(6)])
    plan = make_plan(relation, switched(6))
    assert plan.trees.rows_moved() == relation.deliveries

"""Bounds by stages: never above the best plan of a small cluster, found by exhaustive search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import Relation
from dgcl.planner.bounds.cuts import machines_of
from dgcl.planner.bounds.stages import stage_times
from dgcl.topology import Connection, Device, Topology, preset
from tests.support.optimal_plans import optimum
from tests.support.random_machines import relations
from tests.support.samples import examples, named

GB = 10**9


@st.composite
def clusters(draw: st.DrawFn, machines: tuple[int, ...]) -> tuple[Relation, Topology]:
    """A switch in each machine, and a network between machines: a NIC for each device, or one for a machine."""
    speeds = st.sampled_from([0.5, 1.0, 2.0, 3.7, 10.0])
    delays = st.sampled_from([0.0, 0.3, 1.0, 2.5, 8.0])
    near, far = draw(delays), draw(delays)
    shared = draw(st.booleans())
    devices, wires = [], []
    for machine, size in enumerate(machines):
        for _ in range(size):
            d = f"d{len(devices)}"
            devices.append(Device(d, machine=machine))
            wires.append(Connection(f"p{d}", "NV", d, f"s{machine}", draw(speeds), near / 2))
            if not shared:
                wires.append(Connection(f"n{d}", "IB", d, "net", draw(speeds), far / 2))
        if shared:
            wires.append(Connection(f"n{machine}", "IB", f"s{machine}", "net", draw(speeds), far / 2))
    topology = Topology("cluster", tuple(devices), tuple(wires))
    return draw(relations(topology, max_classes=2, max_count=4, max_total=5)), topology


def check(case: tuple[Relation, Topology], best: float) -> None:
    relation, topology = case
    if relation.num_classes:
        assert stage_times(relation, topology, GB).bound().seconds <= best * (1 + 1e-6)


@given(st.sampled_from([(1, 1), (2, 1), (1, 2), (1, 1, 1)]).flatmap(clusters))
@examples(30, 200)
def test_no_plan_of_three_devices_beats_the_bound(case: tuple[Relation, Topology]):
    check(case, optimum(*case, GB))


@pytest.mark.slow
@given(st.sampled_from([(2, 2), (3, 1), (2, 1, 1)]).flatmap(clusters))
@examples(5, 12)
def test_no_plan_of_four_devices_beats_the_bound(case: tuple[Relation, Topology]):
    check(case, optimum(*case, GB) if case[0].num_classes else 0.0)


def two_machines(near: float, far: float) -> Topology:
    """Two machines of two devices: ports of 2 GB/s, and a NIC of 1 GB/s for each device."""
    devices = tuple(Device(f"d{r}", machine=r // 2) for r in range(4))
    ports = [Connection(f"p{r}", "NV", f"d{r}", f"s{r // 2}", 2.0, near / 2) for r in range(4)]
    nics = [Connection(f"n{r}", "IB", f"d{r}", "net", 1.0, far / 2) for r in range(4)]
    return Topology("two", devices, (*ports, *nics))


@named(
    "near, far, classes, seconds",
    {
        "two copies straight: a stage more has more latency": (3.0, 9.0, [(0, {2, 3}, 1)], 9 + 2),
        "half of the rows by each NIC, in stages of 2 s or of 1, 2 and 1": (
            1.0,
            2.0,
            [(0, {2, 3}, 12)],
            4 + 6,
        ),
        "one row after the other": (1.0, 2.0, [(0, {2}, 3)], 2 + 3),
    },
)
def test_bounds_worked_out_by_hand(near: float, far: float, classes: list, seconds: float):
    bound = stage_times(Relation.from_classes(4, classes), two_machines(near, far), GB).bound()
    assert bound.seconds == pytest.approx(seconds)


def test_machines_on_one_switch_are_one():
    assert machines_of(preset("gb200_nvl72x2")).tolist() == [0] * 72 + [1] * 72

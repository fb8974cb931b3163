"""`optimal` goes on where `auto` ends: never slower, and never with a weaker bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.executed import executed_seconds
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import Connection, Device, Topology, resolve_topology
from tests.support.random_machines import instances
from tests.support.samples import examples, matrix, named, slow

ROUNDING = 1.0 + 1e-9


def require_order(relation: Relation, topology: Topology, options: PlanOptions) -> None:
    auto = make_plan(relation, topology, "auto", options)
    best = make_plan(relation, topology, "optimal", options)
    slower = best.predicted_seconds > auto.predicted_seconds * ROUNDING
    assert not slower or executed_seconds(best) <= 1.01 * executed_seconds(auto)
    assert auto.lower_bound_seconds <= best.lower_bound_seconds * ROUNDING
    if auto.direct_seconds is not None:
        assert auto.predicted_seconds <= auto.direct_seconds * ROUNDING


@pytest.mark.slow
@examples(3, 40)
@given(instances(), st.sampled_from([4, 512, 1 << 20]))
def test_on_random_machines(instance: tuple[Relation, Topology], row_bytes: int):
    relation, topology = instance
    require_order(relation, topology, PlanOptions(row_bytes=row_bytes))


@named("gap", {"closest": 0.0, "rough": 0.05})
@pytest.mark.parametrize(
    "machine, shape, scale",
    [
        slow("dgx1", "web-google", 0.002),
        ("pcie8", "reddit", 0.0005),
        matrix("dgx1x2", "wiki-talk", 0.001),
    ],
)
def test_on_machines_of_the_table(machine: str, shape: str, scale: float, gap: float):
    topology = resolve_topology(machine)
    relation = synthetic_relation(shape, topology.num_devices, scale=scale)
    require_order(relation, topology, PlanOptions(gap=gap))


def test_where_the_greedy_is_asked():
    """Latencies leave the bound far below, so `auto` asks SPST, and `optimal` may not do without."""
    devices = tuple(Device(f"d{r}") for r in range(5))
    wires = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 3)]
    connections = tuple(
        Connection(f"c{i}", "NV", f"d{a}", f"d{b}", 10.0, 1e-5 * (1 + i % 3), "full")
        for i, (a, b) in enumerate(wires)
    )
    relation = Relation.from_classes(5, [(0, {1, 2, 3, 4}, 40), (2, {0, 4}, 90), (3, {0, 1}, 15)])
    require_order(relation, Topology("ring", devices, connections), PlanOptions(row_bytes=256))

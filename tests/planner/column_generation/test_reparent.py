"""Rows that one machine sends on to another, where the owner's machine has too much to send."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.column_generation.improvement import reparent
from dgcl.planner.column_generation.pricing.device_groups import grouped_bound, plan_states
from dgcl.planner.cost import GIGA
from dgcl.planner.methods import make_plan
from dgcl.topology import Topology, resolve_topology

FOUR = "dgx1x4"


def machines_of(topology: Topology) -> np.ndarray:
    return np.array([device.machine for device in topology.devices])


def one_to_all(rows: int) -> Relation:
    """Each device of machine 0 has rows for one device of every other machine, the others one row each way."""
    classes = [(r, {8 + r, 16 + r, 24 + r}, rows) for r in range(8)]
    return Relation.from_classes(32, [*classes, *((8 + r, {r}, 1) for r in range(24))])


def test_groups_alone_need_as_long_as_all_copies_take_to_leave():
    """Each machine of the cluster has one NIC; the rows of 8 devices leave over it three times."""
    topology, relation = resolve_topology(FOUR), one_to_all(1000)
    nic = max(c.bandwidth for c in topology.connections if c.kind == "IB")
    assert grouped_bound(plan_states(relation, topology)) == pytest.approx(8 * 3 * 1000 / nic)


def test_copies_go_on_from_the_machines_that_have_the_row():
    topology, relation = resolve_topology(FOUR), one_to_all(1000)
    plan = make_plan(relation, topology, options=PlanOptions(row_bytes=100))  # proves delivery
    group_bound = grouped_bound(plan_states(relation, topology)) * 100 / GIGA
    assert plan.predicted_seconds < 0.8 * group_bound
    machine, trees = machines_of(topology), plan.trees
    owner = machine[relation.source[trees.tree_class]][trees.edge_tree()]
    sender, receiver = machine[trees.edge_src], machine[trees.edge_dst]
    assert ((sender != owner) & (receiver != owner) & (sender != receiver)).any()


def test_the_clock_is_looked_at_between_trees(monkeypatch):
    looks, pieces, edges = iter([0.0] * 5), [], reparent._reparent_edges
    monkeypatch.setattr(reparent, "time", SimpleNamespace(process_time=lambda: next(looks, np.inf)))
    monkeypatch.setattr(reparent, "TREES", 1)
    monkeypatch.setattr(reparent, "_reparent_edges", lambda *args: [pieces.append(args), edges(*args)][1])
    options = PlanOptions(time_limit=1e6)
    make_plan(one_to_all(1000), resolve_topology(FOUR), options=options)  # proves delivery
    assert len(pieces) == 4  # the first look is before all trees


@pytest.mark.slow
@settings(max_examples=4)
@given(st.integers(0, 2**32 - 1))
def test_plans_deliver_and_are_never_slower_than_direct(seed: int):
    """Uneven relations between four machines; make_plan proves every plan."""
    rng = np.random.default_rng(seed)
    busy = rng.integers(0, 32)
    classes = []
    for source in range(32):
        for _ in range(4):
            dests = set(rng.permutation(32)[: rng.integers(1, 12)].tolist()) - {source}
            if dests:
                classes.append((source, dests, int(rng.integers(1, 200 if source // 8 == busy // 8 else 40))))
    plan = make_plan(Relation.from_classes(32, classes), resolve_topology(FOUR))
    assert plan.direct_seconds is not None
    assert plan.lower_bound_seconds <= plan.predicted_seconds <= plan.direct_seconds

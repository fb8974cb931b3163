"""Plans for devices in groups: bundles, and plans by machines that are improved."""

from collections import Counter

import numpy as np
import pytest

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.column_generation.master.fractional import Problem, make_problem
from dgcl.planner.column_generation.pricing.flows import Routes
from dgcl.planner.column_generation.pricing.groups import plan_states
from dgcl.planner.column_generation.rounding.bundles import make_bundles
from dgcl.planner.cost import GIGA
from dgcl.planner.methods import make_plan
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.latencies import without_latencies
from tests.samples import matrix

ROW_BYTES = 512
UNIT = ROW_BYTES / GIGA


def problem_of(relation: Relation, topology: Topology) -> Problem:
    arrays = topology.arrays()
    ones, hop = np.ones(arrays.num_links), np.full(arrays.num_links, 1e-9)
    routes = Routes(arrays.link_ptr, arrays.link_directions, 1.0 / arrays.bandwidth, ones, hop)
    return make_problem(plan_states(relation, topology), routes)


@pytest.fixture(scope="module")
def drawn() -> Relation:
    return synthetic_relation("reddit", 32, scale=0.02)


def test_bundles_hold_every_row_once_for_each_group(drawn: Relation):
    space = plan_states(drawn, resolve_topology("dgx_a100x4"))
    bundles = make_bundles(space)
    wanted: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for c in range(drawn.num_classes):
        for group in space.groups:
            part = tuple(sorted(set(drawn.dest_ranks(c)) & set(group.tolist())))
            if part:
                wanted[int(drawn.source[c]), part] += int(drawn.count[c])
    found = {
        (int(s), tuple(d for d in range(32) if int(mask[0]) >> d & 1)): int(n)
        for s, mask, n in zip(bundles.source, bundles.dests, bundles.count, strict=True)
    }
    assert found == wanted
    assert (bundles.number[bundles.source, bundles.set_] == np.arange(len(found))).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine",
    ["hgx_h100x4", *(matrix(name) for name in ("dgx1x4", "dgx_a100x4"))],
)
def test_32_devices_are_planned_within_three_percent_and_equal_each_time(machine: str):
    relation, topology = (
        synthetic_relation("reddit", 32, scale=0.3),
        without_latencies(resolve_topology(machine)),
    )
    plan = make_plan(relation, topology, options=PlanOptions())
    assert plan.gap <= 0.03
    assert make_plan(relation, topology, options=PlanOptions()).fingerprint == plan.fingerprint


@pytest.mark.slow
def test_groups_that_send_each_other_nothing():
    """The bound between groups is 0 then; it was once divided by."""
    generator = np.random.default_rng(1)
    classes = []
    for source in np.repeat(np.arange(32), 8).tolist():
        group = np.arange(8) + source // 8 * 8
        dests = set(generator.choice(group, generator.integers(1, 5), replace=False).tolist()) - {source}
        classes += [(source, dests, int(generator.integers(1, 3000)))] if dests else []
    whole = resolve_topology("dgx1x4")
    machine = {device.name: device.machine for device in whole.devices}
    links = tuple(link for link in whole.links if machine[link.src] == machine[link.dst])
    group_bound = Topology("apart", whole.devices, whole.connections, links)
    plan = make_plan(Relation.from_classes(32, classes), group_bound, "auto", PlanOptions(time_limit=5.0))
    assert (plan.trees.edge_src // 8 == plan.trees.edge_dst // 8).all()
    assert 0 < plan.lower_bound_seconds <= plan.predicted_seconds
    assert plan.direct_seconds is not None
    assert plan.predicted_seconds <= plan.direct_seconds

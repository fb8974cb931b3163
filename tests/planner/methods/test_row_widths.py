"""The number of stages that `auto` chooses for a row width, against the best plan of every number of stages.

Where links have latency, K stages cost about alpha * K + row_bytes * T(K). The oracle is the integer program over all
stage-labelled trees of at most K stages, solved for every K on its own.
"""

import pytest

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.cost import predicted_seconds
from dgcl.planner.methods import make_plan
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import Topology, preset
from tests.support.optimal_plans import optimum
from tests.support.samples import named, slow
from tests.support.small_machines import known_answer_topology, small_topology, with_latency

WIDTHS = (1, 30, 40_000)
BESIDE_THIN_WIRES = small_topology(4, [(0, 1, 8.0), (1, 2, 8.0), (2, 3, 8.0), (0, 2, 2.0), (0, 3, 1.0)])
TWO_WAYS_ROUND = small_topology(4, [(0, 1, 4.0), (1, 3, 4.0), (0, 2, 4.0), (2, 3, 4.0), (0, 3, 1.0)])


@named(
    "topology, classes, within, stages",
    {
        "triangle": (with_latency(known_answer_topology(), 2e-6), [(0, {2}, 80)], 1e-6, [1, 1, 2]),
        "broadcast": slow(with_latency(BESIDE_THIN_WIRES, 1e-6), [(0, {1, 2, 3}, 60)], 1e-6, [1, 2, 3]),
        # Two short hops beat a long one for a single byte already; rows of 30 bytes would crowd them.
        "unlike latencies": (
            with_latency(TWO_WAYS_ROUND, 1e-6, 3e-6),
            [(0, {3}, 90), (3, {1, 2}, 20)],
            0.02,
            [2, 1, 3],
        ),
    },
)
def test_the_best_plan_of_any_number_of_stages_is_found(
    topology: Topology, classes: list[tuple[int, set[int], int]], within: float, stages: list[int]
):
    relation = Relation.from_classes(topology.num_devices, classes)
    chosen = []
    for row_bytes in WIDTHS:
        plan = make_plan(relation, topology, "auto", PlanOptions(row_bytes=row_bytes))
        best = [optimum(relation, topology, row_bytes, num_stages=k) for k in range(1, topology.num_devices)]
        assert min(best) * (1 - 1e-6) <= plan.predicted_seconds <= min(best) * (1 + within)
        assert best[plan.num_stages - 1] == pytest.approx(min(best), rel=1e-6)
        chosen.append(plan.num_stages)
    assert chosen == stages


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["dgx1", "pcie8"])
def test_no_plan_of_more_stages_where_one_of_fewer_is_faster(machine: str):
    """With a preset's own latencies: the plans made for other widths are other numbers of stages, priced here."""
    topology = preset(machine)
    relation = synthetic_relation("web-google", topology.num_devices, scale=0.02)
    plans = {
        width: make_plan(relation, topology, "auto", PlanOptions(row_bytes=width))
        for width in (4, 64, 1024, 4096, 2**17)
    }
    assert {plan.num_stages for plan in plans.values()} >= {1, 2}
    for width, plan in plans.items():
        assert plan.direct_seconds is not None
        assert plan.predicted_seconds <= plan.direct_seconds
        assert plan.gap < 0.05
        for other in plans.values():
            if other.num_stages < plan.num_stages:
                there = predicted_seconds(other.trees, topology.arrays(), width)
                assert plan.predicted_seconds <= there

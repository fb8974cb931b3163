"""Both exchanges of an aggregation, planned: rows and partial sums, with their costs and bounds."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from dgcl.graph import as_graph
from dgcl.placement.exchanges import EDGES
from dgcl.placement.placement_plans import AggregationPlan
from dgcl.placement.placement_strategy import EdgePlacement
from dgcl.planner import PlanOptions
from dgcl.program.strategy import Problem
from dgcl.topology import preset
from tests.support.exchanges import star

TOPOLOGY = "uniform4"


def planned(edges: str, graph: object, part: np.ndarray) -> AggregationPlan:
    problem = Problem(as_graph(graph), part, preset(TOPOLOGY), "auto", PlanOptions())
    return EdgePlacement(edges).planned(problem)


@pytest.mark.parametrize("edges", EDGES)
def test_plans_carry_what_the_exchanges_need(edges: str):
    rng = np.random.default_rng(3)
    graph = as_graph(rng.integers(0, 60, (2, 400)), 60)
    made = planned(edges, graph, rng.integers(0, 4, 60).astype(np.int32))
    assert (made.expand.relation.deliveries, made.folded.relation.deliveries) == made.exchanges.rows
    assert made.exchange_seconds == made.expand.predicted_seconds + made.fold.predicted_seconds
    assert made.expand.lower_bound_seconds <= made.expand.predicted_seconds * (1 + 1e-12)
    assert made.fold.bound.seconds <= made.fold.predicted_seconds * (1 + 1e-12)


def test_more_edges_than_can_be_numbered_are_refused(monkeypatch):
    graph, part = star(10)
    problem = Problem(graph, part, preset(TOPOLOGY), "auto", PlanOptions())
    plan = planned("cover", graph, part)
    for most, is_refused in ((2**31 - 1, False), (2**31, True)):
        full = replace(plan, exchanges=replace(plan.exchanges, edges=np.array([1, most, 0, 0])))
        monkeypatch.setattr(EdgePlacement, "planned", lambda *_, full=full: full)
        with (
            pytest.raises(ValueError, match="a rank would sum 2147483648 edges")
            if is_refused
            else nullcontext()
        ):
            EdgePlacement("cover").arrange(problem)


def test_nothing_travels_on_one_part():
    graph = as_graph(np.array([[0, 1], [1, 0]]), 2)
    made = planned("cover", graph, np.zeros(2, np.int32))
    assert made.exchange_seconds == 0

"""Both exchanges of an aggregation, planned: rows and partial sums, with their costs and bounds."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from dgcl.graph import as_graph
from dgcl.planner import PlanOptions
from dgcl.program.strategy import Problem
from dgcl.topology import preset
from dgcl.workers.exchanges import EDGES, exchanges_of, workers_of
from dgcl.workers.plans import AggregationPlan, fastest, plan_exchanges
from dgcl.workers.strategy import EdgePlacement
from tests.dgcl.workers.test_exchanges import star

TOPOLOGY = "uniform4"


def planned(edges: str, graph: object, part: np.ndarray) -> AggregationPlan:
    whole = as_graph(graph)
    exchanges = exchanges_of(whole, part, workers_of(edges, whole, part, 4), 4)
    return plan_exchanges(exchanges, preset(TOPOLOGY))


@pytest.mark.parametrize("edges", EDGES)
def test_plans_carry_what_the_exchanges_need(edges: str):
    rng = np.random.default_rng(3)
    graph = as_graph(rng.integers(0, 60, (2, 400)), 60)
    made = planned(edges, graph, rng.integers(0, 4, 60).astype(np.int32))
    assert (made.expand.relation.deliveries, made.folded.relation.deliveries) == made.exchanges.rows
    assert made.exchange_seconds == made.expand.predicted_seconds + made.fold.predicted_seconds
    assert made.expand.lower_bound_seconds <= made.expand.predicted_seconds * (1 + 1e-12)
    assert made.fold.bound.seconds <= made.fold.predicted_seconds * (1 + 1e-12)


def test_the_fastest_adds_the_sums_of_the_fullest_rank():
    graph, part = star(10)
    plans = {edges: planned(edges, graph, part) for edges in ("head", "cover")}
    assert fastest(plans) == "cover"
    # One rank sums all ten edges either way: the placement with fewer rows stays ahead.
    assert fastest(plans, edge_seconds=1.0) == "cover"
    assert plans["head"].seconds(1.0) == pytest.approx(10 + plans["head"].exchange_seconds)


def test_more_edges_than_can_be_numbered_are_refused():
    graph, part = star(10)
    problem = Problem(graph, part, preset(TOPOLOGY), "auto", PlanOptions())
    strategy, plan = EdgePlacement("cover"), planned("cover", graph, part)
    for most, is_refused in ((2**31 - 1, False), (2**31, True)):
        exchanges = replace(plan.exchanges, edges=np.array([1, most, 0, 0]))
        with (
            pytest.raises(ValueError, match="a rank would sum 2147483648 edges")
            if is_refused
            else nullcontext()
        ):
            strategy.lay_out(problem, "cover", "", replace(plan, exchanges=exchanges))


def test_nothing_travels_on_one_part():
    graph = as_graph(np.array([[0, 1], [1, 0]]), 2)
    made = planned("cover", graph, np.zeros(2, np.int32))
    assert made.exchange_seconds == 0

"""Both exchanges of an aggregation, planned: rows and partial sums, with their costs and bounds."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from dgcl.graph import as_graph
from dgcl.placement.placement_strategy import EdgePlacement
from dgcl.planner import PlanOptions
from dgcl.planner.fold import reverse_plan
from dgcl.program.strategy import Problem
from dgcl.topology import preset
from tests.support.exchanges import star


def problem_of(graph: object, part: np.ndarray) -> Problem:
    return Problem(as_graph(graph), part, preset("uniform4"), "auto", PlanOptions())


@pytest.mark.parametrize("edges", ["tail", "cover"])
def test_plans_carry_what_the_exchanges_need(edges: str):
    rng = np.random.default_rng(3)
    problem = problem_of(as_graph(rng.integers(0, 60, (2, 400)), 60), rng.integers(0, 4, 60).astype(np.int32))
    strategy = EdgePlacement(edges)
    made, (exchanges, _) = (
        strategy.arrange(problem),
        strategy.exchanges(problem.graph, problem.part, problem.topology),
    )
    assert (made.plan.relation.deliveries, made.partial.plan.relation.deliveries) == exchanges.rows
    assert made.plan.lower_bound_seconds <= made.plan.predicted_seconds * (1 + 1e-12)
    fold = reverse_plan(made.partial.plan)
    assert fold.bound.seconds <= fold.predicted_seconds * (1 + 1e-12)


def test_more_edges_than_can_be_numbered_are_refused(monkeypatch):
    graph, part = star(10)
    problem, strategy = problem_of(graph, part), EdgePlacement("cover")
    exchanges, excess = strategy.exchanges(graph, part, problem.topology)
    for most, is_refused in ((2**31 - 1, False), (2**31, True)):
        full = replace(exchanges, edges=np.array([1, most, 0, 0]))
        monkeypatch.setattr(EdgePlacement, "exchanges", lambda *_, full=full: (full, excess))
        with (
            pytest.raises(ValueError, match="a rank would sum 2147483648 edges")
            if is_refused
            else nullcontext()
        ):
            strategy.arrange(problem)


def test_nothing_travels_on_one_part():
    graph = np.array([[0, 1], [1, 0]])
    made = EdgePlacement("cover").arrange(problem_of(graph, np.zeros(2, np.int32)))
    assert made.plan.predicted_seconds == 0
    assert "0 rows and 0 partial sums" in made.why

"""The strategy of a grid: both exchanges of slices of rows planned, and each rank's edges laid out.

Called by `dgcl/advisor/spelling` and `dgcl/options`. Free to change while sums are those of one device
(`tests/dgcl/grid/test_slices.py`).
"""

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgcl.graph import Graph
from dgcl.grid.grid import Grid
from dgcl.grid.grid_edges import edges_on_grid
from dgcl.grid.grid_plans import GridPlan, PlanOfClasses, plan_grid, plan_items
from dgcl.grid.items import expand_demand, fold_demand
from dgcl.grid.needs import Needs, find_needs, with_own
from dgcl.placement.exchanges import imbalance_of
from dgcl.planner.plan import Plan
from dgcl.planner.reading.render import seconds, size
from dgcl.program.exchange import HALO, ROWS, SLICES
from dgcl.program.strategy import Arrangement, Planned, Problem, Strategy
from dgcl.relation.classes import ItemClasses

#: What a communicator calls the placement of edges of a grid.
GRID = "grid"

_log = logging.getLogger("dgcl")


def bytes_of_edge(grid: Grid, graph: Graph) -> int:
    """Bytes that a rank holds for each of its edges: the source, and its place where that does not follow."""
    return 12 if grid.depth > 1 or graph.edge_ids is not None else 4


@dataclass(frozen=True)
class GridPlacement(Strategy):
    """Sums slices of rows where a grid says; a :class:`~dgcl.program.strategy.Strategy`.

    Attributes:
        grid: Of as many ranks as there are.
    """

    grid: Grid

    @property
    def block(self) -> int:
        """How many consecutive ranks share a part of the grid: their vertices are to be close to each other."""
        return self.grid.depth * self.grid.slices

    def first_plan(self) -> Mapping[str, Any]:
        """What the plan of the expand depends on."""
        return self._depends_on(HALO)

    def arrange(self, problem: Problem) -> Arrangement:
        """Plan both exchanges.

        Raises:
            ValueError: Unknown method, or a rank would sum 2**31 edges or more.
            NoWayBackError: Partial sums would travel over a link that has none the other way.
        """
        return self.lay_out(problem, self.planned(problem))

    def lay_out(self, problem: Problem, plan: GridPlan) -> Arrangement:
        """What :meth:`arrange` makes of the plans of this grid; raises as that does."""
        most = int(plan.needs.edges.max())
        if most >= 2**31:
            raise ValueError(
                f"grid ({self.grid}): a rank would sum {most} edges, at most {2**31 - 1} are possible; use more parts"
            )
        needs, why = plan.needs, self._summary(plan, problem.graph)
        _log.info("%s", why)  # before the edges are held
        return Arrangement(
            plan.expand.classes,
            plan.expand.plan,
            functools.partial(edges_on_grid, problem.graph, problem.part, self.grid),
            why,
            placement=GRID,
            partial=plan.folded,
            more=self._of_whole_slices(problem, needs),
            grid=(self.grid.parts, self.grid.depth, self.grid.slices),
        )

    def planned(self, problem: Problem) -> GridPlan:
        """The plans of both exchanges, from the store where it has them.

        Raises:
            ValueError, NoWayBackError: As :meth:`arrange`.
        """
        needs = find_needs(problem.graph, problem.part, self.grid)
        arguments = (problem.topology, problem.method, problem.options, self._source(problem))
        return plan_grid(needs, *arguments)

    def _of_whole_slices(self, problem: Problem, needs: Needs) -> dict[str, Planned]:
        """The exchanges of whole slices of a part, where they are others than those of an aggregation."""
        if self.grid.depth > 1 or self.grid.slices == 1:
            return {}
        whole, source = with_own(needs), self._source(problem)
        demands = {}
        if not np.array_equal(whole.readers, needs.readers):
            demands[SLICES] = expand_demand(whole)
        if not np.array_equal(whole.summers, needs.summers):
            demands[ROWS] = fold_demand(whole)
        return {
            name: plan_items(demand, name, problem.topology, problem.method, problem.options, source)
            for name, demand in demands.items()
        }

    def _source(self, problem: Problem) -> PlanOfClasses:
        """The store of plans, for exchanges of this grid."""

        def plan(classes: ItemClasses, exchange: str, make: Callable[[], Plan]) -> Plan:
            return problem.plan(classes.relation, make, **self._depends_on(exchange))

        return plan

    def _depends_on(self, exchange: str) -> dict[str, Any]:
        return {"grid": str(self.grid), "exchange": exchange}

    def _summary(self, plan: GridPlan, graph: Graph) -> str:
        """The grid in words."""
        grid, edges = self.grid, plan.needs.edges_of_ranks
        expanded, folded = (each.plan.relation.deliveries for each in (plan.expand, plan.folded))
        held = (
            f"a rank holds {edges.mean():.0f} edges, the fullest {imbalance_of(edges):.2f} times as many in"
            f" {size(int(edges.max()) * bytes_of_edge(grid, graph))}"
        )
        return (
            f"grid ({grid}): {grid.parts} part(s), depth {grid.depth}, {grid.slices} slice(s) of a row; predicted"
            f" {seconds(plan.exchange_seconds)} of exchange in an aggregation, {expanded} slices of"
            f" rows and {folded} partial sums; {held}"
        )

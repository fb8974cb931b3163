"""The strategy of a grid: both exchanges of slices of rows planned, and each rank's edges laid out."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dgcl.grid.grid import Grid
from dgcl.grid.items import ItemDemand, expand_demand, fold_demand
from dgcl.grid.local_graphs import build_grid_graphs
from dgcl.grid.needs import NEEDS, Needs, find_needs, with_own
from dgcl.planner.fold import reverse_plan
from dgcl.planner.methods import make_plan
from dgcl.program.exchange import HALO, PARTIAL, ROWS, SLICES
from dgcl.program.strategy import Arrangement, PartialSums, Planned, Problem
from dgcl.topology import Topology

__all__ = ["GRID", "GridPlacement"]

#: What a communicator calls the placement of edges of a grid.
GRID = "grid"


@dataclass(frozen=True)
class GridPlacement:
    """Sums slices of rows where a grid says; a :class:`~dgcl.program.strategy.Strategy`.

    Attributes:
        grid: Of as many ranks as there are.
        needs: "sparse": what edges need travels; "all": every row to every rank that may need it.
    """

    grid: Grid
    needs: str = "sparse"

    @property
    def block(self) -> int:
        """How many consecutive ranks share a part of the grid: their vertices are to be close to each other."""
        return self.grid.depth * self.grid.slices

    def check(self) -> None:
        """Refuse settings that cannot be.

        Raises:
            ValueError: Naming the setting.
        """
        if self.needs not in NEEDS:
            raise ValueError(f"grid: needs must be one of {', '.join(NEEDS)} (got {self.needs!r})")

    def first_plan(self, topology: Topology, method: str) -> Mapping[str, Any]:
        """What the plan of the expand depends on."""
        del topology, method
        return self._depends_on(HALO)

    def arrange(self, problem: Problem) -> Arrangement:
        """Plan both exchanges.

        Raises:
            ValueError: Unknown method, or a rank would sum 2**31 edges or more.
            NoWayBackError: Partial sums would travel over a link that has none the other way.
        """
        needs = find_needs(problem.graph, problem.part, self.grid, self.needs)
        most = int(needs.edges.max())
        if most >= 2**31:
            raise ValueError(
                f"grid ({self.grid}): a rank would sum {most} edges, at most {2**31 - 1} are possible; use more parts"
            )
        expand = self._planned(problem, expand_demand(needs), HALO)
        fold = self._planned(problem, fold_demand(needs), PARTIAL)
        reverse_plan(fold.plan)  # refuses links without a way back
        local_graphs = functools.partial(build_grid_graphs, problem.graph, problem.part, self.grid)
        return Arrangement(
            expand.demand,
            expand.classes,
            expand.plan,
            problem.graph,
            self._summary(needs),
            partial=PartialSums(fold.demand, fold.classes, fold.plan, GRID, local_graphs),
            more=self._of_whole_slices(problem, needs),
            grid=(self.grid.parts, self.grid.depth, self.grid.slices),
        )

    def _of_whole_slices(self, problem: Problem, needs: Needs) -> dict[str, Planned]:
        """The exchanges of whole slices of a part, where they are others than those of an aggregation."""
        if self.grid.depth > 1 or self.grid.slices == 1:
            return {}
        whole, more = with_own(needs), {}
        if not np.array_equal(whole.readers, needs.readers):
            more[SLICES] = self._planned(problem, expand_demand(whole), SLICES)
        if not np.array_equal(whole.summers, needs.summers):
            more[ROWS] = self._planned(problem, fold_demand(whole), ROWS)
        return more

    def _planned(self, problem: Problem, demand: ItemDemand, exchange: str) -> Planned:
        """The plan of an exchange, of rows as wide as a slice, from the store where it has it."""
        classes = demand.classes()
        options = replace(problem.options, row_bytes=self.grid.slice_width(problem.options.row_bytes))
        plan = problem.plans.plan(
            problem.part,
            classes.relation,
            lambda: make_plan(classes.relation, problem.topology, problem.method, options),
            self._depends_on(exchange),
        )
        return Planned(demand, classes, plan)

    def _depends_on(self, exchange: str) -> dict[str, Any]:
        return {"grid": str(self.grid), "needs": self.needs, "exchange": exchange}

    def _summary(self, needs: Needs) -> str:
        """The grid in words."""
        grid, edges = self.grid, needs.edges_of_ranks
        mean = max(float(edges.mean()), 1.0)
        return (
            f"grid ({grid}) was asked for: {grid.parts} part(s), depth {grid.depth}, {grid.slices} slice(s) of a row; a"
            f" rank holds {edges.mean():.0f} edges on average, the fullest {edges.max() / mean:.2f} times as many"
        )

"""The strategy of a grid: plans both of its exchanges of slices of rows, and lays out each rank's edges.

The two are the expand of sources and the fold of partial sums; slices are planned with their own row size. With a
depth of 1 those of whole slices (``comm.slices``, ``comm.rows``) are planned as well, where they are others.

Called by `dgcl/advisor/spelling` and `dgcl/options`. Free to change while aggregations equal the dense product
(`tests/dgcl/grid/test_aggregation.py`), slices go and come back (`tests/dgcl/grid/test_slices.py`), and plans come from
the cache (`tests/dgcl/grid/test_layers.py`).
"""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dgcl.grid.grid import Grid
from dgcl.grid.grid_edges import edges_on_grid
from dgcl.grid.items import ItemDemand, expand_demand, fold_demand
from dgcl.grid.needs import Needs, find_needs, with_own
from dgcl.placement.exchanges import imbalance_of
from dgcl.planner.fold import reverse_plan
from dgcl.planner.reading.render import seconds, size
from dgcl.program.exchange import HALO, PARTIAL, ROWS, SLICES
from dgcl.program.strategy import Arrangement, Planned, Problem, Strategy

_log = logging.getLogger("dgcl")


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
        grid, graph = self.grid, problem.graph
        needs = find_needs(graph, problem.part, grid)
        edges = needs.edges_of_ranks
        most = int(edges.max())
        if most >= 2**31:
            raise ValueError(
                f"grid ({grid}): a rank would sum {most} edges, at most {2**31 - 1} are possible; use more parts"
            )
        expand = self._planned(problem, HALO, expand_demand(needs))
        folded = self._planned(problem, PARTIAL, fold_demand(needs))
        taken = expand.plan.predicted_seconds + reverse_plan(folded.plan).predicted_seconds
        expanded, summed = (each.classes.relation.deliveries for each in (expand, folded))
        edge_bytes = 12 if grid.depth > 1 or graph.edge_ids is not None else 4  # a place that does not follow
        why = (
            f"grid ({grid}): {grid.parts} part(s), depth {grid.depth}, {grid.slices} slice(s) of a row; predicted"
            f" {seconds(taken)} of exchange in an aggregation, {expanded} slices of"
            f" rows and {summed} partial sums; a rank holds {edges.mean():.0f} edges, the fullest"
            f" {imbalance_of(edges):.2f} times as many in {size(most * edge_bytes)}"
        )
        _log.info("%s", why)  # before the edges are held
        return Arrangement(
            expand.classes,
            expand.plan,
            functools.partial(edges_on_grid, graph, problem.part, grid),
            why,
            placement="grid",
            partial=folded,
            more=self._of_whole_slices(problem, needs),
            grid=(grid.parts, grid.depth, grid.slices),
        )

    def _of_whole_slices(self, problem: Problem, needs: Needs) -> dict[str, Planned]:
        """The exchanges of whole slices of a part, where they are others than those of an aggregation."""
        if self.grid.depth > 1 or self.grid.slices == 1:
            return {}
        whole = with_own(needs)
        demands = {}
        if not np.array_equal(whole.readers, needs.readers):
            demands[SLICES] = expand_demand(whole)
        if not np.array_equal(whole.summers, needs.summers):
            demands[ROWS] = fold_demand(whole)
        return {name: self._planned(problem, name, demand) for name, demand in demands.items()}

    def _planned(self, problem: Problem, exchange: str, demand: ItemDemand) -> Planned:
        """One exchange of slices of rows."""
        classes, options = demand.classes(), problem.options
        options = replace(options, row_bytes=self.grid.slice_width(options.row_bytes))
        plan = replace(problem, options=options).plan(classes.relation, **self._depends_on(exchange))
        return Planned(classes, plan)

    def _depends_on(self, exchange: str) -> dict[str, Any]:
        return {"grid": str(self.grid), "exchange": exchange}

"""``grid="auto"``: the grid that is predicted fastest and fits, whole rows among them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dgcl.graph import Graph
from dgcl.grid.counts import Counts, count_needs
from dgcl.grid.grid import Grid, legal_grids
from dgcl.grid.needs import find_needs
from dgcl.grid.plans import EdgeSeconds, bound_of_grid
from dgcl.grid.strategy import GridPlacement, bytes_of_edge
from dgcl.planner.fold import NoWayBackError
from dgcl.planner.reading.render import seconds, size
from dgcl.program.strategy import Arrangement, Problem
from dgcl.topology import Topology
from dgcl.workers.strategy import EdgePlacement

__all__ = ["GridChoice", "bytes_held"]

_log = logging.getLogger("dgcl")

#: Bytes of the tables of programs and of degrees for each item that a rank owns or receives, about.
_TABLE_BYTES = 48


@dataclass(frozen=True)
class GridChoice:
    """Takes the grid with the least predicted seconds of both exchanges and of the sums of the fullest rank.

    A :class:`~dgcl.program.strategy.Strategy`. All legal grids are counted and have a bound that no plan beats; they
    are planned from the lowest bound on, as long as a bound is below the fastest plan so far.

    Attributes:
        whole: Lays out whole rows, the grid (P,1,1).
        memory_limit: Bytes that a rank may take for edges and rows; None: no bound.
        work: What summing an edge takes.
    """

    whole: EdgePlacement = field(default_factory=EdgePlacement)
    memory_limit: int | None = None
    work: EdgeSeconds = EdgeSeconds()  # noqa: RUF009 (it is frozen)

    def check(self) -> None:
        """Refuse settings that cannot be.

        Raises:
            ValueError: Naming the setting.
        """
        self.whole.check()

    def first_plan(self, topology: Topology, method: str) -> Mapping[str, Any]:
        """What the plan that is asked for first depends on: that of whole rows."""
        return self.whole.first_plan(topology, method)

    def arrange(self, problem: Problem) -> Arrangement:
        """Plan what may be fastest, and take what is.

        Raises:
            ValueError: Unknown method.
            MemoryError: No grid fits, or none has links for its partial sums.
        """
        row_bytes, world_size = problem.options.row_bytes, problem.topology.num_devices
        num_owned = np.bincount(problem.part, minlength=world_size)
        bounds: list[tuple[float, Grid]] = []
        predicted: dict[Grid, float] = {}
        too_big: dict[Grid, int] = {}
        best: Callable[[], Arrangement] | None = None
        for grid in legal_grids(world_size):
            needs = find_needs(problem.graph, problem.part, grid)
            counts = count_needs(needs)
            held = bytes_held(problem.graph, num_owned, counts, row_bytes)
            if self.memory_limit is not None and held > self.memory_limit:
                too_big[grid] = held
            elif grid.is_1d:
                predicted[grid], best = self._whole_rows(problem)
            else:
                sums = int(counts.edges.max()) * self.work.at(grid.slice_width(row_bytes))
                bounds.append((bound_of_grid(needs, problem.topology, problem.options) + sums, grid))
        tried = 0
        for bound, grid in sorted(bounds):
            if bound >= min(predicted.values(), default=np.inf):
                break
            tried += 1
            with suppress(NoWayBackError):
                placement = GridPlacement(grid)
                planned = placement.planned(problem)
                if planned.seconds(self.work) < min(predicted.values(), default=np.inf):
                    best = functools.partial(placement.lay_out, problem, planned)
                predicted[grid] = planned.seconds(self.work)
        if best is None:
            raise MemoryError(self._nothing_fits(too_big))
        why = self._why(predicted, len(bounds) - tried, too_big)
        _log.info("%s", why)
        arrangement = best()
        return replace(arrangement, why="; ".join(filter(None, (why, arrangement.why))))

    def _whole_rows(self, problem: Problem) -> tuple[float, Callable[[], Arrangement]]:
        """Seconds of an aggregation of whole rows, and what lays it out."""
        placement = replace(self.whole, edge_seconds=self.work.at(problem.options.row_bytes))
        edges, planned = placement.choose(problem)
        why = "" if edges == "head" else "{}: {}"
        return planned.seconds(placement.edge_seconds), functools.partial(
            placement.lay_out, problem, edges, why, planned
        )

    def _why(self, predicted: dict[Grid, float], num_slower: int, too_big: dict[Grid, int]) -> str:
        """The choice in words."""
        first, *others = (
            f"({grid}) {seconds(predicted[grid])}"
            for grid in sorted(predicted, key=lambda grid: predicted[grid])
        )
        reasons = [f"auto chose grid {first} an aggregation"]
        if others:
            reasons.append(f"with {', '.join(others[:3])}")
        if num_slower:
            reasons.append(f"{num_slower} grid(s) cannot be faster, by their bounds")
        if too_big:
            reasons.append(f"{len(too_big)} do not fit in {size(self.memory_limit or 0)}")
        return "; ".join(reasons)

    def _nothing_fits(self, too_big: dict[Grid, int]) -> str:
        least = min(too_big, key=lambda grid: too_big[grid])
        return (
            f"grid='auto': no grid fits in memory_limit={size(self.memory_limit or 0)}; grid ({least}) takes least,"
            f" {size(too_big[least])} on the fullest rank: raise the limit to that, or use more ranks"
        )


def bytes_held(graph: Graph, num_owned: np.ndarray, counts: Counts, row_bytes: int) -> int:
    """Bytes of the fullest rank, about: edges, rows of an aggregation, and the tables behind them.

    Args:
        graph: The graph.
        num_owned: ``(P,)`` vertices that each rank owns.
        counts: Of a grid.
        row_bytes: Of a whole row.
    """
    grid = counts.grid
    items = num_owned * grid.slices + counts.expanded + counts.folded
    return int(
        (
            items * (grid.slice_width(row_bytes) + _TABLE_BYTES) + counts.edges * bytes_of_edge(grid, graph)
        ).max()
    )

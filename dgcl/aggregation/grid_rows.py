"""Whole rows as slices of rows and back, on a communicator with a grid."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from dgcl.grid.grid import Grid
from dgcl.ranks.handle import Handle
from dgcl.relation.local_graph import LocalGraph

_log = logging.getLogger("dgcl")


class GridRows(Handle):
    """The part of a communicator that knows of its grid (:mod:`dgcl.grid`)."""

    rank: int
    local: LocalGraph
    edges: str
    grid: Grid
    _told_of_idle_ranks = False

    def to_items(self, rows: Tensor) -> Tensor:
        """Rows as items: ``(n, F)`` to ``(n * slices, slice width)``, row i's slices one behind the other.

        A view where slices divide F; else zeros fill the last ones up.
        """
        slices, width = self.grid.slices, rows.shape[1]
        if slices == 1:
            return rows
        if 0 < width < slices and not self._told_of_idle_ranks:
            self._told_of_idle_ranks = True
            if self.rank == 0:
                idle = slices - width
                _log.info("rows of %d element(s) in %d slices: %d of them are empty", width, slices, idle)
        each = self.grid.slice_width(width)
        if each * slices != width:
            rows = torch.nn.functional.pad(rows, (0, each * slices - width))
        return rows.reshape(len(rows) * slices, each)

    def from_items(self, items: Tensor, width: int) -> Tensor:
        """The inverse: ``(n * slices, slice width)`` to ``(n, width)``, what fills slices up cut off."""
        slices = self.grid.slices
        if slices == 1:
            return items
        return items.reshape(len(items) // slices, slices * items.shape[1])[:, :width]

    def require_neighbourhoods(self, what: str) -> None:
        """Raise where this rank does not have all in-edges of its vertices.

        Args:
            what: What needs them.

        Raises:
            ValueError: With the ways out.
        """
        if self.edges == "head":
            return
        here = f"edges={self.edges!r}"
        if self.edges == "grid":
            here = f"grid ({self.grid})"
        slices = ""
        if self.edges == "grid" and self.grid.depth == 1:
            slices = ", run it on comm.slice_graph() with the rows of comm.slices(), bring them back by comm.rows()"
        raise ValueError(
            f"{what} needs all in-edges of a rank's vertices, and with {here} rank {self.rank} has"
            f" the {self.local.num_edges} edges that it sums: the others' sums for its vertices come as partial"
            f" sums. Either aggregate with comm.aggregator() or a layer of dgcl.nn{slices}, or build the communicator"
            " with edges='head'"
        )

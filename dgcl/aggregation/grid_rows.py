"""Whole rows as slices of rows and back, on a communicator with a grid.

    >>> h = comm.slices(x)                       # this rank's slice of all rows of its part, then of those they read
    >>> h = conv(comm.slice_graph("pyg").pair(h), comm.slice_graph("pyg").edge_index)
    >>> x = comm.rows(h)                         # whole rows of this rank's vertices

At depth 1 a rank has, for one slice of the columns, the complete neighbourhoods of its whole part: any layer that
treats columns, or heads of attention, apart runs on them as it is.
"""

import logging
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from dgcl.aggregation.slice_places import SlicePlaces, find_places
from dgcl.grid.grid import Grid
from dgcl.program.layout import Layout
from dgcl.ranks.handle import Handle
from dgcl.ranks.tensors import require_tensors
from dgcl.relation.local_graph import LocalGraph

_log = logging.getLogger("dgcl")


class GridRows(Handle):
    """The part of a communicator that knows of its grid (:mod:`dgcl.grid`)."""

    rank: int
    local: LocalGraph
    layout: Layout
    layouts: Mapping[str, Layout]
    device: torch.device
    expand: Callable[..., Tensor]
    fold: Callable[..., Tensor]
    edges: str
    grid: Grid
    _told_of_idle_ranks = False
    _places: SlicePlaces | None = None

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
        rows = items.reshape(len(items) // slices, slices * items.shape[1])
        if rows.shape[1] == width:
            return rows
        return rows[:, :width].clone(memory_format=torch.contiguous_format)  # complex rows are views of pairs

    def slices(self, x: Tensor) -> Tensor:
        """This rank's slice of rows: of all vertices of its part, ascending by id, then of others that these read.

        Differentiable. Collective. :meth:`rows` is the adjoint of its first ``slice_graph(...).num_owned`` rows, and
        brings them back.

        Args:
            x: ``(num_owned, C)`` or ``(num_owned, C, *F)``, whole rows; C columns, or heads, are divided.

        Returns:
            ``(num_rows, C / slices, *F)``: columns ``[s * w, (s + 1) * w)`` of w = C / slices on a rank of slice s.
            Columns that slices do not divide are filled up with zeros; heads must be divided.

        Raises:
            ValueError: The depth is above 1, C heads are not divided by the slices, or a wrong shape.
        """
        places = self._slice_places("slices")
        require_tensors(x=x)
        if x.dim() < 2 or len(x) != self.layout.num_owned:
            raise ValueError(
                f"x must have shape (num_owned, C, ...) with num_owned = {self.layout.num_owned} (got {tuple(x.shape)})"
            )
        slices = self.grid.slices
        if x.dim() > 2 and x.shape[1] % slices:
            raise ValueError(
                f"x has {x.shape[1]} heads, which {slices} slices do not divide; choose a number of heads that is a"
                " multiple of it, or a grid with other slices"
            )
        heads = x.shape[1] // slices
        items = self.to_items(x) if x.dim() == 2 else x.reshape(len(x) * slices, heads, *x.shape[2:])
        return self.expand(items, places.expand).index_select(0, places.taken)

    def rows(self, h: Tensor) -> Tensor:
        """Slices back to whole rows: what a layer made of :meth:`slices`. Differentiable. Collective.

        Args:
            h: ``(num_rows, w, *F)``, this rank's slice of all vertices of its part; further rows are left out.

        Returns:
            ``(num_owned, slices * w, *F)``, columns slice by slice.

        Raises:
            ValueError: The depth is above 1, or a wrong shape.
        """
        places = self._slice_places("rows")
        require_tensors(h=h)
        if h.layout != torch.strided or h.device != self.device:
            raise ValueError(f"h must be a dense tensor on {self.device} (got {h.layout} on {h.device})")
        num_rows = len(places.put)
        if h.dim() < 2 or len(h) not in (num_rows, len(places.taken)):
            raise ValueError(
                f"h must hold the {num_rows} rows of this rank's part, of w columns each (got {tuple(h.shape)})"
            )
        layout = self.layouts[places.fold]
        held = h.new_zeros(layout.num_local, *h.shape[1:]).index_copy(0, places.put, h[:num_rows])
        items = self.fold(held, places.fold)
        return items.reshape(self.layout.num_owned, self.grid.slices * h.shape[1], *h.shape[2:])

    def are_slices(self, num_rows: int) -> bool:
        """Whether so many rows are this rank's :meth:`slices`, and not whole rows of its vertices."""
        if self._places is None or self.grid.slices == 1 or num_rows == self.layout.num_owned:
            return False
        return num_rows in (len(self._places.put), len(self._places.taken))

    def slice_neighbourhoods(self) -> LocalGraph:
        """The edges of this rank between rows of :meth:`slices`, made anew in each call. Collective.

        Raises:
            ValueError: The depth is above 1.
        """
        places, local, slices = self._slice_places("slice_graph"), self.local, self.grid.slices
        owned = np.stack([local.in_degrees, local.out_degrees], 1)[: local.num_owned]
        degrees = self.expand(torch.from_numpy(owned).to(self.device), places.expand)
        return places.local_graph(local, slices, degrees.index_select(0, places.taken).cpu().numpy())

    def _slice_places(self, what: str) -> SlicePlaces:
        if self.grid.depth > 1:
            raise ValueError(
                f"{what} needs complete neighbourhoods of a slice, and on grid ({self.grid}) they are spread over"
                f" {self.grid.depth} ranks; aggregate with comm.aggregator() or a layer of dgcl.nn, or choose a grid of"
                " depth 1"
            )
        if self.edges not in ("head", "grid"):
            self.require_neighbourhoods(what)
        if self._places is None:
            with torch.inference_mode(False):  # its indices are kept, and saved for backwards
                self._places = find_places(
                    self.grid.slice_of(self.rank), self.grid.slices, self.layouts, self.device
                )
        return self._places

    def require_neighbourhoods(self, what: str) -> None:
        """Raise where this rank does not have all in-edges of its vertices.

        Args:
            what: What needs them.

        Raises:
            ValueError: With the ways out.
        """
        if self.edges == "head":
            return
        here, instead = f"strategy={self.edges!r}", "with strategy='halo'"
        if self.edges == "grid":
            here, instead = f"grid ({self.grid})", "without a grid"
        slices = ""
        if self.edges == "grid" and self.grid.depth == 1:
            slices = ", run it on comm.slice_graph() with the rows of comm.slices(), bring them back by comm.rows()"
        raise ValueError(
            f"{what} needs all in-edges of a rank's vertices, and with {here} rank {self.rank} has"
            f" the {self.local.num_edges} edges that it sums: the others' sums for its vertices come as partial"
            f" sums. Either aggregate with comm.aggregator() or a layer of dgcl.nn{slices}, or build the communicator"
            f" {instead}"
        )

"""Finds a column slice's rows among the items that a rank exchanges, on a grid of depth 1.

An *item* is a slice of a row: slice s of vertex v is item v * slices + s (:mod:`dgcl.grid.grid`). With depth 1 a rank
has all in-edges of its slice, so layers that know no slices can run on ``comm.slice_graph()`` with ``comm.slices(x)``.
Called by `dgcl/communicator`. Free to change while rows go to slices and back unchanged, each way the other's adjoint,
and layers give the slice's columns of one device (`tests/dgcl/grid/test_slices.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.program.exchange import HALO, PARTIAL, ROWS, SLICES
from dgcl.program.row_layout import Layout
from dgcl.relation.local_graph import LocalGraph, pointer


@dataclass(frozen=True, eq=False)
class SlicePlaces:
    """The rows of a rank's slice: all vertices of its part, ascending, then others that these read.

    Attributes:
        part_ids, other_ids: ``(n,)`` and ``(m,)`` int64, their vertices.
        expand, fold: Names of the exchanges that bring items, and take them back.
        taken: ``(n + m,)`` int64, the local row of each in the expand.
        put: ``(n,)`` int64, the local row of each vertex of the part in the fold.
    """

    part_ids: NDArray[np.int64]
    other_ids: NDArray[np.int64]
    expand: str
    fold: str
    taken: Tensor
    put: Tensor

    def local_graph(self, items: LocalGraph, slices: int, degrees: NDArray[np.int64]) -> LocalGraph:
        """The edges of a rank between these rows; the vertices of the part are its owned rows, the others its halo.

        In-edges of a vertex keep the order of the graph. Memory: 16 bytes for each edge, beside those that are given.

        Args:
            items: The rank's edges between items.
            slices: Items of a row.
            degrees: ``(n + m, 2)`` in- and out-degrees of these rows in the whole graph.
        """
        ids = np.concatenate([self.part_ids, self.other_ids])
        order = np.argsort(ids)

        def rows_of(item_ids: NDArray[np.int64]) -> NDArray[np.int64]:
            return order[np.searchsorted(ids[order], item_ids // slices)]

        heads = rows_of(np.concatenate([items.owned_ids, items.partial_ids]))[items.heads]
        edges = np.argsort(heads, kind="stable")
        return LocalGraph(
            owned_ids=self.part_ids,
            halo_ids=self.other_ids,
            indptr=pointer(np.bincount(heads, minlength=len(self.part_ids))),
            indices=rows_of(items.local_ids)[items.indices[edges]].astype(np.int32),
            edge_first=np.zeros(len(self.part_ids), np.int64),
            edge_order=items.edge_ids[edges],
            in_degrees=degrees[:, 0],
            out_degrees=degrees[:, 1],
            num_nodes_global=items.num_nodes_global,
        )


def find_places(s: int, slices: int, layouts: Mapping[str, Layout], device: torch.device) -> SlicePlaces:
    """The rows of a rank of slice s, by the layouts of its exchanges."""
    expand = SLICES if SLICES in layouts else HALO
    fold = next((name for name in (ROWS, PARTIAL) if name in layouts), HALO)
    brought, back = layouts[expand], layouts[fold]
    mine = np.arange(s, brought.num_owned, slices)

    def vertices(layout: Layout) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of one layout the local rows that are of this slice, and their vertices."""
        rows = np.concatenate([mine, np.arange(layout.num_owned, layout.num_local)])
        return rows, layout.local_ids[rows] // slices

    put, part_ids = vertices(back)
    if fold == HALO:  # whole rows: a rank's part are its own vertices
        put, part_ids = put[: len(mine)], part_ids[: len(mine)]
    order = np.argsort(part_ids)
    part_ids, put = part_ids[order], put[order]
    rows, ids = vertices(brought)
    is_other = ~np.isin(ids, part_ids)
    by_id = np.argsort(ids)
    taken = rows[by_id[np.searchsorted(ids[by_id], part_ids)]]
    taken = np.concatenate([taken, rows[is_other]])
    return SlicePlaces(
        part_ids,
        ids[is_other],
        expand,
        fold,
        torch.from_numpy(taken).to(device),
        torch.from_numpy(put).to(device),
    )

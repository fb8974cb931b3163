"""Selects the edges that a rank of a grid sums.

Rank (r, k, s) sums the edges into the vertices of part r from those at depth k, whatever its slice s: sources are its
own items (slices of rows) of slice s and its halo items, heads its own items of slice s and those to which it
contributes partial sums. With a depth of 1 that is each neighbourhood whole.

Called by `grid_strategy`. Free to change while all ranks' sums together are the dense product, and edge values are
found at the places of the CSR's edges (`tests/dgcl/grid/test_aggregation.py`).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.grid.grid import Grid
from dgcl.relation.local_graph import RankEdges, edge_places, edges_into, pointer


def edges_on_grid(graph: Graph, owner: NDArray[np.int32], grid: Grid, rank: int) -> RankEdges:
    """The edges of a rank; ``owner``: ``(N,)``, the rank that owns each vertex."""
    edges = edges_into(graph, np.flatnonzero(grid.part_of(owner) == grid.part_of(rank)))
    here = grid.depth_of(owner[edges.sources]) == grid.depth_of(rank)
    begins, order = pointer(edges.degrees), edges.order
    if order is None and grid.depth > 1:
        order = edge_places(edges.first, begins)
    degrees = np.diff(pointer(here)[begins])
    summed = degrees > 0
    return replace(
        edges,
        heads=edges.heads[summed],
        degrees=degrees[summed],
        first=edges.first[summed],
        sources=edges.sources[here],
        order=None if order is None else order[here],
        slices=grid.slices,
        slice=grid.slice_of(rank),
    )

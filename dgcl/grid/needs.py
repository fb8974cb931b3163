"""Finds which parts of a grid read each vertex, and from which depths it is summed.

Both are bit masks, over parts or over depths, one for each vertex: all that a grid's exchanges depend on. A pass over
the edges finds each. They are the same for every slice, so nothing here grows with the number of slices.

Called by `grid_strategy`, `items` and `dgcl/advisor/counts`. Free to change while masks and edge counts are those of
brute force over edges (`tests/dgcl/grid/test_items.py`).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.grid.grid import Grid
from dgcl.relation.demand import empty_masks, group_masks


@dataclass(frozen=True, eq=False)
class Needs:
    """Who reads and who sums which vertex.

    Attributes:
        grid: The grid.
        owner: (N,) int32, the rank that owns each vertex.
        readers: (W, N) unsigned; bit r of vertex u: some edge leads from u to a vertex of part r, its own included.
        summers: (W, N) unsigned; bit k of vertex v: some edge leads to v from a vertex at depth k, its own included.
        edges: (parts, depth) int64, edges to a part from a depth; each of its slices' ranks sums all of them.
    """

    grid: Grid
    owner: NDArray[np.int32]
    readers: NDArray[Any]
    summers: NDArray[Any]
    edges: NDArray[np.int64]

    @property
    def edges_of_ranks(self) -> NDArray[np.int64]:
        """(P,) edges that each rank sums, and holds."""
        return np.repeat(self.edges.ravel(), self.grid.slices)


def find_needs(graph: Graph, owner: NDArray[np.int32], grid: Grid) -> Needs:
    """Find the needs of a graph in parts, by a pass over its edges for readers and one for depths.

    Time O(N + E), memory two masks for each vertex.

    Args:
        graph: N vertices.
        owner: (N,) int32, the rank of each vertex.
        grid: Of as many ranks.
    """
    part, summers = grid.part_of(owner), empty_masks(graph.num_nodes, grid.depth)
    edges = np.zeros((grid.parts, grid.depth), np.int64)
    if grid.depth == 1:
        in_degrees = graph.in_degrees()
        summers[0] = in_degrees > 0
        edges[:, 0] = np.bincount(part, in_degrees, grid.parts).astype(np.int64)
    else:
        from dgcl.grid.depth_kernels import mark_depths

        depth = grid.depth_of(owner).astype(np.min_scalar_type(grid.depth - 1))
        mark_depths(graph.indptr, graph.indices, part, depth, summers, edges)
    return Needs(grid, owner, group_masks(graph, part, grid.parts), summers, edges)


def with_own(needs: Needs) -> Needs:
    """The same, where every vertex is also read and summed by its own part: whole slices of a part.

    The depth is 1: at others no rank has a whole slice of a part.
    """
    part, readers = needs.grid.part_of(needs.owner), needs.readers.copy()
    bit = np.left_shift(readers.dtype.type(1), (part % 64).astype(readers.dtype), dtype=readers.dtype)
    readers[part // 64, np.arange(len(part))] |= bit
    return replace(needs, readers=readers, summers=np.ones_like(needs.summers))

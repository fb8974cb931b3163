"""The edges that each rank of a grid sums, in rows of items.

Rank (r, k, s) sums the edges into the vertices of part r from those at depth k, whatever its slice: sources are its own
items of slice s and its halo items, heads its own items of slice s and those to which it contributes. In-edges of a
head keep the order of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.grid.grid import Grid
from dgcl.program.strategy import Rows
from dgcl.relation.local_graph import LocalGraph, edge_places

__all__ = ["build_grid_graphs"]

#: Local row of a source that another depth sums, and of one that is not there.
_ELSEWHERE, _MISSING = -2, -1


def build_grid_graphs(
    graph: Graph,
    owner: NDArray[np.int32],
    grid: Grid,
    rows: Iterable[Rows],
) -> Iterator[LocalGraph]:
    """The local graphs of ranks, one at a time; ids of rows are those of items.

    Memory: 4 bytes for each edge that a rank holds (8 more where depth is above 1, or the user's edges were in another
    order), and 40 for each of its rows, beside what they are made from.

    Args:
        graph: N vertices.
        owner: (N,) int32, the rank that owns each.
        grid: The grid.
        rows: Of each rank, in the order of ranks, the items that it owns, those of its halo, and those to which it
            contributes, each as the programs number them.

    Raises:
        ValueError: A rank sums an edge of which it has no row.
    """
    from dgcl.relation.local_graph_kernels import take_rows

    in_degrees, out_degrees = graph.in_degrees(), graph.out_degrees()
    for rank, (owned, halo, partial) in enumerate(rows):
        s, slices = grid.slice_of(rank), grid.slices
        mine, others = owned[s::slices] // slices, partial // slices
        heads = np.concatenate([mine, others])
        row_of = np.full(graph.num_nodes, _MISSING, np.int32)
        row_of[grid.depth_of(owner) != grid.depth_of(rank)] = _ELSEWHERE
        row_of[mine] = np.arange(s, len(owned), slices)
        row_of[halo // slices] = np.arange(len(owned), len(owned) + len(halo))
        degree = graph.indptr[heads + 1] - graph.indptr[heads]
        first, indptr = graph.indptr[heads], np.concatenate([[0], np.cumsum(degree)])
        indices = np.empty(indptr[-1], np.int32)
        take_rows(graph.indptr, graph.indices, heads, row_of, indices)
        if (indices == _MISSING).any():
            raise ValueError(f"rank {rank} sums an edge of which it has no row")
        order = None
        if grid.depth > 1:
            here = indices != _ELSEWHERE
            order = edge_places(first, indptr)[here]
            indptr = np.concatenate([[0], np.cumsum(here)])[indptr]
            indices, degree = indices[here], np.diff(indptr)
        elif graph.edge_ids is not None:
            order = edge_places(first, indptr)
        if graph.edge_ids is not None:
            order = graph.edge_ids[order]
        of_row = np.zeros(len(owned) + len(partial), np.int64)
        of_row[s : len(owned) : slices] = degree[: len(mine)]
        of_row[len(owned) :] = degree[len(mine) :]
        starts = np.zeros(len(of_row), np.int64)  # of rows without edges it does not matter
        starts[s : len(owned) : slices], starts[len(owned) :] = first[: len(mine)], first[len(mine) :]
        vertices = np.concatenate([owned, halo]) // slices
        yield LocalGraph(
            owned_ids=owned,
            halo_ids=halo,
            indptr=np.concatenate([[0], np.cumsum(of_row)]),
            indices=indices,
            edge_first=starts,
            edge_order=order,
            in_degrees=in_degrees[vertices],
            out_degrees=out_degrees[vertices],
            num_nodes_global=graph.num_nodes,
            partial_ids=partial,
            partial_in_degrees=in_degrees[others],
        )

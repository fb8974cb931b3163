"""Compiled loops for partitioning: the graph that METIS wants, cut edges, who holds what.

Loaded on first use.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.kernels.compiled import compiled


@compiled
def symmetric_adjacency(
    indptr: NDArray[np.int64], indices: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (xadj (N + 1,), adjncy (M,)) of the undirected simple graph.

    Both directions, no loops, no repeats. Neighbours are in no particular order. Memory at the peak: 16 bytes per
    edge and 20 per vertex.
    """
    num_nodes = indptr.size - 1
    xadj = np.zeros(num_nodes + 1, np.int64)
    for v in range(num_nodes):
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            if u != v:
                xadj[u + 1] += 1
                xadj[v + 1] += 1
    for v in range(num_nodes):
        xadj[v + 1] += xadj[v]
    cursor = xadj[:-1].copy()
    adjncy = np.empty(xadj[num_nodes], np.int64)
    for v in range(num_nodes):
        own = cursor[v]
        for k in range(indptr[v], indptr[v + 1]):
            u = np.int64(indices[k])
            if u != v:
                adjncy[own] = u
                own += 1
                adjncy[cursor[u]] = v
                cursor[u] += 1
        cursor[v] = own
    # Drop repeats in place: a row only ever moves towards the front.
    seen_by = np.full(num_nodes, -1, indices.dtype)
    filled = 0
    start = 0
    for v in range(num_nodes):
        stop = xadj[v + 1]
        for k in range(start, stop):
            u = adjncy[k]
            if seen_by[u] != v:
                seen_by[u] = v
                adjncy[filled] = u
                filled += 1
        start = stop
        xadj[v + 1] = filled
    return xadj, adjncy[:filled]


@compiled
def count_edges(
    indptr: NDArray[np.int64], indices: NDArray[Any], part: NDArray[np.int32], num_parts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each part its in-edges, and how many of them come from another part, both (P,)."""
    edges = np.zeros(num_parts, np.int64)
    cut = np.zeros(num_parts, np.int64)
    for v in range(part.size):
        edges[part[v]] += indptr[v + 1] - indptr[v]
        for k in range(indptr[v], indptr[v + 1]):
            if part[indices[k]] != part[v]:
                cut[part[v]] += 1
    return edges, cut


@compiled
def spread_holders(
    indptr: NDArray[np.int64], indices: NDArray[Any], now: NDArray[np.uint64], after: NDArray[np.uint64]
) -> None:
    """Go one hop back along the edges: whoever holds v comes to hold all that v reads; masks (N,)."""
    after[:] = now
    for v in range(now.size):
        holders = now[v]
        for k in range(indptr[v], indptr[v + 1]):
            after[indices[k]] |= holders

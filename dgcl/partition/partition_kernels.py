"""Compiled loops of partitioning: make the undirected simple graph that METIS wants, and propagate labels.

Loaded on first use (numba).
Called by `partitioners` and `streaming`. Free to change while that graph has each edge both ways, once, without loops
(`tests/dgcl/partition/test_metis.py`), and labels on any edges make valid parts
(`tests/dgcl/partition/test_streaming.py`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.kernels.compiled import compiled


@compiled
def symmetric_adjacency(
    indptr: NDArray[np.int64], indices: NDArray[Any], ids: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return (xadj (N + 1,), adjncy (M,)) of the undirected simple graph, adjncy of the dtype of ``ids`` (0,).

    Both directions, no loops, no repeats. Neighbours are in no particular order. Memory at the peak: two ids per
    edge, and 20 bytes per vertex.
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
    adjncy = np.empty(xadj[num_nodes], ids.dtype)
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
def propagate_labels(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    labels: NDArray[Any],
    sizes: NDArray[np.int64],
    limit: int,
    seen: NDArray[np.int64],
) -> None:
    """Give each vertex in turn the label that most of its neighbours have.

    Neighbours of v are ``indices[indptr[v]:indptr[v + 1]]``. A label has at most ``limit`` vertices;
    sizes counts them, and seen, as long, is zero before and after. Without a better label a vertex stays.
    """
    for v in range(labels.size):
        own = labels[v]
        best = own
        for k in range(indptr[v], indptr[v + 1]):
            if indices[k] != v:
                seen[labels[indices[k]]] += 1
        for k in range(indptr[v], indptr[v + 1]):
            label = labels[indices[k]]
            if seen[label] > seen[best] and sizes[label] < limit:
                best = label
        for k in range(indptr[v], indptr[v + 1]):
            seen[labels[indices[k]]] = 0
        sizes[own] -= 1
        sizes[best] += 1
        labels[v] = best

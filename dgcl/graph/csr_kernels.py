"""Compiled loops over edges: check and count ids, group edges by destination, count out-degrees.

Loaded on first use (numba).
Called by `build_csr` and `csr`. Free to change while grouping keeps the order of edges to one destination, the first
id out of range is found, and degrees beyond a byte are right (`tests/dgcl/graph/test_csr.py`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.kernels.compiled import compiled


@compiled
def count_ids(ids: NDArray[Any], num_nodes: int, indptr: NDArray[np.int64]) -> tuple[int, bool]:
    """Count each id into ``indptr[id + 1]``; stop at the first id out of range.

    Returns:
        The position of the first id out of range (-1: none), and whether the ids never fall.
    """
    ascending = True
    before = 0
    for e in range(ids.size):
        v = ids[e]
        if v < 0 or v >= num_nodes:
            return e, ascending
        if v < before:
            ascending = False
        before = v
        indptr[v + 1] += 1
    return -1, ascending


@compiled
def count_sources(ids: NDArray[Any], num_nodes: int) -> NDArray[np.int64]:
    """How often each id occurs, (N,); all must be in range."""
    counts = np.zeros(num_nodes, np.int64)
    for e in range(ids.size):
        counts[ids[e]] += 1
    return counts


@compiled
def group_edges(
    indptr: NDArray[np.int64],
    dst: NDArray[Any],
    src: NDArray[Any],
    indices: NDArray[Any],
    edge_ids: NDArray[np.int64],
) -> None:
    """Place the edges by destination, where ``indptr`` says, keeping their order within one; ids if there is room."""
    cursor = indptr[:-1].copy()
    for e in range(dst.size):
        k = cursor[dst[e]]
        cursor[dst[e]] = k + 1
        indices[k] = src[e]
        if edge_ids.size:
            edge_ids[k] = e

"""The pass over a rank's in-edges that turns global sources into local rows, compiled."""

from __future__ import annotations

import numpy as np

from dgcl.kernels.compiled import compiled


@compiled
def take_rows(
    indptr: np.ndarray, sources: np.ndarray, vertices: np.ndarray, local_of: np.ndarray, out: np.ndarray
) -> bool:
    """Fill ``out`` with ``local_of[sources[e]]`` for the in-edges e of ``vertices``, one vertex after the other.

    Edges of neighbouring vertices are one stretch: a loop that ends at each vertex would have the processor wait for
    the reads of one before it begins those of the next. Sources, which a graph has checked, are read as unsigned: numba
    asks of a signed index whether it counts from the end, which takes as long as all the rest.

    Returns:
        Whether every source has a local row (``local_of`` is negative where there is none).
    """
    at, i = 0, 0
    bits = local_of.dtype.type(0)  # of all rows together: below zero as soon as one of them is
    while i < vertices.size:
        start = indptr[vertices[i]]
        i += 1
        while i < vertices.size and vertices[i] == vertices[i - 1] + 1:
            i += 1
        num_edges = indptr[vertices[i - 1] + 1] - start
        stretch, taken = sources[start : start + num_edges], out[at : at + num_edges]
        for k in range(num_edges):
            row = local_of[np.uint64(stretch[k])]
            bits |= row
            taken[k] = row
        at += num_edges
    return bits >= 0

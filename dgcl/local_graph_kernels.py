"""The pass over a rank's in-edges that turns global sources into local rows, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def take_rows(
    indptr: np.ndarray, sources: np.ndarray, vertices: np.ndarray, local_of: np.ndarray, out: np.ndarray
) -> int:
    """Fill ``out`` with ``local_of[sources[e]]`` for the in-edges e of ``vertices``, one vertex after the other.

    Returns:
        The first edge whose source has no local row (``local_of`` is negative there); -1: all have one.
    """
    at = 0
    unknown = -1
    for v in vertices:
        for edge in range(indptr[v], indptr[v + 1]):
            row = local_of[sources[edge]]
            if row < 0 and unknown < 0:
                unknown = edge
            out[at] = row
            at += 1
    return unknown

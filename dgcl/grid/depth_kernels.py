"""The compiled pass over the edges that finds from which depths each vertex is summed.

Called by `needs`. Free to change while sums are those of one device (`tests/dgcl/grid/`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.kernels.compiled import compiled


@compiled
def mark_depths(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    part: NDArray[np.int32],
    depth: NDArray[Any],
    masks: NDArray[Any],
    edges: NDArray[np.int64],
) -> None:
    """Set bit depth[u] of vertex v in `masks` (W, N) for each edge u->v, and count edges by (part[v], depth[u]).

    `edges` (parts, depths) is added to. Sources, which a graph has checked, are read as unsigned: numba asks of a
    signed index whether it counts from the end.
    """
    one = masks.dtype.type(1)
    for v in range(part.size):
        row = part[v]
        for u in indices[indptr[v] : indptr[v + 1]]:
            k = depth[np.uint64(u)]
            masks[k >> 6, v] |= one << masks.dtype.type(k & 63)
            edges[row, k] += 1

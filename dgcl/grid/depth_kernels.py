"""The numba kernel that finds, for each vertex, at which depths of a grid it has in-neighbours.

The depth of a vertex is the coordinate k of its owner in the grid; each depth is one bit of a vertex's mask. In the
same pass over the edges it counts those of each (part, depth).

Called by `needs`, if the depth is above 1. Free to change while masks and counts are those of brute force over edges,
also with more than 64 depths, in several words (`tests/dgcl/grid/test_items.py`).
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

"""Compiled loops of replication: hop sets of a machine's vertices, and which of its ranks keeps which copy.

Loaded on first use (numba).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.kernels.compiled import compiled


@compiled
def spread_hops(
    indptr: NDArray[np.int64], indices: NDArray[Any], hop_of: NDArray[np.int16], hops: int
) -> None:
    """Number the vertices by their distance to those of hop 0, against the edges.

    ``hop_of`` (N,) is 0 there, else -1. Those farther than ``hops`` stay -1. Time O(hops * N + edges inside).
    """
    for hop in range(1, hops + 1):
        for v in range(hop_of.size):
            if hop_of[v] == hop - 1:
                for source in indices[indptr[v] : indptr[v + 1]]:
                    u = np.uint64(source)
                    if hop_of[u] < 0:
                        hop_of[u] = hop


@compiled
def count_votes(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    hop_of: NDArray[np.int16],
    hop: int,
    place: NDArray[np.int32],
    keeper: NDArray[np.int32],
    votes: NDArray[np.uint16],
) -> None:
    """Count the edges from hop set ``hop`` to hop set ``hop - 1``, by vertex and by keeper of the head.

    Args:
        hop_of: (N,) the hop set of each vertex.
        place: (N,) the row of each vertex of hop set ``hop`` in ``votes``.
        keeper: (N,) the keeper of each vertex of hop set ``hop - 1``.
        votes: (vertices of the hop set, keepers); counting ends at 65535.
    """
    for v in range(hop_of.size):
        if hop_of[v] != hop - 1:
            continue
        mine = keeper[v]
        for source in indices[indptr[v] : indptr[v + 1]]:
            u = np.uint64(source)
            if hop_of[u] == hop and votes[place[u], mine] < 65535:
                votes[place[u], mine] += np.uint16(1)


@compiled
def assign_keepers(votes: NDArray[np.uint16], free: NDArray[np.int64], out: NDArray[np.int32]) -> None:
    """Give each vertex to the keeper with most votes among those with free places; ``free`` falls accordingly.

    Equal votes: to the one with most free places, then to the first. There must be enough places for all.
    """
    for i in range(votes.shape[0]):
        best = -1
        for r in range(free.size):
            if free[r] > 0 and (
                best < 0
                or votes[i, r] > votes[i, best]
                or (votes[i, r] == votes[i, best] and free[r] > free[best])
            ):
                best = r
        out[i] = best
        free[best] -= 1

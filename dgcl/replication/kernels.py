"""Compiled loops of replication: rings around a machine's vertices, and which of its ranks keeps which copy.

Loaded on first use (numba).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def grow_rings(indptr: NDArray[np.int64], indices: NDArray[Any], ring: NDArray[np.int16], hops: int) -> None:
    """Number the vertices by their distance to ring 0, against the edges; ``ring`` (N,) is 0 there, else -1.

    Those farther than ``hops`` stay -1. Time O(hops * N + edges inside).
    """
    for hop in range(1, hops + 1):
        for v in range(ring.size):
            if ring[v] == hop - 1:
                for k in range(indptr[v], indptr[v + 1]):
                    if ring[indices[k]] < 0:
                        ring[indices[k]] = hop


@njit(cache=True, nogil=True)
def count_holders(
    masks: NDArray[np.uint64], weight: NDArray[np.int64], count: NDArray[np.int64], total: NDArray[np.int64]
) -> None:
    """Add to ``count`` and ``total`` (64,), for each bit, how many masks have it, and the weights of these."""
    for v in range(masks.size):
        mask = masks[v]
        bit = 0
        while mask != 0:
            if mask & np.uint64(1):
                count[bit] += 1
                total[bit] += weight[v]
            mask >>= np.uint64(1)
            bit += 1


@njit(cache=True, nogil=True)
def count_votes(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    ring: NDArray[np.int16],
    hop: int,
    place: NDArray[np.int32],
    keeper: NDArray[np.int32],
    votes: NDArray[np.uint16],
) -> None:
    """Count the edges from each vertex of ring ``hop`` to vertices of ring ``hop - 1``, by who keeps these.

    Args:
        ring: (N,).
        place: (N,) the row of each vertex of ring ``hop`` in ``votes``.
        keeper: (N,) the keeper of each vertex of ring ``hop - 1``.
        votes: (vertices of the ring, keepers); counting ends at 65535.
    """
    for v in range(ring.size):
        if ring[v] != hop - 1:
            continue
        mine = keeper[v]
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            if ring[u] == hop and votes[place[u], mine] < 65535:
                votes[place[u], mine] += np.uint16(1)


@njit(cache=True, nogil=True)
def hand_out(votes: NDArray[np.uint16], room: NDArray[np.int64], out: NDArray[np.int32]) -> None:
    """Give each vertex to the keeper with most votes among those with room; ``room`` falls accordingly.

    Equal votes: to the one with most room, then to the first. All room together must suffice.
    """
    for i in range(votes.shape[0]):
        best = -1
        for r in range(room.size):
            if room[r] > 0 and (
                best < 0
                or votes[i, r] > votes[i, best]
                or (votes[i, r] == votes[i, best] and room[r] > room[best])
            ):
                best = r
        out[i] = best
        room[best] -= 1

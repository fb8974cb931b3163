"""Counts the rows that must cross cuts, and finds narrow sets of connections that all crossing traffic uses.

Such a set is a *cover*: every link that crosses the cut uses at least one of its connection-directions. Any cover gives
a valid bound; the less bandwidth it has, the higher the bound. The loops are compiled; the module is imported on first
use, because importing numba takes longer than making a small plan.
Called by `best` and `planner/column_generation/pricing/device_groups`. Free to change while rows are those counted with
Python's sets (`tests/planner/test_bits.py`), and every crossing link is covered by directions of which none can be left
out (`tests/planner/bounds/test_best.py`).
"""

from typing import Any

import numpy as np

from dgcl.planner.bits import lowest_bit
from dgcl.planner.planner_compiled import compiled


def crossing_rows(source: Any, dests: Any, count: Any, member: Any, masks: Any) -> tuple[Any, Any]:
    """Return, for each set of ranks, the rows that must enter it and that must leave it, each (S,) float64.

    Args:
        source, dests, count: the arrays of a relation.
        member: (S, P) bool, the sets.
        masks: (S, W) uint64, the same sets as bit masks.
    """
    alone = member.sum(axis=1) == 1
    larger = np.flatnonzero(~alone)
    # (W, L) so that the loop over sets is vectorised; by rank the sets that hold it
    rank, held = np.nonzero(member[larger].T)
    ptr = np.searchsorted(rank, np.arange(member.shape[1] + 1))
    entered, left, met = (
        np.zeros(larger.shape[0]),
        np.zeros(larger.shape[0]),
        np.empty(larger.shape[0], np.uint64),
    )
    into = np.zeros(member.shape[1])  # for sets of one rank
    _add_crossing(source, dests, count, masks[larger].T.copy(), ptr, held, into, entered, left, met)
    out = np.bincount(source, weights=count, minlength=member.shape[1])
    only = member[alone].argmax(axis=1)
    entering, leaving = np.empty(member.shape[0]), np.empty(member.shape[0])
    entering[larger], entering[alone] = entered, into[only]
    leaving[larger], leaving[alone] = left, out[only]
    return entering, leaving


@compiled(allocates=False)
def _add_crossing(
    source: Any,
    dests: Any,
    count: Any,
    words: Any,
    ptr: Any,
    held: Any,
    into: Any,
    entered: Any,
    left: Any,
    met: Any,
) -> None:
    """Add the rows that enter each rank to `into`, those that enter and leave each set to `entered` and `left`.

    `words` (W, L) are the sets, ``held[ptr[r]:ptr[r + 1]]`` those that hold rank r; `met` (L,) is scratch.
    """
    for c in range(source.shape[0]):
        for i in range(met.shape[0]):
            met[i] = 0
        for w in range(words.shape[0]):
            bits = dests[c, w]
            if bits == np.uint64(0):
                continue
            for i in range(met.shape[0]):
                met[i] |= words[w, i] & bits
            while bits:
                into[64 * w + lowest_bit(bits)] += count[c]
                bits &= bits - np.uint64(1)
        rows = float(count[c])
        for n in range(ptr[source[c]], ptr[source[c] + 1]):
            i = held[n]
            met[i] = 0
            for w in range(words.shape[0]):
                if dests[c, w] & ~words[w, i]:
                    left[i] += rows
                    break
        for i in range(met.shape[0]):
            entered[i] += 0.0 if met[i] == np.uint64(0) else rows


def covers(label: Any, arrays: Any) -> tuple[Any, Any]:
    """Return, for each cut, connection-directions that every crossing link uses at least one of.

    A link from rank u to rank v crosses cut n if ``label[n, v] >= 0`` and ``label[n, u] != label[n, v]``.
    Any cover gives a valid bound, a narrow one a good bound.

    Args:
        label: (N, P) int32, the cuts.
        arrays: TopologyArrays.

    Returns:
        cover (N, num_directions) bool, latency (N,) float64: the smallest latency of a crossing link (inf
        if none).
    """
    length = np.diff(arrays.link_ptr)
    place = np.arange(int(length.max(initial=0)))
    hops = np.full((length.shape[0], place.shape[0]), -1, np.int32)
    hops[place < length[:, None]] = arrays.link_directions
    widest_first = np.argsort(-arrays.bandwidth, kind="stable")
    cover, latency = (
        np.zeros((label.shape[0], arrays.num_directions), np.bool_),
        np.full(label.shape[0], np.inf),
    )
    for n, group in enumerate(label):
        inside = np.flatnonzero(group >= 0)
        outside = np.flatnonzero(group < 0) if group.max() == 0 else np.arange(group.shape[0])
        links = arrays.link_of[np.ix_(outside, inside)]
        links = links[(links >= 0) & (group[outside, None] != group[inside])]
        latency[n] = arrays.link_latency[links].min(initial=np.inf)
        through, left = np.zeros((2, arrays.num_directions))
        left[:] = arrays.bandwidth
        _fill(hops[links], widest_first, cover[n], through, left, np.zeros(links.shape[0], np.int64))
    return cover, latency


@compiled(allocates=False, entry=False)
def _uses(hops: Any, c: int) -> bool:
    """Tell whether direction c is one of these hops."""
    for i in range(hops.shape[0]):
        if hops[i] == c:
            return True
    return False


@compiled(allocates=False)
def _fill(hops: Any, widest_first: Any, cover: Any, through: Any, left: Any, hits: Any) -> None:
    """Set `cover` (C,) to directions of which each link, with its `hops` and -1 behind them, uses at least one.

    By progressive filling: the load of all links grows at the same pace; a direction that fills up joins the cover and
    stops the links through it. Directions that the others make superfluous are then dropped, the widest first
    (primal-dual with reverse delete).

    Scratch: `through` (C,) zeros, the links through each direction that are still filled; `left` (C,) the bandwidths;
    `hits` zeros, how many directions of the cover each link uses.
    """
    for i in range(hops.shape[0]):
        for n in range(hops.shape[1]):
            if hops[i, n] >= 0:
                through[hops[i, n]] += 1
    while True:
        full, step = -1, np.inf
        for c in range(left.shape[0]):
            if through[c] > 0 and left[c] < step * through[c]:
                full, step = c, left[c] / through[c]
        if full < 0:
            break
        for c in range(left.shape[0]):
            left[c] = max(0.0, left[c] - step * through[c])
        cover[full] = True
        for i in range(hops.shape[0]):
            if _uses(hops[i], full):
                hits[i] += 1
                if hits[i] == 1:
                    for n in range(hops.shape[1]):
                        if hops[i, n] >= 0:
                            through[hops[i, n]] -= 1
    for n in range(widest_first.shape[0]):
        c = widest_first[n]
        if not cover[c]:
            continue
        least = np.int64(2)
        for i in range(hops.shape[0]):
            if _uses(hops[i], c):
                least = min(least, hits[i])
        if least > 1:
            cover[c] = False
            for i in range(hops.shape[0]):
                if _uses(hops[i], c):
                    hits[i] -= 1

"""Compiled loops for cuts: the rows that must enter sets of ranks, and the connections that cover cuts.

Imported on first use, because importing numba takes longer than making a small plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dgcl.planner.bits import lowest_bit
from dgcl.planner.compiled import compiled


@compiled
def entering_rows(source: Any, dests: Any, count: Any, member: Any, masks: Any) -> Any:
    """Return, for each set of ranks, the rows that must enter it at least once, (S,) float64.

    Args:
        source, dests, count: the arrays of a relation.
        member: (S, P) bool, the sets.
        masks: (S, W) uint64, the same sets as bit masks.
    """
    num_sets, world = member.shape
    rows = np.zeros(num_sets)
    into = np.zeros(world)  # rows that enter each rank, for sets of one rank
    alone = np.full(num_sets, -1, np.int64)
    for s in range(num_sets):
        size = 0
        for rank in range(world):
            if member[s, rank]:
                alone[s] = rank
                size += 1
        if size != 1:
            alone[s] = -1
    larger = np.flatnonzero(alone < 0)
    words = masks[larger].T.copy()  # (W, L) and (P, L), so that the loops over sets below are vectorised
    inside = member[larger].T.copy()
    entered = np.zeros(larger.shape[0])
    met = np.empty(larger.shape[0], np.uint64)
    for c in range(source.shape[0]):
        met[:] = 0
        for w in range(words.shape[0]):
            bits = dests[c, w]
            if bits == np.uint64(0):
                continue
            for i in range(met.shape[0]):
                met[i] |= words[w, i] & bits
            while bits:
                into[64 * w + lowest_bit(bits)] += count[c]
                bits &= bits - np.uint64(1)
        home, leaving = inside[source[c]], float(count[c])
        for i in range(met.shape[0]):
            entered[i] += 0.0 if home[i] or met[i] == np.uint64(0) else leaving
    for i in range(larger.shape[0]):
        rows[larger[i]] = entered[i]
    for s in range(num_sets):
        if alone[s] >= 0:
            rows[s] = into[alone[s]]
    return rows


@compiled
def covers(
    label: Any, link_of: Any, link_ptr: Any, link_directions: Any, link_latency: Any, bandwidth: Any
) -> Any:
    """Return, for each cut, connection-directions that every crossing link uses at least one of.

    A link from rank u to rank v crosses cut n if ``label[n, v] >= 0`` and ``label[n, u] != label[n, v]``.
    The cover is found by progressive filling: the load of all crossing links grows at the same pace; a direction
    that fills up joins the cover and stops the links through it. Directions that the others make superfluous are
    then dropped, the widest first (primal-dual with reverse delete). All first hops and all last hops are tried,
    too, and the narrowest of the three is returned: any cover gives a valid bound, a narrow one a good bound.

    Args:
        label: (N, P) int32, the cuts.
        link_of, link_ptr, link_directions, link_latency, bandwidth: as in TopologyArrays.

    Returns:
        cover (N, num_directions) bool, latency (N,) float64: the smallest latency of a crossing link (inf
        if none).
    """
    num_cuts, world = label.shape
    num_directions = bandwidth.shape[0]
    cover = np.zeros((num_cuts, num_directions), np.bool_)
    latency = np.full(num_cuts, np.inf)
    links = np.empty(world * world, np.int64)
    for n in range(num_cuts):
        num = 0
        for v in range(world):
            if label[n, v] < 0:
                continue
            for u in range(world):
                if label[n, u] != label[n, v] and link_of[u, v] >= 0:  # most pairs are on one side
                    links[num] = link_of[u, v]
                    num += 1
                    latency[n] = min(latency[n], link_latency[links[num - 1]])
        crossing = links[:num]
        user_ptr, user = _users(crossing, link_ptr, link_directions, num_directions)
        narrowest = np.inf
        for way in range(3):
            if way == 0:
                order = _fill(crossing, link_ptr, link_directions, bandwidth, user_ptr, user)
            else:  # the senders' ports, and the receivers' ports
                at = link_ptr[crossing] if way == 1 else link_ptr[crossing + 1] - 1
                order = np.unique(link_directions[at]).astype(np.int64)
            trial = _needed(order, num, bandwidth, user_ptr, user)
            width = bandwidth[trial].sum()
            if width < narrowest:
                narrowest = width
                cover[n] = trial
    return cover, latency


@compiled
def _users(links: Any, link_ptr: Any, link_directions: Any, num_directions: int) -> Any:
    """Return pointers by direction into the positions in `links` of those that use it, and these."""
    ptr = np.zeros(num_directions + 1, np.int64)
    for link in links:
        for h in range(link_ptr[link], link_ptr[link + 1]):
            ptr[link_directions[h] + 1] += 1
    ptr = np.cumsum(ptr)
    user = np.empty(ptr[-1], np.int64)
    at = ptr[:-1].copy()
    for i in range(links.shape[0]):
        for h in range(link_ptr[links[i]], link_ptr[links[i] + 1]):
            user[at[link_directions[h]]] = i
            at[link_directions[h]] += 1
    return ptr, user


@compiled
def _fill(links: Any, link_ptr: Any, link_directions: Any, bandwidth: Any, user_ptr: Any, user: Any) -> Any:
    """Return the directions in the order in which they fill up while all `links` carry more at one pace."""
    through = np.diff(user_ptr)  # links still rising, per direction
    left = bandwidth.copy()
    touched = np.flatnonzero(through)
    rising = np.ones(links.shape[0], np.bool_)
    order = np.empty(touched.shape[0], np.int64)
    num = 0
    remaining = links.shape[0]
    while remaining:
        full = touched[0]
        step = np.inf
        for c in touched:
            if through[c] > 0 and left[c] < step * through[c]:
                full = c
                step = left[c] / through[c]
        for c in touched:
            left[c] = max(0.0, left[c] - step * through[c])
        order[num] = full
        num += 1
        for i in user[user_ptr[full] : user_ptr[full + 1]]:
            if rising[i]:
                rising[i] = False
                remaining -= 1
                for h in range(link_ptr[links[i]], link_ptr[links[i] + 1]):
                    through[link_directions[h]] -= 1
    return order[:num]


@compiled
def _needed(order: Any, num_links: int, bandwidth: Any, user_ptr: Any, user: Any) -> Any:
    """Return (num_directions,) bool: those of `order` that cover every link, after dropping superfluous ones."""
    cover = np.zeros(bandwidth.shape[0], np.bool_)
    hits = np.zeros(num_links, np.int64)
    for c in order:
        cover[c] = True
        for i in user[user_ptr[c] : user_ptr[c + 1]]:
            hits[i] += 1
    for c in order[np.argsort(-bandwidth[order], kind="mergesort")]:
        needed = False
        for i in user[user_ptr[c] : user_ptr[c + 1]]:
            needed = needed or hits[i] == 1
        if not needed:
            cover[c] = False
            for i in user[user_ptr[c] : user_ptr[c + 1]]:
                hits[i] -= 1
    return cover

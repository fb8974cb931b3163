"""Compiled loops for cuts: the rows that must enter and leave sets of ranks, and the connections that cover cuts.

Imported on first use, because importing numba takes longer than making a small plan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dgcl.planner.bits import lowest_bit
from dgcl.planner.compiled import compiled


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


@compiled
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
    num_cuts, num_links, num_directions = label.shape[0], link_latency.shape[0], bandwidth.shape[0]
    cover = np.zeros((num_cuts, num_directions), np.bool_)
    latency = np.full(num_cuts, np.inf)
    level = np.unique(-bandwidth, return_inverse=True)[1].reshape(-1)
    scratch = _Scratch(
        np.empty(label.shape[1], np.int64),
        np.empty(num_links, np.int64),
        np.empty(num_links, np.int64),
        np.empty(num_directions + 1, np.int64),
        np.empty(link_directions.shape[0], np.int64),
        np.empty(num_directions, np.int64),
        np.empty(num_directions, np.int64),
        np.empty(num_directions + 1, np.int64),
        np.empty(num_directions, np.int64),
        np.empty(num_directions),
        np.empty(num_directions, np.bool_),
    )
    machine = _Links(link_of, link_ptr, link_directions, link_latency, bandwidth, level)
    for n in range(num_cuts):
        latency[n] = _cover(label[n], machine, scratch, cover[n])
    return cover, latency


class _Links(NamedTuple):
    """L links and C connection-directions, as in TopologyArrays; `level`: 0 for the widest directions, and so on."""

    link_of: Any
    ptr: Any
    directions: Any
    latency: Any
    bandwidth: Any
    level: Any


class _Scratch(NamedTuple):
    """Of one cut.

    Attributes:
        sender: (P,) int64, ranks that links from cross.
        link, hits: (L,) int64, the crossing links, and how many directions of the cover each uses.
        user_ptr, user: (C+1,) and int64, by direction the positions in `link` of those that use it.
        order, by_width: (C,) int64, the directions in the order in which they join the cover, and widest first.
        at: (C+1,) int64.
        through, left: (C,) int64 and float64, links still rising, and room, per direction.
        trial: (C,) bool, the cover.
    """

    sender: Any
    link: Any
    hits: Any
    user_ptr: Any
    user: Any
    order: Any
    by_width: Any
    at: Any
    through: Any
    left: Any
    trial: Any


@compiled
def _cover(label: Any, links: _Links, scratch: _Scratch, cover: Any) -> float:
    """Set `cover` (C,) to the narrowest cover found of a cut; return the smallest latency of a crossing link."""
    world = label.shape[0]
    latency = np.inf
    num, num_senders = 0, 0
    alone = True  # only one group, which others alone send to
    for u in range(world):
        alone = alone and label[u] <= 0
    for u in range(world):
        if not alone or label[u] < 0:
            scratch.sender[num_senders] = u
            num_senders += 1
    for v in range(world):
        if label[v] < 0:
            continue
        for n in range(num_senders):
            u = scratch.sender[n]
            if label[u] == label[v]:
                continue
            link = links.link_of[u, v]
            if link >= 0:
                scratch.link[num] = link
                num += 1
                latency = min(latency, links.latency[link])
    _find_users(links, scratch, num)
    narrowest = np.inf
    for way in range(3):
        if way == 0:
            num_order = _fill(links, scratch, num)
        else:  # the senders' ports, and the receivers' ports
            num_order = _ports(links, scratch, num, way == 1)
        _drop_superfluous(links, scratch, num, num_order)
        width = 0.0
        for c in range(cover.shape[0]):
            if scratch.trial[c]:
                width += links.bandwidth[c]
        if width < narrowest:
            narrowest = width
            for c in range(cover.shape[0]):
                cover[c] = scratch.trial[c]
    return latency


@compiled(inline=False, entry=False)
def _find_users(links: _Links, scratch: _Scratch, num: int) -> None:
    """Fill `user_ptr` and `user` for the first `num` crossing links."""
    ptr, at = scratch.user_ptr, scratch.at
    for c in range(ptr.shape[0]):
        ptr[c] = 0
    for i in range(num):
        link = scratch.link[i]
        for h in range(links.ptr[link], links.ptr[link + 1]):
            ptr[links.directions[h] + 1] += 1
    for c in range(1, ptr.shape[0]):
        ptr[c] += ptr[c - 1]
        at[c - 1] = ptr[c - 1]
    for i in range(num):
        link = scratch.link[i]
        for h in range(links.ptr[link], links.ptr[link + 1]):
            c = links.directions[h]
            scratch.user[at[c]] = i
            at[c] += 1


@compiled(inline=False, entry=False)
def _ports(links: _Links, scratch: _Scratch, num: int, first: bool) -> int:
    """Put the first or last directions of the crossing links into `order`, ascending; return how many there are."""
    trial = scratch.trial
    for c in range(trial.shape[0]):
        trial[c] = False
    for i in range(num):
        link = scratch.link[i]
        trial[links.directions[links.ptr[link] if first else links.ptr[link + 1] - 1]] = True
    num_order = 0
    for c in range(trial.shape[0]):
        if trial[c]:
            scratch.order[num_order] = c
            num_order += 1
    return num_order


@compiled(inline=False, entry=False)
def _fill(links: _Links, scratch: _Scratch, num: int) -> int:
    """Put directions into `order` as they fill up while all links carry more at one pace; return how many do."""
    through, left, user_ptr = scratch.through, scratch.left, scratch.user_ptr
    touched, num_touched = scratch.by_width, 0
    for c in range(through.shape[0]):
        through[c] = user_ptr[c + 1] - user_ptr[c]
        left[c] = links.bandwidth[c]
        if through[c] != 0:
            touched[num_touched] = c
            num_touched += 1
    rising = scratch.hits
    for i in range(num):
        rising[i] = 1
    num_order = 0
    remaining = num
    while remaining:
        full = touched[0]
        step = np.inf
        for i in range(num_touched):
            c = touched[i]
            if through[c] > 0 and left[c] < step * through[c]:
                full = c
                step = left[c] / through[c]
        for i in range(num_touched):
            c = touched[i]
            left[c] = max(0.0, left[c] - step * through[c])
        scratch.order[num_order] = full
        num_order += 1
        for n in range(user_ptr[full], user_ptr[full + 1]):
            i = scratch.user[n]
            if rising[i]:
                rising[i] = 0
                remaining -= 1
                link = scratch.link[i]
                for h in range(links.ptr[link], links.ptr[link + 1]):
                    through[links.directions[h]] -= 1
    return num_order


@compiled(inline=False, entry=False)
def _drop_superfluous(links: _Links, scratch: _Scratch, num: int, num_order: int) -> None:
    """Set `trial` to those of `order` that cover every link, after dropping what is not needed, the widest first."""
    hits, trial, at, by_width = scratch.hits, scratch.trial, scratch.at, scratch.by_width
    for i in range(num):
        hits[i] = 0
    for c in range(trial.shape[0]):
        trial[c] = False
        at[c + 1] = 0
    at[0] = 0
    for n in range(num_order):
        c = scratch.order[n]
        trial[c] = True
        at[links.level[c] + 1] += 1
        for i in range(scratch.user_ptr[c], scratch.user_ptr[c + 1]):
            hits[scratch.user[i]] += 1
    for c in range(trial.shape[0]):
        at[c + 1] += at[c]
    for n in range(num_order):  # a counting sort, stable
        c = scratch.order[n]
        by_width[at[links.level[c]]] = c
        at[links.level[c]] += 1
    for n in range(num_order):
        c = by_width[n]
        needed = False
        for i in range(scratch.user_ptr[c], scratch.user_ptr[c + 1]):
            needed = needed or hits[scratch.user[i]] == 1
        if not needed:
            trial[c] = False
            for i in range(scratch.user_ptr[c], scratch.user_ptr[c + 1]):
                hits[scratch.user[i]] -= 1

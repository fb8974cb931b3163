"""Compiled loops of `hierarchical`: plan one tree after the other, over the links and stages that are least busy.

They make no arrays, and so count no references: that took more than half of their time. Imported on first use.
Called by `hierarchical`. Free to change while every destination gets its row once, stages rise along each tree, and
latencies and wide links are used as worked out by hand (`tests/planner/methods/test_hierarchical.py`).
"""

from typing import Any, NamedTuple

import numpy as np

from dgcl.planner.bits import lowest_bit
from dgcl.planner.planner_compiled import compiled

AMPLE = 0.5  # a stage that is no fuller will do: there is no need to look for an emptier one


class Machines(NamedTuple):
    """The links of a topology, and its devices by machine.

    Attributes:
        link_of: (P, P), the link from row to column, negative where there is none.
        ptr, direction: the directions that link l uses are ``direction[ptr[l]:ptr[l + 1]]``, as many as count.
        cost: (num_directions,) float64, 1 over the bandwidth.
        latency: (num_links,) float64, in rows per GB/s.
        machine_of: (P,) int64.
        first, member: (M+1,) and (P,) int64, machine m has the devices ``member[first[m]:first[m + 1]]``.
        apart: (M, M) int64, from machine to machine, in steps: 1 for the nearest.
        rank: (M, M) int64, in row m the place of each machine in the order by how far apart from m it is.
        holders: how many devices that got a row last are looked at, from which another one may get it.
    """

    link_of: Any
    ptr: Any
    direction: Any
    cost: Any
    latency: Any
    machine_of: Any
    first: Any
    member: Any
    apart: Any
    rank: Any
    holders: int


class Loads(NamedTuple):
    """What is planned so far.

    Attributes:
        busy: (num_directions, K) float64, time of each direction in each stage, rows per GB/s.
        wait: (num_directions, K) float64, the largest latency of links that used it, also of those that do no more.
        room: (K,) float64, time that each stage should take at most.
    """

    busy: Any
    wait: Any
    room: Any


class Tree(NamedTuple):
    """The tree at hand.

    Attributes:
        ready: (P,) int64, first stage in which a device may send the row on; -1 where it does not have it.
        dest: (P,) int64, destinations; those of one machine follow each other.
        src, dst, stage: its edges, parents first.
        size: (1,) int64, how many edges there are.
    """

    ready: Any
    dest: Any
    src: Any
    dst: Any
    stage: Any
    size: Any


def no_tree(world: int) -> Tree:
    """Return a tree of at most `world` devices without edges."""
    src, dst, stage = np.empty((3, world), np.int32)
    return Tree(
        np.full(world, -1, np.int64), np.empty(world, np.int64), src, dst, stage, np.zeros(1, np.int64)
    )


@compiled(allocates=False, entry=False)
def _add(machines: Machines, loads: Loads, u: int, v: int, k: int, rows: float) -> None:
    """Put rows on the link from u to v in stage k."""
    link = machines.link_of[u, v]
    for h in range(machines.ptr[link], machines.ptr[link + 1]):
        c = machines.direction[h]
        loads.busy[c, k] += rows * machines.cost[c]
        loads.wait[c, k] = max(loads.wait[c, k], machines.latency[link])


@compiled(allocates=False, entry=False)
def _send(machines: Machines, loads: Loads, tree: Tree, u: int, v: int, k: int, rows: float) -> None:
    """Add an edge to the tree."""
    _add(machines, loads, u, v, k, rows)
    n = tree.size[0]
    tree.src[n], tree.dst[n], tree.stage[n] = u, v, k
    tree.size[0] = n + 1
    tree.ready[v] = k + 1


@compiled(inline=False, allocates=False, entry=False)
def _best_stage(
    machines: Machines, loads: Loads, u: int, v: int, begin: int, end: int, rows: float, least: float
) -> tuple[int, float]:
    """Return the stage of begin .. end - 1 that rows from u to v leave least full, and how full, if below `least`.

    Above 1 the stage takes longer than it should. The first one of at most `AMPLE` will do.
    (-1, `least`) where there is no link, or no such stage that is longer than its latency.
    """
    best, link = -1, machines.link_of[u, v]
    if link < 0:
        return best, least
    for k in range(begin, end):
        room = loads.room[k] - machines.latency[link]
        if room <= 0.0:
            continue
        slowest, most = 0.0, max(least, AMPLE) * room
        for h in range(machines.ptr[link], machines.ptr[link + 1]):
            c = machines.direction[h]
            slowest = max(slowest, loads.busy[c, k] + rows * machines.cost[c])
            if slowest > most:
                break
        if slowest < least * room:
            best, least = k, slowest / room
        if slowest <= AMPLE * room:
            break
    return best, least


@compiled(inline=False, allocates=False, entry=False)
def _bring(
    machines: Machines, loads: Loads, tree: Tree, u: int, begin: int, end: int, soon: int, last: int,
    rows: float, turn: int,
) -> int:  # fmt: skip
    """Bring the row from u to one of ``dest[begin:end]``, in a stage before `last`; return it, -1 without links.

    Of equal ones to another with each `turn`, before the stage `soon` if possible; from a machine that has it and is
    nearer, if there is one. Where the straight way makes a stage too long: from any device that got the row of late, or
    by way of another device of either machine, which has it or gets it first.
    """
    here, there = machines.machine_of[u], machines.machine_of[tree.dest[begin]]
    oldest = max(0, tree.size[0] - machines.holders) if here != there else tree.size[0]
    for e in range(oldest, tree.size[0]):
        w = tree.dst[e]
        near = machines.apart[machines.machine_of[w], there] < machines.apart[machines.machine_of[u], there]
        if near and tree.ready[w] < last and machines.link_of[w, tree.dest[begin]] >= 0:
            u = w
    sender, relay, before, at, least = u, False, -1, -1, np.inf
    v, early = tree.dest[begin + turn % (end - begin)], min(last, max(soon, tree.ready[u] + 1))
    for i in range(end - begin):
        other = tree.dest[begin + (i + turn) % (end - begin)]
        k, full = _best_stage(machines, loads, u, other, tree.ready[u], early, rows, least)
        if full < least:
            v, at, least = other, k, full
    if least > 1.0:
        for e in range(oldest, tree.size[0]):
            w = tree.dst[e]
            k, full = _best_stage(machines, loads, w, v, tree.ready[w], last, rows, least)
            if full < least:
                sender, at, least = w, k, full
    for far in range(0 if least <= 1.0 else 1 + (here != there)):
        machine = there if far else here
        for j in range(machines.first[machine], machines.first[machine + 1]):
            w = machines.member[j]
            has = tree.ready[w] >= 0
            if w == v or w == u:
                continue
            begun = tree.ready[w] if has else tree.ready[u] + 1
            k, full = _best_stage(machines, loads, w, v, begun, last, rows, least)
            first = -1
            if full < least and not has:
                first, then = _best_stage(machines, loads, u, w, tree.ready[u], k, rows, least)
                full = max(full, then)
            if full < least:
                sender, relay, before, at, least = w, not has, first, k, full
    if at < 0:
        return -1
    if relay:
        _send(machines, loads, tree, u, sender, before, rows)
    _send(machines, loads, tree, sender, v, at, rows)
    return v


@compiled(inline=False, allocates=False, entry=False)
def _grow(machines: Machines, loads: Loads, tree: Tree, owner: int, num: int, rows: float, turn: int) -> bool:
    """Plan the tree from `owner` to the first `num` destinations; return False if no links allow it.

    A machine without a link to where the row is by then is tried again once others have it.
    """
    stages, home, far = loads.room.shape[0], machines.machine_of[owner], 0
    for i in range(num):
        far = max(far, machines.apart[home, machines.machine_of[tree.dest[i]]])
    tree.size[0] = tree.ready[owner] = 0
    left, before = num, num + 1
    while 0 < left < before:
        before, left, begin = left, 0, 0
        while begin < num:
            machine, end = machines.machine_of[tree.dest[begin]], begin + 1
            while end < num and machines.machine_of[tree.dest[end]] == machine:
                end += 1
            holder = owner
            if machine != home and tree.ready[tree.dest[begin]] < 0:
                last = stages if end - begin == 1 else stages - 1  # the others get it in a later stage
                soon = max(1, last - far + machines.apart[home, machine])  # it goes on from here
                holder = _bring(machines, loads, tree, owner, begin, end, soon, last, rows, turn)
            for i in range(begin, end):
                if holder >= 0 and tree.ready[tree.dest[i]] < 0:
                    v = _bring(machines, loads, tree, holder, i, i + 1, stages, stages, rows, 0)
                    holder = -1 if v < 0 else holder
            left += end - begin if holder < 0 else 0
            begin = end
    tree.ready[owner] = -1
    for e in range(tree.size[0]):
        tree.ready[tree.dst[e]] = -1
    return left == 0


@compiled(allocates=False, entry=False)
def _is_late(machines: Machines, loads: Loads, u: int, v: int, k: int) -> bool:
    """Tell whether the link from u to v takes longer than stage k should."""
    slowest, link = 0.0, machines.link_of[u, v]
    for h in range(machines.ptr[link], machines.ptr[link + 1]):
        slowest = max(slowest, loads.busy[machines.direction[h], k])
    return machines.latency[link] + slowest > loads.room[k]


@compiled(allocates=False)
def plan_trees(
    machines: Machines, loads: Loads, tree: Tree, order: Any, source: Any, dests: Any, count: Any,
    before: Any, start: int, ptr: Any, src: Any, dst: Any, stage: Any, most: int,
) -> int:  # fmt: skip
    """Plan one tree after the other at the loads that all others make; return the position of the first not planned.

    Args:
        machines: the topology.
        tree: of :func:`no_tree`, scratch.
        loads: what is planned; trees of `before` are part of it, and stay as they are where no stage is too long.
        order: (N,) int64, the class of each tree.
        source, dests, count: of the classes.
        before: ptr (N+1,), src, dst, stage: trees so far, without edges where there are none yet.
        start: the first tree to plan.
        ptr: (N+1,) int64, ``ptr[start]`` is where its edges begin; the next ones are set.
        src, dst, stage: become the edges, with room for three times as many as there are deliveries.
        most: edges after which it returns.

    Returns:
        The position, N after the last; -1 if no links allow some tree.
    """
    old_ptr, old_src, old_dst, old_stage = before
    for n in range(start, order.shape[0]):
        at = ptr[n]
        if at - ptr[start] >= most:
            return n
        c = order[n]
        rows = float(count[c])
        begin, end = old_ptr[n], old_ptr[n + 1]
        late = begin == end
        for e in range(begin, end):
            late = late or _is_late(machines, loads, old_src[e], old_dst[e], old_stage[e])
        if not late:
            for e in range(begin, end):
                o = at + e - begin
                src[o], dst[o], stage[o] = old_src[e], old_dst[e], old_stage[e]
            ptr[n + 1] = at + end - begin
            continue
        for e in range(begin, end):
            _add(machines, loads, old_src[e], old_dst[e], old_stage[e], -rows)
        num, rank = 0, machines.rank[machines.machine_of[source[c]]]
        for w in range(dests.shape[1]):
            bits = dests[c, w]
            while bits:
                v = 64 * w + lowest_bit(bits)
                place, nearer = num, rank[machines.machine_of[v]]
                while place > 0 and rank[machines.machine_of[tree.dest[place - 1]]] > nearer:
                    tree.dest[place] = tree.dest[place - 1]
                    place -= 1
                tree.dest[place] = v
                num += 1
                bits &= bits - np.uint64(1)
        if not _grow(machines, loads, tree, source[c], num, rows, n):
            return -1
        for e in range(tree.size[0]):
            src[at + e], dst[at + e], stage[at + e] = tree.src[e], tree.dst[e], tree.stage[e]
        ptr[n + 1] = at + tree.size[0]
    return order.shape[0]

"""The inner loops of planning machine by machine, compiled. Imported on first use.

They make no arrays, and so count no references: that took more than half of their time.
"""

from typing import Any, NamedTuple

import numpy as np

from dgcl.planner.bits import lowest_bit
from dgcl.planner.compiled import compiled
from dgcl.planner.methods.hierarchical_links import Machines

AMPLE = 0.5  # a stage that is no fuller will do: there is no need to look for an emptier one


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
        begin: (P,) int64, by machine, where its destinations begin; -1 where it has none that the row is yet to enter.
        entered: (P,) int64, by machine, the owner or the device that the row entered it by; -1 where it did not.
        src, dst, stage: its edges, parents first.
        size: (1,) int64, how many edges there are.
    """

    ready: Any
    dest: Any
    begin: Any
    entered: Any
    src: Any
    dst: Any
    stage: Any
    size: Any


HOLDERS = 4  # other machines that a row may come from where that makes a stage too long


def no_tree(world: int) -> Tree:
    """Return a tree of at most `world` devices without edges."""
    return Tree(
        np.full(world, -1, np.int64), np.empty(world, np.int64),
        np.full(world, -1, np.int64), np.full(world, -1, np.int64),
        np.empty(3 * world, np.int32), np.empty(3 * world, np.int32), np.empty(3 * world, np.int32),
        np.zeros(1, np.int64),
    )  # fmt: skip


@compiled(allocates=False, entry=False)
def _add(machines: Machines, loads: Loads, u: int, v: int, k: int, rows: float) -> None:
    """Put rows on the link from u to v in stage k."""
    latency = machines.latency[u, v]
    for h in range(machines.hop.shape[2]):
        c = machines.hop[u, v, h]
        if c < 0:
            break
        loads.busy[c, k] += rows * machines.inverse[c]
        loads.wait[c, k] = max(loads.wait[c, k], latency)


@compiled(allocates=False, entry=False)
def _send(machines: Machines, loads: Loads, tree: Tree, u: int, v: int, k: int, rows: float) -> None:
    """Add an edge to the tree."""
    _add(machines, loads, u, v, k, rows)
    n = tree.size[0]
    tree.src[n], tree.dst[n], tree.stage[n] = u, v, k
    tree.size[0] = n + 1
    tree.ready[v] = k + 1


@compiled(allocates=False, entry=False)
def _best_stage(
    machines: Machines, loads: Loads, u: int, v: int, begin: int, end: int, rows: float, least: float
) -> tuple[int, float]:
    """Return the stage of begin .. end - 1 that rows from u to v leave least full, and how full, if below `least`.

    Above 1 the stage takes longer than it should. The first one of at most `AMPLE` will do.
    (-1, `least`) where there is no link, or no such stage that is longer than its latency.
    """
    best = -1
    if machines.hop[u, v, 0] < 0:
        return best, least
    latency = machines.latency[u, v]
    for k in range(begin, end):
        room = loads.room[k] - latency
        if room <= 0.0:
            continue
        slowest, most = 0.0, max(least, AMPLE) * room
        for h in range(machines.hop.shape[2]):
            c = machines.hop[u, v, h]
            if c < 0:
                break
            slowest = max(slowest, loads.busy[c, k] + rows * machines.inverse[c])
            if slowest > most:
                break
        if slowest < least * room:
            best, least = k, slowest / room
        if slowest <= AMPLE * room:
            break
    return best, least


@compiled(inline=False, allocates=False, entry=False)
def _spread(
    machines: Machines, loads: Loads, tree: Tree, begin: int, end: int, holder: int, rows: float
) -> bool:
    """Bring the row from `holder` to ``dest[begin:end]``, of its machine; return False if no link allows it.

    Where that makes a stage too long, from another device of the machine that has it.
    """
    stages = loads.room.shape[0]
    machine = machines.machine_of[holder]
    for i in range(begin, end):
        v = tree.dest[i]
        if tree.ready[v] >= 0:
            continue
        sender, before = holder, -1
        at, least = _best_stage(machines, loads, holder, v, tree.ready[holder], stages, rows, np.inf)
        if least > 1.0:
            for j in range(machines.first[machine], machines.first[machine + 1]):
                u = machines.member[j]
                if tree.ready[u] >= 0:
                    k, full = _best_stage(machines, loads, u, v, tree.ready[u], stages, rows, least)
                    if full < least:
                        sender, at, least = u, k, full
        if least > 1.0:
            for j in range(machines.first[machine], machines.first[machine + 1]):
                u = machines.member[j]
                if tree.ready[u] < 0 and u != v:
                    k, full = _best_stage(machines, loads, u, v, tree.ready[holder] + 1, stages, rows, least)
                    if full < least:
                        first, then = _best_stage(
                            machines, loads, holder, u, tree.ready[holder], k, rows, least
                        )
                        full = max(full, then)
                        if full < least:
                            sender, before, at, least = u, first, k, full
        if at < 0:
            return False
        if tree.ready[sender] < 0:
            _send(machines, loads, tree, holder, sender, before, rows)
        _send(machines, loads, tree, sender, v, at, rows)
    return True


@compiled(inline=False, allocates=False, entry=False)
def _enter(
    machines: Machines,
    loads: Loads,
    tree: Tree,
    owner: int,
    begin: int,
    end: int,
    rows: float,
    turn: int,
    far: int,
) -> int:
    """Bring the row to one device of the machine of ``dest[begin:end]`` and return it; -1 if no link allows it.

    To a destination, of equal ones to another with each `turn`, from the nearest machine that has the row: the owner's,
    unless another one is nearer. Where that makes a stage too long: by way of another device of the owner's machine,
    from a device of a third machine that has the row, or to a device that does not need it. `far` is how far the
    farthest destination is apart from the owner.
    """
    stages = loads.room.shape[0]
    last = stages if end - begin == 1 else stages - 1  # the others get it in a later stage
    home, there = machines.machine_of[owner], machines.machine_of[tree.dest[begin]]
    sender, via, receiver, at, least = owner, False, tree.dest[begin], -1, np.inf
    soon = last
    if machines.apart[home, there] % machines.step == 0:  # it goes on from here: leave stages for that
        soon = max(1, last - (far - machines.apart[home, there]) // machines.step)
    for near in machines.nearest[there]:
        if machines.apart[near, there] >= machines.apart[home, there]:
            near = home
        u = tree.entered[near]
        if u < 0 or tree.ready[u] >= last:
            continue
        before = max(soon, tree.ready[u] + 1)
        for i in range(end - begin):
            v = tree.dest[begin + (i + turn) % (end - begin)]
            k, full = _best_stage(machines, loads, u, v, tree.ready[u], before, rows, least)
            if full < least:
                sender, receiver, at, least = u, v, k, full
        if near == home or least <= 1.0:
            break
    if least > 1.0:
        others = HOLDERS
        for near in machines.nearest[there]:
            u = tree.entered[near]
            if u >= 0 and near != home and others:
                others -= 1
                k, full = _best_stage(machines, loads, u, receiver, tree.ready[u], last, rows, least)
                if full < least:
                    sender, at, least = u, k, full
        for j in range(machines.first[home], machines.first[home + 1]):
            u = machines.member[j]
            has = tree.ready[u] >= 0
            k, full = _best_stage(
                machines, loads, u, receiver, tree.ready[u] if has else 1, last, rows, least
            )
            if full < least and not has:
                full = max(full, _best_stage(machines, loads, owner, u, 0, k, rows, least)[1])
            if full < least:
                sender, via, at, least = u, not has, k, full
    if least > 1.0:
        ready = 1 if via else tree.ready[sender]
        for j in range(machines.first[there], machines.first[there + 1]):
            v = machines.member[j]
            k, full = _best_stage(machines, loads, sender, v, ready, stages - 1, rows, least)
            if full < least and via:
                full = max(full, _best_stage(machines, loads, owner, sender, 0, k, rows, least)[1])
            if full < least:
                receiver, at, least = v, k, full
    if at < 0:
        return -1
    if via:
        k, _ = _best_stage(machines, loads, owner, sender, 0, at, rows, np.inf)
        _send(machines, loads, tree, owner, sender, k, rows)
    _send(machines, loads, tree, sender, receiver, at, rows)
    tree.entered[there] = receiver
    return receiver


@compiled(allocates=False, entry=False)
def _grow(machines: Machines, loads: Loads, tree: Tree, owner: int, num: int, rows: float, turn: int) -> bool:
    """Plan the tree from `owner` to the first `num` destinations; return False if no links allow it.

    `turn` is another number for each tree, so that equal destinations of a machine take turns.
    """
    home, far = machines.machine_of[owner], 0
    tree.size[0] = tree.ready[owner] = 0
    tree.entered[home] = owner
    for i in range(num - 1, -1, -1):
        machine = machines.machine_of[tree.dest[i]]
        tree.begin[machine] = i
        far = max(far, machines.apart[home, machine])
    fine = True
    for i in range(1, machines.apart.shape[0] + 1):  # its own machine last
        machine = machines.order[home, i % machines.apart.shape[0]]
        begin = end = tree.begin[machine]
        if begin < 0 or not fine:
            continue
        tree.begin[machine] = -1
        while end < num and machines.machine_of[tree.dest[end]] == machine:
            end += 1
        holder = (
            owner if machine == home else _enter(machines, loads, tree, owner, begin, end, rows, turn, far)
        )
        fine = holder >= 0 and _spread(machines, loads, tree, begin, end, holder, rows)
    tree.ready[owner] = tree.entered[home] = -1
    for e in range(tree.size[0]):
        tree.ready[tree.dst[e]] = -1
        tree.entered[machines.machine_of[tree.dst[e]]] = -1
    return fine


@compiled(inline=False, allocates=False, entry=False)
def _grow_blindly(
    machines: Machines, loads: Loads, tree: Tree, owner: int, num: int, rows: float, turn: int
) -> bool:
    """Plan the tree as :func:`_grow` does, but without a look at loads: in less than half of the time.

    A row enters each machine straight, at its destinations and in the stages in turn, and goes on in the next stage.
    False where there is no link for that, or no stage that is long enough: then nothing is planned by machines.
    """
    tree.size[0], begin, stages = 0, 0, loads.room.shape[0]
    while begin < num:
        machine = machines.machine_of[tree.dest[begin]]
        end = begin + 1
        while end < num and machines.machine_of[tree.dest[end]] == machine:
            end += 1
        home = machine == machines.machine_of[owner]
        last = stages if home or end - begin == 1 else stages - 1
        sender, k = owner, (turn + machine) % last
        for i in range(end - begin):
            v = tree.dest[begin + (turn + i) % (end - begin)]
            for _ in range(last):  # to a stage that is longer than the latency
                if loads.room[k] > machines.latency[sender, v] or sender != owner:
                    break
                k = (k + 1) % last
            if machines.hop[sender, v, 0] < 0 or loads.room[k] <= machines.latency[sender, v]:
                return False
            _send(machines, loads, tree, sender, v, k, rows)
            if not home and i == 0:
                sender, k = v, k + 1
        begin = end
    for e in range(tree.size[0]):
        tree.ready[tree.dst[e]] = -1
    return True


@compiled(allocates=False, entry=False)
def _is_late(machines: Machines, loads: Loads, u: int, v: int, k: int) -> bool:
    """Tell whether the link from u to v takes longer than stage k should."""
    slowest = 0.0
    for h in range(machines.hop.shape[2]):
        c = machines.hop[u, v, h]
        if c < 0:
            break
        slowest = max(slowest, loads.busy[c, k])
    return machines.latency[u, v] + slowest > loads.room[k]


@compiled(allocates=False)
def plan_trees(
    machines: Machines, loads: Loads, tree: Tree, order: Any, source: Any, dests: Any, count: Any,
    before: Any, start: int, ptr: Any, src: Any, dst: Any, stage: Any, most: int, blindly: bool,
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
        blindly: whether to plan at no loads, for want of time.

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
        num = 0
        for w in range(dests.shape[1]):
            bits = dests[c, w]
            while bits:
                v = 64 * w + lowest_bit(bits)
                place = num
                while place > 0 and machines.machine_of[tree.dest[place - 1]] > machines.machine_of[v]:
                    tree.dest[place] = tree.dest[place - 1]
                    place -= 1
                tree.dest[place] = v
                num += 1
                bits &= bits - np.uint64(1)
        begin, end = old_ptr[n], old_ptr[n + 1]
        late = begin == end
        for e in range(begin, end):
            late = late or _is_late(machines, loads, old_src[e], old_dst[e], old_stage[e])
        if late:
            for e in range(begin, end):
                _add(machines, loads, old_src[e], old_dst[e], old_stage[e], -rows)
            if blindly:
                fine = _grow_blindly(machines, loads, tree, source[c], num, rows, n)
            else:
                fine = _grow(machines, loads, tree, source[c], num, rows, n)
            if not fine:
                return -1
            for e in range(tree.size[0]):
                src[at + e], dst[at + e], stage[at + e] = tree.src[e], tree.dst[e], tree.stage[e]
            ptr[n + 1] = at + tree.size[0]
        else:
            for e in range(begin, end):
                o = at + e - begin
                src[o], dst[o], stage[o] = old_src[e], old_dst[e], old_stage[e]
            ptr[n + 1] = at + end - begin
    return order.shape[0]

"""Whole flows to journeys: which vertices of which class take which option, state by state.

Each state holds a list of portions (a class and an interval of its vertices). The portions are dealt to the
options of the state in turn, so each boundary between two options cuts at most one portion, and classes that
meet in a state are rarely cut at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array
from dgcl.planner.compiled import compiled
from dgcl.planner.flows import Flows
from dgcl.planner.rounding import WholeFlows
from dgcl.planner.subsets import SubsetFamily
from dgcl.planner.tree_program import Moves


class Journeys(NamedTuple):
    """Hops of portions, n of them, in order of stages: vertices ``begin:end`` of a class cross a link in a stage."""

    class_: Int32Array
    begin: Int64Array
    end: Int64Array
    stage: Int32Array
    link: Int32Array


class _Lists(NamedTuple):
    """Linked lists of portions in growing arrays; `next` of a free entry is the next free one."""

    class_: Int32Array
    begin: Int64Array
    end: Int64Array
    next: Int64Array


@compiled
def _grown(lists: _Lists) -> _Lists:
    size = lists.class_.shape[0]
    class_, next_ = np.empty(2 * size, np.int32), np.arange(1, 2 * size + 1)
    begin, end = np.empty(2 * size, np.int64), np.empty(2 * size, np.int64)
    class_[:size], begin[:size], end[:size], next_[:size] = lists.class_, lists.begin, lists.end, lists.next
    return _Lists(class_, begin, end, next_)


@compiled
def _copy(lists: _Lists, free: int, entry: int, begin: int) -> tuple[_Lists, int, int]:
    """Take a free entry for vertices ``begin:`` of `entry`'s portion; return lists, the next free, the copy."""
    if free >= lists.class_.shape[0]:
        lists = _grown(lists)
    copy = free
    free = lists.next[copy]
    lists.class_[copy], lists.begin[copy], lists.end[copy] = lists.class_[entry], begin, lists.end[entry]
    return lists, free, copy


@compiled
def _cut(lists: _Lists, free: int, entry: int, length: int) -> tuple[_Lists, int]:
    """Leave `length` vertices in `entry` and put the others into an entry right behind it."""
    following, middle = lists.next[entry], lists.begin[entry] + length
    lists, free, piece = _copy(lists, free, entry, middle)
    lists.end[entry] = middle
    lists.next[entry], lists.next[piece] = piece, following
    return lists, free


@compiled
def _append(lists: _Lists, entry: int, head: Int64Array, tail: Int64Array, at: int) -> None:
    """Put `entry` at the end of list number `at`."""
    lists.next[entry] = -1
    if head[at] < 0:
        head[at] = entry
    else:
        lists.next[tail[at]] = entry
    tail[at] = entry


@compiled
def deal(
    family: SubsetFamily,
    moves: Moves,
    flows: Flows,
    whole: WholeFlows,
    item_ptr: Int64Array,
    item_set: Int32Array,
    source: Int32Array,
    count: Int64Array,
) -> Journeys:
    """Send the vertices of every class through the states as `whole` says.

    Args:
        family, moves: the states.
        flows: only its index arrays are used.
        whole: rows that take each option.
        item_ptr, item_set: the sets to which the rows of each class must be brought, (C+1,) and (I,).
        source, count: owner and number of vertices of each class, (C,).
    """
    num_stages, world, num_sets = whole.wait.shape
    num_groups = family.set_ptr.shape[0] - 1
    num_items = item_set.shape[0]
    size = 2 * num_items + 64
    lists = _Lists(
        np.empty(size, np.int32), np.empty(size, np.int64), np.empty(size, np.int64), np.arange(1, size + 1)
    )
    free = 0
    room = 2 * num_items + 64
    out_class, out_stage, out_link = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int32)
    out_begin, out_end = np.empty(room, np.int64), np.empty(room, np.int64)
    written = 0
    # List numbers: a state (v, f) is v * F + f; what leaves v undivided is f alone, in `out_*`.
    head, tail = np.full(world * num_sets, -1, np.int64), np.full(world * num_sets, -1, np.int64)
    later_head, later_tail = head.copy(), tail.copy()
    leave_head, leave_tail = np.full(num_sets, -1, np.int64), np.full(num_sets, -1, np.int64)
    for c in range(source.shape[0]):
        for i in range(item_ptr[c], item_ptr[c + 1]):
            entry = free
            free = lists.next[entry]
            lists.class_[entry], lists.begin[entry], lists.end[entry] = c, 0, count[c]
            _append(lists, entry, head, tail, source[c] * num_sets + item_set[i])
    for k in range(num_stages):
        for v in range(world):
            for g in range(num_groups):
                at = v * num_groups + g
                low, high = family.set_ptr[g], family.set_ptr[g + 1]
                for f in range(high - 1, low, -1):
                    entry = head[v * num_sets + f]
                    head[v * num_sets + f] = -1
                    q = family.pair_ptr[f] - 1
                    room_left = np.int64(0)
                    while entry >= 0:
                        if not moves.splits[at]:
                            following = lists.next[entry]
                            _append(lists, entry, leave_head, leave_tail, f)
                            entry = following
                            continue
                        while room_left == 0:
                            q += 1
                            room_left = whole.pair[k, flows.pair_base[at] + q]
                        if lists.end[entry] - lists.begin[entry] > room_left:
                            lists, free = _cut(lists, free, entry, room_left)
                        following = lists.next[entry]
                        room_left -= lists.end[entry] - lists.begin[entry]
                        rest = family.pair_rest[q]
                        if rest != low:
                            lists, free, copy = _copy(lists, free, entry, lists.begin[entry])
                            _append(lists, copy, head, tail, v * num_sets + rest)
                        _append(lists, entry, leave_head, leave_tail, family.pair_first[q])
                        entry = following
                begin, end = moves.ptr[at], moves.ptr[at + 1]
                for f in range(low + 1, high):
                    entry = leave_head[f]
                    leave_head[f] = -1
                    base = flows.move_base[at] + (f - low) * (end - begin)
                    j = -1  # first those that wait, then the moves in turn
                    room_left = whole.wait[k, v, f]
                    while entry >= 0:
                        while room_left == 0:
                            j += 1
                            room_left = whole.move[k, base + j]
                        if lists.end[entry] - lists.begin[entry] > room_left:
                            lists, free = _cut(lists, free, entry, room_left)
                        following = lists.next[entry]
                        room_left -= lists.end[entry] - lists.begin[entry]
                        if j < 0:
                            _append(lists, entry, later_head, later_tail, v * num_sets + f)
                            entry = following
                            continue
                        if written == room:
                            room *= 2
                            out_class = np.concatenate((out_class, np.empty_like(out_class)))
                            out_begin = np.concatenate((out_begin, np.empty_like(out_begin)))
                            out_end = np.concatenate((out_end, np.empty_like(out_end)))
                            out_stage = np.concatenate((out_stage, np.empty_like(out_stage)))
                            out_link = np.concatenate((out_link, np.empty_like(out_link)))
                        out_class[written] = lists.class_[entry]
                        out_begin[written], out_end[written] = lists.begin[entry], lists.end[entry]
                        out_stage[written], out_link[written] = k, moves.link[begin + j]
                        written += 1
                        w = moves.dst[begin + j]
                        left = np.int64(f)
                        if family.group_of[w] == g:
                            left = np.int64(family.minus[f, family.bit_of[w]])
                        if left != low:
                            _append(lists, entry, later_head, later_tail, w * num_sets + left)
                        else:
                            lists.next[entry] = free
                            free = entry
                        entry = following
        head, later_head = later_head, head
        tail, later_tail = later_tail, tail
    return Journeys(
        out_class[:written], out_begin[:written], out_end[:written], out_stage[:written], out_link[:written]
    )

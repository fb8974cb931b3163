"""Flow decomposition: which vertices of which class take which option, state by state.

Each state holds a linked list of vertex intervals of classes. They are assigned to the options of the state in order,
so each boundary between two options cuts at most one interval, and classes that meet in a state are rarely cut at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.flows import Flows
from dgcl.planner.column_generation.pricing.new_arrays import filled_int32s, new_int32_table
from dgcl.planner.column_generation.pricing.states import Moves, SubsetFamily, remaining_set
from dgcl.planner.column_generation.pricing.tree_program import WAIT
from dgcl.planner.column_generation.rounding.whole_flows import WholeFlows
from dgcl.planner.compiled import compiled

ALL = -1  # in place of the number of an interval: all vertices of the class


class IntervalLists(NamedTuple):
    """Linked lists of vertex intervals, with room for all that can exist at once.

    Attributes:
        entry: (n, 3) int32, class, interval and next entry (of a free entry: the next free one).
        size: (n,) int64, number of vertices.
        begin, end: int64, the intervals.
        counter: the first free entry, and the number of intervals in use.
    """

    entry: Int32Array
    size: Int64Array
    begin: Int64Array
    end: Int64Array
    counter: Int64Array


def empty_interval_lists(
    space_family: SubsetFamily, item_set: Int32Array, whole: WholeFlows
) -> IntervalLists:
    """Allocate lists that never need to grow.

    The entries of one interval at one time stand for disjoint sets of destinations, so an item has at most as many
    as it has destinations; each boundary between options makes one entry more, and two intervals.
    """
    served = np.bitwise_count(space_family.set_mask)[item_set].sum(dtype=np.int64)
    cuts = sum(int(np.count_nonzero(part)) for part in whole)
    room = int(served) + cuts * space_family.minus.shape[1] + 1
    assert room < 1 << 31, "more intervals than can be numbered"
    return IntervalLists(
        np.empty((room, 3), np.int32),
        np.empty(room, np.int64),
        np.empty(2 * cuts + 1, np.int64),
        np.empty(2 * cuts + 1, np.int64),
        np.zeros(2, np.int64),
    )


@compiled(entry=False)
def take(lists: IntervalLists, class_: int, interval: int, size: int) -> int:
    """Return a fresh entry."""
    taken = lists.counter[0]
    lists.counter[0] = lists.entry[taken, 2]
    lists.entry[taken, 0], lists.entry[taken, 1] = class_, interval
    lists.size[taken] = size
    return taken


@compiled(entry=False)
def _new_interval(lists: IntervalLists, begin: int | np.int64, end: int | np.int64) -> int:
    """Add an interval and return its number."""
    interval = lists.counter[1]
    lists.counter[1] += 1
    lists.begin[interval], lists.end[interval] = begin, end
    return interval


@compiled(entry=False)
def cut(lists: IntervalLists, at: int, length: int) -> None:
    """Leave `length` vertices in entry `at`; put the others into a new entry behind it."""
    interval = lists.entry[at, 1]
    begin = lists.begin[interval] if interval != ALL else np.int64(0)
    end = begin + lists.size[at]
    behind = take(
        lists, lists.entry[at, 0], _new_interval(lists, begin + length, end), lists.size[at] - length
    )
    lists.entry[behind, 2] = lists.entry[at, 2]
    lists.entry[at, 1], lists.entry[at, 2] = _new_interval(lists, begin, begin + length), behind
    lists.size[at] = length


@compiled(entry=False)
def append(entry: Int32Array, at: int, head: Int32Array, tail: Int32Array, number: int) -> None:
    """Put entry `at` at the end of list `number`."""
    entry[at, 2] = -1
    if head[number] < 0:
        head[number] = at
    else:
        entry[tail[number], 2] = at
    tail[number] = at


class IntervalHops(NamedTuple):
    """Hops of vertex intervals, n of them, in order of stages.

    Attributes:
        class_: (n,) int32.
        interval: (n,) int32, which of the `begin`, `end` intervals of its class's vertices travels, or ALL.
        hop: (n,) int32, stage * number of links + link.
        begin, end: (number of intervals,) int64.
    """

    class_: Int32Array
    interval: Int32Array
    hop: Int32Array
    begin: Int64Array
    end: Int64Array


def decompose(
    family: SubsetFamily,
    moves: Moves,
    flows: Flows,
    whole: WholeFlows,
    item_ptr: Int64Array,
    item_set: Int32Array,
    source: Int32Array,
    count: Int64Array,
    num_links: int,
) -> IntervalHops:
    """Send the vertices of every class through the states as `whole` says.

    Args:
        family, moves: the states.
        flows: only its index arrays are used.
        whole: rows that take each option.
        item_ptr, item_set: the sets to which the rows of each class must be brought, (C+1,) and (I,).
        source, count: owner and number of vertices of each class, (C,).
        num_links: number of links of the machine.
    """
    lists = empty_interval_lists(family, item_set, whole)
    num_sets = whole.wait.shape[2]
    class_ = np.repeat(np.arange(source.shape[0]), np.diff(item_ptr))
    state = source[class_].astype(np.int64) * num_sets + item_set
    order = np.argsort(state, kind="stable")  # entries of a state are contiguous
    class_, state, num = class_[order], state[order], order.shape[0]
    lists.entry[:num, 0], lists.entry[:num, 1], lists.size[:num] = class_, ALL, count[class_]
    lists.entry[:, 2] = np.arange(1, lists.size.shape[0] + 1)
    last = np.append(state[1:] != state[:-1], True)[:num]
    lists.entry[:num][last, 2] = -1
    lists.counter[0] = num
    head, tail = np.full((2, whole.wait.shape[1] * num_sets), -1, np.int32)
    tail[state[last]] = np.flatnonzero(last)
    head[state[::-1]] = np.arange(num)[::-1]  # the first of each state is written last
    hops = _decompose(family, moves, flows, whole, num_links, lists, head, tail)
    num_intervals = int(lists.counter[1])
    return IntervalHops(
        hops[:, 0], hops[:, 1], hops[:, 2], lists.begin[:num_intervals], lists.end[:num_intervals]
    )


@compiled(inline=False, entry=False)
def _twice(table: Int32Array) -> Int32Array:
    """Return a copy of the hops with room for twice as many."""
    out = new_int32_table(2 * table.shape[0], 3)
    for i in range(table.shape[0]):
        for j in range(3):
            out[i, j] = table[i, j]
    return out


@compiled
def _decompose(
    family: SubsetFamily,
    moves: Moves,
    flows: Flows,
    whole: WholeFlows,
    num_links: int,
    lists: IntervalLists,
    head: Int32Array,
    tail: Int32Array,
) -> Int32Array:
    """Return the hops as (n, 3): class, interval, hop."""
    num_stages, world, num_sets = whole.wait.shape
    num_groups = family.set_ptr.shape[0] - 1
    # List numbers: a state (v, f) is v * F + f; what leaves the device at hand as a whole is f alone.
    later_head, later_tail = filled_int32s(world * num_sets, -1), filled_int32s(world * num_sets, -1)
    leave_head, leave_tail = filled_int32s(num_sets, -1), filled_int32s(num_sets, -1)
    entry, size, counter = lists.entry, lists.size, lists.counter
    out = new_int32_table(2 * lists.counter[0] + 64, 3)
    written = 0
    for k in range(num_stages):
        for v in range(world):
            for g in range(num_groups):
                at = v * num_groups + g
                low, high = family.set_ptr[g], family.set_ptr[g + 1]
                for f in range(high - 1, low, -1):
                    e = np.int64(head[v * num_sets + f])
                    if e < 0:
                        continue
                    head[v * num_sets + f] = -1
                    if not moves.splits[at]:
                        leave_head[f], leave_tail[f] = e, tail[v * num_sets + f]
                        continue
                    q = family.pair_ptr[f] - 1
                    left = np.int64(0)  # rows that option q still takes
                    while e >= 0:
                        while left == 0:
                            q += 1
                            left = whole.pair[k, flows.pair_base[at] + q]
                        if size[e] > left:
                            cut(lists, e, left)
                        following = np.int64(entry[e, 2])
                        left -= size[e]
                        rest = family.pair_rest[q]
                        if rest != low:
                            copy = np.int64(counter[0])
                            counter[0] = entry[copy, 2]
                            entry[copy, 0], entry[copy, 1], size[copy] = entry[e, 0], entry[e, 1], size[e]
                            append(entry, copy, head, tail, v * num_sets + rest)
                        append(entry, e, leave_head, leave_tail, np.int64(family.pair_first[q]))
                        e = following
                begin, end = moves.ptr[at], moves.ptr[at + 1]
                for f in range(low + 1, high):
                    e = np.int64(leave_head[f])
                    if e < 0:
                        continue
                    leave_head[f] = -1
                    base = flows.move_base[at] + (f - low) * (end - begin)
                    j = np.int64(WAIT)  # first those that wait, then the moves in turn
                    left = whole.wait[k, v, f]
                    while e >= 0:
                        while left == 0:
                            j += 1
                            left = whole.move[k, base + j]
                        if size[e] > left:
                            cut(lists, e, left)
                        following = np.int64(entry[e, 2])
                        left -= size[e]
                        if j == WAIT:
                            append(entry, e, later_head, later_tail, v * num_sets + f)
                            e = following
                            continue
                        if written == out.shape[0]:
                            out = _twice(out)
                        out[written, 0], out[written, 1] = entry[e, 0], entry[e, 1]
                        out[written, 2] = k * num_links + moves.link[begin + j]
                        written += 1
                        w = moves.dst[begin + j]
                        then = remaining_set(family, f, g, np.int64(w))
                        if then != low:
                            append(entry, e, later_head, later_tail, w * num_sets + then)
                        else:
                            entry[e, 2] = counter[0]
                            counter[0] = e
                        e = following
        head, later_head = later_head, head
        tail, later_tail = later_tail, tail
    return out[:written]

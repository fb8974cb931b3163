"""Flow decomposition: which vertices of which class take which option, state by state.

Each state holds a list of vertex intervals of classes. They are assigned to the options of the state in order, so each
boundary between two options cuts at most one interval, and classes that meet in a state are rarely cut at all. Most
states are *forced*: all their rows take one option, and so on to the end. An interval that gets to a forced state is
recorded once, and its path is expanded later (assembly.py). Items that start in a forced state are not decomposed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.flows import Flows
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily, remaining_set
from dgcl.planner.column_generation.pricing.tree_program import WAIT, Moves
from dgcl.planner.column_generation.rounding.intervals import (
    ALL,
    IntervalLists,
    append,
    cut,
    empty_interval_lists,
)
from dgcl.planner.column_generation.rounding.whole_flows import WholeFlows
from dgcl.planner.column_generation.trees.new_arrays import filled_int32s, filled_ints, new_int32_table
from dgcl.planner.compiled import compiled


class IntervalHops(NamedTuple):
    """Hops of vertex intervals, n of them, in order of stages; none of items that start in a forced state.

    Attributes:
        class_: (n,) int32.
        interval: (n,) int32, which of the `begin`, `end` intervals of its class's vertices travels, or ALL.
        hop: (n,) int32, stage * number of links + link; from number of stages * number of links on, the forced
            state whose whole path is meant.
        begin, end: (number of intervals,) int64.
    """

    class_: Int32Array
    interval: Int32Array
    hop: Int32Array
    begin: Int64Array
    end: Int64Array


class ForcedStates(NamedTuple):
    """States in which nothing is left to choose.

    Attributes:
        pair: (K, P, F) int32, the one split that all rows of the state take, or -1: not forced.
        move: (K, P, F) int32, what sets do that leave as a whole: a move, WAIT, or -2: not forced.
    """

    pair: Int32Array
    move: Int32Array


@compiled(inline=False)
def find_forced_states(family: SubsetFamily, moves: Moves, flows: Flows, whole: WholeFlows) -> ForcedStates:
    """Find the forced states, backwards over stages and upwards over sets."""
    num_stages, world, num_sets = whole.wait.shape
    num_groups = family.set_ptr.shape[0] - 1
    pair, move = (
        np.full((num_stages, world, num_sets), -1, np.int32),
        np.full((num_stages, world, num_sets), -2, np.int32),
    )
    for k in range(num_stages - 1, -1, -1):
        for v in range(world):
            for g in range(num_groups):
                at = v * num_groups + g
                low, high = family.set_ptr[g], family.set_ptr[g + 1]
                begin, end = moves.ptr[at], moves.ptr[at + 1]
                for f in range(low + 1, high):
                    base = flows.move_base[at] + (f - low) * (end - begin)
                    taken = 0
                    if whole.wait[k, v, f] > 0:
                        taken = 1
                        if k + 1 < num_stages and pair[k + 1, v, f] >= 0:
                            move[k, v, f] = WAIT
                    for j in range(end - begin):
                        if whole.move[k, base + j] > 0:
                            taken += 1
                            w = moves.dst[begin + j]
                            then = remaining_set(family, f, g, np.int64(w))
                            if then == low or (k + 1 < num_stages and pair[k + 1, w, then] >= 0):
                                move[k, v, f] = begin + j
                    if taken != 1:
                        move[k, v, f] = -2
                    if not moves.splits[at]:
                        if move[k, v, f] != -2:
                            pair[k, v, f] = family.pair_ptr[f]
                        continue
                    only = -1
                    for q in range(family.pair_ptr[f], family.pair_ptr[f + 1]):
                        if whole.pair[k, flows.pair_base[at] + q] > 0:
                            only = q if only == -1 else -2
                    if only >= 0 and move[k, v, family.pair_first[only]] != -2:
                        rest = family.pair_rest[only]
                        if rest == low or pair[k, v, rest] >= 0:
                            pair[k, v, f] = only
    return ForcedStates(pair, move)


@compiled(inline=False, entry=False)
def _fill(
    lists: IntervalLists,
    item_ptr: Int64Array,
    item_set: Int32Array,
    source: Int32Array,
    count: Int64Array,
    num_sets: int,
    head: Int32Array,
    tail: Int32Array,
    forced: Int32Array,
) -> None:
    """Put one entry per item that is not forced into the list of its state; entries of a state are contiguous."""
    start, at = filled_ints(head.shape[0] + 1, 0), filled_ints(head.shape[0] + 1, 0)
    for c in range(source.shape[0]):
        for i in range(item_ptr[c], item_ptr[c + 1]):
            if forced[0, source[c], item_set[i]] < 0:
                start[source[c] * num_sets + item_set[i] + 1] += 1
    num_entries = 0
    for number in range(head.shape[0] + 1):
        num_entries += start[number]
        at[number] = num_entries
    for c in range(source.shape[0]):
        for i in range(item_ptr[c], item_ptr[c + 1]):
            if forced[0, source[c], item_set[i]] >= 0:
                continue
            number = source[c] * num_sets + item_set[i]
            lists.entry[at[number], 0], lists.entry[at[number], 1] = c, ALL
            lists.size[at[number]] = count[c]
            at[number] += 1
    for number in range(head.shape[0]):
        for e in range(at[number] - start[number + 1], at[number]):
            append(lists.entry, e, head, tail, number)
    for e in range(num_entries, lists.size.shape[0]):
        lists.entry[e, 2] = e + 1
    lists.counter[0] = num_entries


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
    forced: ForcedStates,
) -> IntervalHops:
    """Send the vertices of every class through the states as `whole` says.

    Args:
        family, moves: the states.
        flows: only its index arrays are used.
        whole: rows that take each option.
        item_ptr, item_set: the sets to which the rows of each class must be brought, (C+1,) and (I,).
        source, count: owner and number of vertices of each class, (C,).
        num_links: number of links of the machine.
        forced: from `find_forced_states`.
    """
    started = forced.pair[0, np.repeat(source, np.diff(item_ptr)), item_set] >= 0
    lists = empty_interval_lists(family, item_set[~started], whole)
    hops = _decompose(
        family, moves, flows, whole, item_ptr, item_set, source, count, num_links, forced.pair, lists
    )
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
    item_ptr: Int64Array,
    item_set: Int32Array,
    source: Int32Array,
    count: Int64Array,
    num_links: int,
    forced: Int32Array,
    lists: IntervalLists,
) -> Int32Array:
    """Return the hops as (n, 3): class, interval, hop."""
    num_stages, world, num_sets = whole.wait.shape
    num_groups = family.set_ptr.shape[0] - 1
    # List numbers: a state (v, f) is v * F + f; what leaves the device at hand as a whole is f alone.
    head, tail = filled_int32s(world * num_sets, -1), filled_int32s(world * num_sets, -1)
    later_head, later_tail = filled_int32s(world * num_sets, -1), filled_int32s(world * num_sets, -1)
    leave_head, leave_tail = filled_int32s(num_sets, -1), filled_int32s(num_sets, -1)
    _fill(lists, item_ptr, item_set, source, count, num_sets, head, tail, forced)
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
                    if forced[k, v, f] >= 0:
                        hop = num_stages * num_links + (k * world + v) * num_sets + f
                        while e >= 0:
                            if written == out.shape[0]:
                                out = _twice(out)
                            out[written, 0], out[written, 1], out[written, 2] = entry[e, 0], entry[e, 1], hop
                            written += 1
                            following = np.int64(entry[e, 2])
                            entry[e, 2] = counter[0]
                            counter[0] = e
                            e = following
                        continue
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

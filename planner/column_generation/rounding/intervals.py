"""Linked lists of vertex intervals: each entry is a class and an interval of its vertices, which can be cut in two."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily
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

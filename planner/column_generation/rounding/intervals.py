"""Linked lists of portions: a class and an interval of its vertices, which can be cut in two."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily
from dgcl.planner.column_generation.rounding.whole_flows import WholeFlows
from dgcl.planner.compiled import compiled

ALL = -1  # in place of a piece: all vertices of the class


class Portions(NamedTuple):
    """Linked lists of portions, with room for all that can ever exist at once.

    Attributes:
        entry: (n, 3) int32, class, piece and next entry (of a free entry: the next free one).
        size: (n,) int64, number of vertices.
        begin, end: intervals.
        counter: the first free entry, and the number of intervals in use.
    """

    entry: Int32Array
    size: Int64Array
    begin: Int64Array
    end: Int64Array
    counter: Int64Array


def empty_portions(space_family: SubsetFamily, item_set: Int32Array, whole: WholeFlows) -> Portions:
    """Allocate lists that never need to grow.

    The entries of one portion at one time stand for disjoint sets of destinations, so an item has at most as
    many as it has destinations; each boundary between options makes one portion more, of two intervals.
    """
    served = np.bitwise_count(space_family.set_mask)[item_set].sum(dtype=np.int64)
    cuts = sum(int(np.count_nonzero(part)) for part in whole)
    room = int(served) + cuts * space_family.minus.shape[1] + 1
    assert room < 1 << 31, "more portions than can be numbered"
    return Portions(
        np.empty((room, 3), np.int32),
        np.empty(room, np.int64),
        np.empty(2 * cuts + 1, np.int64),
        np.empty(2 * cuts + 1, np.int64),
        np.zeros(2, np.int64),
    )


@compiled
def take(lists: Portions, class_: int, piece: int, size: int) -> int:
    """Return a fresh entry."""
    taken = lists.counter[0]
    lists.counter[0] = lists.entry[taken, 2]
    lists.entry[taken, 0], lists.entry[taken, 1] = class_, piece
    lists.size[taken] = size
    return taken


@compiled
def _new_piece(lists: Portions, begin: int | np.int64, end: int | np.int64) -> int:
    """Return the number of a new interval."""
    piece = lists.counter[1]
    lists.counter[1] += 1
    lists.begin[piece], lists.end[piece] = begin, end
    return piece


@compiled
def cut(lists: Portions, at: int, length: int) -> None:
    """Leave `length` vertices in entry `at` and put the others into an entry right behind it."""
    piece = lists.entry[at, 1]
    begin = lists.begin[piece] if piece != ALL else np.int64(0)
    end = begin + lists.size[at]
    behind = take(lists, lists.entry[at, 0], _new_piece(lists, begin + length, end), lists.size[at] - length)
    lists.entry[behind, 2] = lists.entry[at, 2]
    lists.entry[at, 1], lists.entry[at, 2] = _new_piece(lists, begin, begin + length), behind
    lists.size[at] = length


@compiled
def append(entry: Int32Array, at: int, head: Int32Array, tail: Int32Array, number: int) -> None:
    """Put entry `at` at the end of list `number`."""
    entry[at, 2] = -1
    if head[number] < 0:
        head[number] = at
    else:
        entry[tail[number], 2] = at
    tail[number] = at

"""Operations on the edges of one tree, in arrays of links and stages: sort, clean, compare."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array, MaskArray
from dgcl.planner.compiled import compiled


class LinkEnds(NamedTuple):
    """The devices that links join: from ``src[l]`` to ``dst[l]``, (L,) int32 each."""

    src: Int32Array
    dst: Int32Array


@compiled(inline=False, entry=False)
def sort_by_stage(link: Int32Array, stage: Int32Array, num: int) -> None:
    """Sort the first `num` edges by (stage, link), in place (insertion sort: short and nearly sorted)."""
    for e in range(1, num):
        a, b = stage[e], link[e]
        at = e
        while at > 0 and (stage[at - 1] > a or (stage[at - 1] == a and link[at - 1] > b)):
            stage[at], link[at] = stage[at - 1], link[at - 1]
            at -= 1
        stage[at], link[at] = a, b


@compiled(entry=False)
def _is_clean(link: Int32Array, num: int, source: int, wanted: np.uint64, ends: LinkEnds) -> bool:
    """Tell whether nothing is left to clean, for up to 64 devices.

    That is so if each device is entered at most once, the owner never, and every relay sends the row on.
    """
    entered, sending = np.uint64(1) << np.uint64(source), np.uint64(0)
    again = np.uint64(0)
    for e in range(num):
        bit = np.uint64(1) << np.uint64(ends.dst[link[e]])
        again |= entered & bit
        entered |= bit
        sending |= np.uint64(1) << np.uint64(ends.src[link[e]])
    return again == 0 and (entered & ~(wanted | sending)) == 0


@compiled(inline=False, entry=False)
def cleaned(
    link: Int32Array,
    stage: Int32Array,
    num: int,
    source: int,
    wanted: MaskArray,
    ends: LinkEnds,
    entered: Int32Array,
    needed: Int32Array,
) -> int:
    """Drop second deliveries and useless relays from edges sorted by stage, in place; return how many stay.

    Args:
        link, stage: the edges, ``[:num]`` of them.
        num: see there.
        source, wanted: the owner, and the destinations as mask words.
        ends: the devices that links join.
        entered, needed: (P,) scratch.
    """
    if wanted.shape[0] == 1 and _is_clean(link, num, source, wanted[0], ends):
        return num
    for d in range(entered.shape[0]):
        entered[d], needed[d] = 0, 0
    entered[source] = 1
    kept = 0
    for e in range(num):
        d = ends.dst[link[e]]
        if entered[d]:
            continue
        entered[d] = 1
        link[kept], stage[kept] = link[e], stage[e]
        kept += 1
    first = kept
    for e in range(kept - 1, -1, -1):  # children first: whoever sends over a kept edge is needed
        d = ends.dst[link[e]]
        if needed[d] or (wanted[d >> 6] >> np.uint64(d & 63)) & np.uint64(1):
            needed[ends.src[link[e]]] = 1
            first -= 1
            link[first], stage[first] = link[e], stage[e]
    for e in range(first, kept):
        link[e - first], stage[e - first] = link[e], stage[e]
    return kept - first


@compiled(inline=False, entry=False)
def same_tree(
    edge_ptr: Int64Array, link: Int32Array, stage: Int32Array, first: int, last: int, num: int
) -> int:
    """Return which of the trees ``first:last`` has the same edges as the `num` right behind them; -1: none."""
    at = edge_ptr[last]
    for t in range(first, last):
        begin = edge_ptr[t]
        if edge_ptr[t + 1] - begin != num:
            continue
        e = 0
        while e < num and link[begin + e] == link[at + e] and stage[begin + e] == stage[at + e]:
            e += 1
        if e == num:
            return t
    return -1

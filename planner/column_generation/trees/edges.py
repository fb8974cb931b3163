"""The edges of one tree in arrays of links and stages: sorted, cleaned, compared with those of others."""

from __future__ import annotations

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array, MaskArray
from dgcl.planner.compiled import compiled


@compiled
def sort_by_stage(link: Int32Array, stage: Int32Array, num: int) -> None:
    """Sort ``[:num]`` by (stage, link), in place (insertion sort: short and nearly sorted)."""
    for e in range(1, num):
        a, b = stage[e], link[e]
        at = e
        while at > 0 and (stage[at - 1] > a or (stage[at - 1] == a and link[at - 1] > b)):
            stage[at], link[at] = stage[at - 1], link[at - 1]
            at -= 1
        stage[at], link[at] = a, b


@compiled
def _is_clean(
    link: Int32Array, num: int, source: int, wanted: np.uint64, link_src: Int32Array, link_dst: Int32Array
) -> bool:
    """Tell whether up to 64 devices are entered once each, the owner never, and whoever wants no row sends it on.

    Then nothing is left to clean, if devices send only what has entered them.
    """
    entered, sending = np.uint64(1) << np.uint64(source), np.uint64(0)
    again = np.uint64(0)
    for e in range(num):
        bit = np.uint64(1) << np.uint64(link_dst[link[e]])
        again |= entered & bit
        entered |= bit
        sending |= np.uint64(1) << np.uint64(link_src[link[e]])
    return again == 0 and (entered & ~(wanted | sending)) == 0


@compiled
def cleaned(
    link: Int32Array,
    stage: Int32Array,
    num: int,
    source: int,
    wanted: MaskArray,
    link_src: Int32Array,
    link_dst: Int32Array,
    entered: Int32Array,
    needed: Int32Array,
) -> int:
    """Drop second entries and useless relays from edges sorted by stage, in place; return how many stay.

    Args:
        link, stage: the edges, ``[:num]`` of them.
        source, wanted: owner, and the destinations as mask words.
        link_src, link_dst: ends of every link.
        entered, needed: (P,) scratch.
    """
    if wanted.shape[0] == 1 and _is_clean(link, num, source, wanted[0], link_src, link_dst):
        return num
    entered[:] = 0
    needed[:] = 0
    entered[source] = 1
    kept = 0
    for e in range(num):
        d = link_dst[link[e]]
        if entered[d]:
            continue
        entered[d] = 1
        link[kept], stage[kept] = link[e], stage[e]
        kept += 1
    first = kept
    for e in range(kept - 1, -1, -1):  # children first: what sends a kept edge is needed
        d = link_dst[link[e]]
        if needed[d] or (wanted[d >> 6] >> np.uint64(d & 63)) & np.uint64(1):
            needed[link_src[link[e]]] = 1
            first -= 1
            link[first], stage[first] = link[e], stage[e]
    for e in range(first, kept):
        link[e - first], stage[e - first] = link[e], stage[e]
    return kept - first


@compiled
def same_tree(
    edge_ptr: Int64Array, link: Int32Array, stage: Int32Array, first: int, last: int, num: int
) -> int:
    """Return which of the trees ``first:last`` has the `num` edges that stand right behind them; -1: none."""
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

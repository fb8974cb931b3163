"""Numbers the sets of destinations that a row may still have to reach, and lists how each can be split.

The tree program (tree_program.py) works on states (stage, device holding the row, set still to serve). Sets
are kept per *group* of devices: with one group that holds every device the program is exact; with a group
per machine it stays small on many devices (groups.py). Only sets that can occur are numbered: the destination
sets of the relation and all their subsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array, IntArray
from dgcl.planner.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_GROUP = 20  # a family is found through a bitmap of 2**size entries


class SubsetFamily(NamedTuple):
    """Families of local bit masks, one per group, closed under taking subsets.

    Set ids of group g are ``set_ptr[g]:set_ptr[g+1]``, ascending by mask, so a set comes after its subsets;
    the first is the empty set. P devices, G groups, F sets, Q pairs.

    Attributes:
        group_of, bit_of: (P,) int64, the group of a device and its bit in that group's masks.
        set_ptr: (G+1,) int64.
        set_mask: (F,) int64.
        minus: (F, S) int32, the id of the set without local bit b; the set's own id where b is not in it.
        pair_ptr: (F+1,) int64; the splits of set f are ``pair_ptr[f]:pair_ptr[f+1]``.
        pair_first, pair_rest: (Q,) int32, ids of the two disjoint parts. The first part always holds the
            lowest bit of the set, so that no split is listed twice; the rest may be empty.
    """

    group_of: Int64Array
    bit_of: Int64Array
    set_ptr: Int64Array
    set_mask: Int64Array
    minus: Int32Array
    pair_ptr: Int64Array
    pair_first: Int32Array
    pair_rest: Int32Array


def build_family(groups: Sequence[IntArray], needed: Sequence[IntArray]) -> SubsetFamily:
    """Number the subsets of the `needed` local masks of each group.

    Args:
        groups: the devices of each group, (size,) each; bit i of a mask stands for the i-th of them.
        needed: local masks per group, any order, duplicates allowed.
    """
    world = sum(group.shape[0] for group in groups)
    group_of, bit_of = np.zeros(world, np.int64), np.zeros(world, np.int64)
    widest = max(group.shape[0] for group in groups)
    set_ptr = np.zeros(len(groups) + 1, np.int64)
    masks, minus, pairs_ptr, firsts, rests = [], [], [np.zeros(1, np.int64)], [], []
    num_pairs = 0
    for g, (group, wanted) in enumerate(zip(groups, needed, strict=True)):
        size = group.shape[0]
        group_of[group], bit_of[group] = g, np.arange(size)
        mask, index = _closure(size, wanted)
        offset = int(set_ptr[g])
        set_ptr[g + 1] = offset + mask.shape[0]
        bits = 1 << np.arange(widest, dtype=np.int64)
        without = mask[:, None] & ~bits
        minus.append((index[without] + offset).astype(np.int32))
        ptr, first, rest = _splits(mask, index)
        pairs_ptr.append(ptr[1:] + num_pairs)
        num_pairs += int(ptr[-1])
        firsts.append(first + np.int32(offset))
        rests.append(rest + np.int32(offset))
        masks.append(mask)
    return SubsetFamily(
        group_of,
        bit_of,
        set_ptr,
        np.concatenate(masks),
        np.concatenate(minus),
        np.concatenate(pairs_ptr),
        np.concatenate(firsts).astype(np.int32),
        np.concatenate(rests).astype(np.int32),
    )


@compiled(entry=False)
def remaining_set(family: SubsetFamily, f: int | np.int64, g: int, w: int | np.int64) -> np.int64:
    """Return the set that is left of set f of group g once device w has the row."""
    if family.group_of[w] == g:
        return np.int64(family.minus[f, family.bit_of[w]])
    return np.int64(f)


def count_splits(size: int, wanted: IntArray) -> int:
    """Return how many (first, rest) pairs the family of `wanted` masks over `size` devices would hold."""
    mask, _ = _closure(size, wanted)
    population = np.bitwise_count(mask[1:]).astype(np.int64)
    return int((1 << (population - 1)).sum())


def _closure(size: int, wanted: IntArray) -> tuple[Int64Array, Int32Array]:
    """Return the masks that are subsets of a wanted one, ascending, and the index of each mask (-1: no subset)."""
    assert size <= MAX_GROUP, size
    present = np.zeros(1 << size, np.bool_)
    present[0] = True
    present[np.asarray(wanted, np.int64)] = True
    for b in range(size):
        halves = present.reshape(-1, 2, 1 << b)
        halves[:, 0] |= halves[:, 1]
    mask = np.flatnonzero(present)
    index = np.full(1 << size, -1, np.int32)
    index[mask] = np.arange(mask.shape[0], dtype=np.int32)
    return mask, index


@compiled(inline=False)
def _splits(mask: Int64Array, index: Int32Array) -> tuple[Int64Array, Int32Array, Int32Array]:
    """List for each mask its splits into (part with the lowest bit, rest), the whole set first."""
    num = mask.shape[0]
    ptr = np.zeros(num + 1, np.int64)
    for f in range(num):
        size = 0
        m = mask[f]
        while m:
            m &= m - 1
            size += 1
        ptr[f + 1] = ptr[f] + (1 << (size - 1) if size else 0)
    first = np.empty(ptr[num], np.int32)
    rest = np.empty(ptr[num], np.int32)
    for f in range(1, num):
        lowest = mask[f] & -mask[f]
        others = mask[f] ^ lowest
        at = ptr[f]
        part = others
        while True:
            first[at] = index[lowest | part]
            rest[at] = index[others ^ part]
            at += 1
            if part == 0:
                break
            part = (part - 1) & others
    return ptr, first, rest

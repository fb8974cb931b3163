"""Numbers the states of the search for cheapest trees: the device that has a row, the set to serve.

Sets are kept per *group* of devices: with one group of all devices the search (tree_program.py, which adds the stage)
is exact, which is affordable up to a dozen of them; with one per machine, socket or cluster it stays small on many
(device_groups.py). Only sets that can occur are numbered, as bit masks: the destination sets of the relation and all
their subsets. Each lists how it can be divided in two.
Called by `tree_program`, `flows`, `device_groups`, `steiner_trees`, `planner/column_generation/master/price_bound` and
others. Free to change while the sets are all subsets of those needed, with each division once
(`tests/planner/column_generation/test_tree_program.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.array_types import BoolArray, FloatArray, Int32Array, Int64Array, pointers
from dgcl.planner.planner_compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays

CLASSES_AT_A_TIME = 1 << 16  # whose destinations are unpacked
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


class Moves(NamedTuple):
    """Links that a device may use for the sets of a group; P devices, G groups, M moves in all.

    Attributes:
        ptr: (P*G+1,) int64; the moves of (v, g) are ``ptr[v*G+g]:ptr[v*G+g+1]``.
        link, dst: (M,) int32, the link and the device at its end.
        splits: (P*G,) bool, whether v may divide sets of g.
    """

    ptr: Int64Array
    link: Int32Array
    dst: Int32Array
    splits: BoolArray


def build_family(groups: Sequence[Int64Array], needed: Sequence[Int64Array]) -> SubsetFamily:
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
    for g, (group, local_masks) in enumerate(zip(groups, needed, strict=True)):
        size = group.shape[0]
        group_of[group], bit_of[group] = g, np.arange(size)
        mask, index = _closure(size, local_masks)
        offset = int(set_ptr[g])
        set_ptr[g + 1] = offset + mask.shape[0]
        bits = 1 << np.arange(widest, dtype=np.int64)
        without = mask[:, None] & ~bits
        minus.append((index[without] + offset).astype(np.int32))
        population = np.bitwise_count(mask[1:]).astype(np.int64)
        ptr = np.concatenate([[0, 0], np.cumsum(1 << population - 1)])
        first, rest = np.empty((2, int(ptr[-1])), np.int32)
        _list_splits(mask, index, ptr, first, rest)
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


@compiled(allocates=False, entry=False)
def remaining_set(family: SubsetFamily, f: int | np.int64, g: int, w: int | np.int64) -> np.int64:
    """Return the set that is left of set f of group g once device w has the row."""
    if family.group_of[w] == g:
        return np.int64(family.minus[f, family.bit_of[w]])
    return np.int64(f)


def count_splits(size: int, needed: Int64Array) -> int:
    """Return how many (first, rest) pairs the family of `needed` masks over `size` devices would hold."""
    mask, _ = _closure(size, needed)
    population = np.bitwise_count(mask[1:]).astype(np.int64)
    return int((1 << (population - 1)).sum())


def _closure(size: int, needed: Int64Array) -> tuple[Int64Array, Int32Array]:
    """Return the masks that are subsets of a wanted one, ascending, and the index of each mask (-1: no subset)."""
    assert size <= MAX_GROUP, size
    present = np.zeros(1 << size, np.bool_)
    present[0] = True
    present[np.asarray(needed, np.int64)] = True
    for b in range(size):
        halves = present.reshape(-1, 2, 1 << b)
        halves[:, 0] |= halves[:, 1]
    mask = np.flatnonzero(present)
    index = np.full(1 << size, -1, np.int32)
    index[mask] = np.arange(mask.shape[0], dtype=np.int32)
    return mask, index


@compiled(allocates=False)
def _list_splits(
    mask: Int64Array, index: Int32Array, ptr: Int64Array, first: Int32Array, rest: Int32Array
) -> None:
    """List the splits of each mask f from ``ptr[f]`` on: part with the lowest bit, rest; the whole set first."""
    for f in range(1, mask.shape[0]):
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


@dataclass(frozen=True, eq=False)
class StateSpace:
    """States and moves for one relation, topology and grouping; independent of prices and stages.

    Attributes:
        relation, arrays: what must be delivered, and the machine.
        groups: the devices of each group.
        family: the sets.
        moves: the links that may be used.
        item_ptr, item_set: (C+1,) int64 and (I,) int32; rows of class c must be brought to the sets
            ``item_set[item_ptr[c]:item_ptr[c+1]]``, one of each group that has destinations.
        rows: (P, F) int64, rows at each device that must be brought to each set.
        start: the same as float64, which is off by a few where there are more than 2**53.
    """

    relation: Relation
    arrays: TopologyArrays
    groups: tuple[Int64Array, ...]
    family: SubsetFamily
    moves: Moves
    item_ptr: Int64Array
    item_set: Int32Array
    rows: Int64Array
    start: FloatArray

    @property
    def num_sets(self) -> int:
        """Number of sets F over all groups."""
        return int(self.family.set_mask.shape[0])

    @property
    def world_size(self) -> int:
        """Number of devices P."""
        return int(self.start.shape[0])

    @property
    def is_exact(self) -> bool:
        """Whether all devices form one group."""
        return len(self.groups) == 1


def build_states(
    relation: Relation,
    arrays: TopologyArrays,
    groups: Sequence[Int64Array],
    allowed: Sequence[Int64Array] | None = None,
) -> StateSpace:
    """Number the states of `relation` for a grouping of the devices.

    Args:
        relation: what must be delivered.
        arrays: the machine.
        groups: the devices of each group; every device is in exactly one.
        allowed: for each pair v*G + g the links that device v may use for sets of group g; None: all that
            leave v. Devices divide sets of their own group only.
    """
    world, num_groups = relation.world_size, len(groups)
    item_ptr, group_of_item, mask = _divide(relation, groups)
    widest = max(len(group) for group in groups)
    present = np.zeros((num_groups, 1 << widest), np.bool_)
    present[group_of_item, mask] = True
    family = build_family(groups, [np.flatnonzero(seen) for seen in present])
    index = np.zeros((num_groups, 1 << widest), np.int32)
    for g in range(num_groups):
        low, high = family.set_ptr[g], family.set_ptr[g + 1]
        index[g, family.set_mask[low:high]] = np.arange(low, high)
    item_set = index[group_of_item, mask]
    rows = np.zeros((world, family.set_mask.shape[0]), np.int64)
    sizes = np.diff(item_ptr)
    np.add.at(rows, (np.repeat(relation.source, sizes), item_set), np.repeat(relation.count, sizes))
    moves = _moves(arrays, groups, allowed)
    return StateSpace(
        relation, arrays, tuple(groups), family, moves, item_ptr, item_set, rows, rows.astype(np.float64)
    )


def _divide(relation: Relation, groups: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Divide the destinations of each class by group: where the items of each begin, their groups and local masks."""
    local = np.zeros((relation.num_classes, len(groups)), np.int64)
    for first in range(0, relation.num_classes, CLASSES_AT_A_TIME):
        part = slice(first, first + CLASSES_AT_A_TIME)
        dests = relation.dest_matrix(part.start, part.stop)
        for g, group in enumerate(groups):
            local[part, g] = dests[:, group] @ (1 << np.arange(group.shape[0]))
    class_, group_of = np.nonzero(local)
    ptr = np.searchsorted(class_, np.arange(relation.num_classes + 1)).astype(np.int64)
    return ptr, group_of, local[class_, group_of]


def _moves(
    arrays: TopologyArrays, groups: Sequence[Int64Array], allowed: Sequence[Int64Array] | None
) -> Moves:
    """Return who may send what; see `build_states`."""
    world, num_groups = arrays.num_devices, len(groups)
    if allowed is None:
        by_device = np.searchsorted(arrays.link_src, np.arange(world + 1))
        allowed = [np.arange(by_device[v], by_device[v + 1]) for v in range(world) for _ in range(num_groups)]
    links = np.concatenate(allowed).astype(np.int32)
    sizes = np.array([part.shape[0] for part in allowed])
    splits = np.zeros((world, num_groups), np.bool_)
    for g, group in enumerate(groups):
        splits[group, g] = True
    return Moves(pointers(sizes), links, arrays.link_dst[links], splits.reshape(-1))

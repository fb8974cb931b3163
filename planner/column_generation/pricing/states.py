"""The states of a planning problem: which sets exist, who may send what, and how many rows start where.

Built from a relation and a topology for a given grouping of the devices: one group of all devices (exact, up
to a dozen devices), or one per machine, socket or switch (groups.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import BoolArray, FloatArray, Int32Array, Int64Array, IntArray, MaskArray
from dgcl.planner.bits import lowest_bit
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily, build_family
from dgcl.planner.column_generation.pricing.tree_program import Moves
from dgcl.planner.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays


@dataclass(frozen=True, eq=False)
class Items:
    """The destinations of each class, divided by group: class c has items ``ptr[c]:ptr[c+1]``.

    Attributes:
        ptr: (C+1,) int64.
        group: (I,) int32, ascending within a class.
        mask: (I,) int64, local bit mask of the destinations in that group, never 0.
    """

    ptr: Int64Array
    group: Int32Array
    mask: Int64Array


@dataclass(frozen=True, eq=False)
class StateSpace:
    """States and moves for one relation, topology and grouping; independent of prices and stages.

    Attributes:
        groups: the devices of each group.
        family: the sets.
        moves: the links that may be used.
        items: the classes as sets to serve; `item_set` (I,) int32 are their set ids.
        rows: (P, F) int64, rows at each device that must be brought to each set.
        start: the same as float64, which is off by a few where there are more than 2**53.
    """

    groups: tuple[IntArray, ...]
    family: SubsetFamily
    moves: Moves
    items: Items
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


def build_states(
    relation: Relation,
    arrays: TopologyArrays,
    groups: Sequence[IntArray],
    allowed: Sequence[IntArray] | None = None,
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
    group_of, bit_of = np.zeros(world, np.int64), np.zeros(world, np.int64)
    for g, group in enumerate(groups):
        group_of[group], bit_of[group] = g, np.arange(group.shape[0])
    ptr, item_group, mask = _divide(relation.source, relation.dests, group_of, bit_of, num_groups)
    items = Items(ptr, item_group, mask)
    widest = max(len(group) for group in groups)
    present = _present(item_group, mask, num_groups, 1 << widest)
    family = build_family(groups, [np.flatnonzero(seen) for seen in present])
    index = np.zeros((num_groups, 1 << widest), np.int32)
    for g in range(num_groups):
        low, high = family.set_ptr[g], family.set_ptr[g + 1]
        index[g, family.set_mask[low:high]] = np.arange(low, high)
    item_set = index[item_group, mask]
    rows = np.zeros((world, family.set_mask.shape[0]), np.int64)
    _count(ptr, item_set, relation.source, relation.count, rows)
    moves = _moves(arrays, groups, allowed, family, rows)
    return StateSpace(tuple(groups), family, moves, items, item_set, rows, rows.astype(np.float64))


def _moves(
    arrays: TopologyArrays,
    groups: Sequence[IntArray],
    allowed: Sequence[IntArray] | None,
    family: SubsetFamily,
    rows: Int64Array,
) -> Moves:
    """Return who may send what; see `build_states`."""
    world, num_groups = arrays.num_devices, len(groups)
    carried = _carried(groups, family, rows, allowed is None)
    if allowed is None:
        by_device = np.searchsorted(arrays.link_src, np.arange(world + 1))
        allowed = [np.arange(by_device[v], by_device[v + 1]) for v in range(world) for _ in range(num_groups)]
    links = np.concatenate(allowed).astype(np.int32)
    sizes = np.array([part.shape[0] for part in allowed])
    splits = np.zeros((world, num_groups), np.bool_)
    for g, group in enumerate(groups):
        splits[group, g] = True
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Moves(ptr, links, arrays.link_dst[links], splits.reshape(-1), *carried)


def _carried(
    groups: Sequence[IntArray], family: SubsetFamily, rows: Int64Array, everything: bool
) -> tuple[Int64Array, Int32Array]:
    """Return which sets the devices of each group may have to carry, as in `Moves`.

    Rows on their way to another group stay among the devices of their owner's until they cross; with
    `everything` any device may carry any set.
    """
    counts, sets = [np.zeros(1, np.int64)], []
    for group in groups:
        wanted = np.ones(rows.shape[1], np.bool_) if everything else (rows[group] > 0).any(axis=0)
        sets.append(np.flatnonzero(wanted).astype(np.int32))
        counts.append(np.diff(np.searchsorted(sets[-1], family.set_ptr)))
    return np.cumsum(np.concatenate(counts)), np.concatenate(sets)


@compiled
def _present(group: Int32Array, mask: Int64Array, num_groups: int, num_masks: int) -> BoolArray:
    """Tell which masks occur in each group, (G, masks)."""
    seen = np.zeros((num_groups, num_masks), np.bool_)
    for i in range(group.shape[0]):
        seen[group[i], mask[i]] = True
    return seen


@compiled(inline=False)
def _divide(
    source: Int32Array, dests: MaskArray, group_of: Int64Array, bit_of: Int64Array, num_groups: int
) -> tuple[Int64Array, Int32Array, Int64Array]:
    """Return the arrays of `Items`: one pass to count, one to write."""
    num, words = dests.shape
    ptr = np.zeros(num + 1, np.int64)
    local = np.zeros(num_groups, np.int64)
    group = np.empty(0, np.int32)
    mask = np.empty(0, np.int64)
    for writing in range(2):
        if writing:
            group, mask = np.empty(ptr[num], np.int32), np.empty(ptr[num], np.int64)
        for c in range(num):
            local[:] = 0
            for word in range(words):
                bits = dests[c, word]
                while bits:
                    rank = 64 * word + lowest_bit(bits)
                    local[group_of[rank]] |= np.int64(1) << bit_of[rank]
                    bits &= bits - np.uint64(1)
            at = ptr[c]
            for g in range(num_groups):
                if local[g]:
                    if writing:
                        group[at], mask[at] = g, local[g]
                    at += 1
            if not writing:
                ptr[c + 1] = at
    return ptr, group, mask


@compiled
def _count(
    ptr: Int64Array, item_set: Int32Array, source: Int32Array, count: Int64Array, rows: Int64Array
) -> None:
    """Add the rows of each item to its start state."""
    for c in range(source.shape[0]):
        for i in range(ptr[c], ptr[c + 1]):
            rows[source[c], item_set[i]] += count[c]

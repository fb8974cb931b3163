"""Finds who owns and who wants each slice of a row in both exchanges of an aggregation on a grid.

Item ``v * slices + s`` is slice s of the row of vertex v, so a rank's whole rows, viewed as so many times more narrower
ones, are its items. With (r, k, s) the part, depth and slice of a rank, and r(v), k(v) those of v's owner::

    expand  item (u, s) goes to every (r, k(u), s) whose part r reads u
    fold    item (v, s) is summed from every (r(v), k, s) that has an edge into v from depth k

Called by `grid_strategy` and `dgcl/advisor/counts`. Free to change while relations equal brute force over edges and
slices, and the closed formula where all is needed (`tests/dgcl/grid/test_items.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.grid.grid import Grid
from dgcl.grid.needs import Needs
from dgcl.planner.array_types import ranges
from dgcl.planner.relation import Relation, mask_words
from dgcl.relation.classes import Grouped, ItemClasses, group_by_mask
from dgcl.relation.local_graph import pointer

# So the ranks that want an item follow from a mask over parts, or over depths, and from the slice. The classes of
# a slice are those of any other, but for its owners: there the own bit of a mask is the owner itself, who wants
# nothing.


@dataclass(frozen=True, eq=False)
class ItemDemand:
    """Who wants which item, as :class:`~dgcl.relation.demand.Demand` says it of few.

    Attributes:
        grid: The grid.
        vertex_owner: (N,) int32, the rank that owns each vertex.
        masks: (W, N) over parts, or over depths.
        over_parts: Whether bits are parts (an expand), or depths (a fold).
    """

    grid: Grid
    vertex_owner: NDArray[np.int32]
    masks: NDArray[Any]
    over_parts: bool

    def own_bits(self) -> NDArray[np.int32]:
        """(N,) of each vertex the bit that stands for its owner, in its owner's slice."""
        return (self.grid.part_of if self.over_parts else self.grid.depth_of)(self.vertex_owner)

    def classes(self) -> ItemClasses:
        """The items that are wanted, in classes.

        Vertices are grouped twice, with and without the own bit; memory some 24 bytes for each item that is wanted.
        """
        from dgcl.relation import relation_kernels

        size, slices = self.grid.size, self.grid.slices
        without = self.masks.copy()
        relation_kernels.clear_owners(without, self.own_bits())
        own = group_by_mask(without, self.vertex_owner, size)
        del without
        others = group_by_mask(self.masks, self.vertex_owner, size) if slices > 1 else own
        pieces = []  # of each slice the groups of its owners, and those of the others
        for s in range(slices):
            for grouped, mine in ((own, True), (others, False)):
                groups = np.flatnonzero((self.grid.slice_of(grouped.owner) == s) == mine)
                pieces.append((grouped, groups, s))
        return self._joined(pieces)

    def _joined(self, pieces: list[tuple[Grouped, NDArray[np.int64], int]]) -> ItemClasses:
        """The classes of all pieces, sorted by (owner, ranks that want them)."""
        from dgcl.relation import relation_kernels

        owner = np.concatenate([grouped.owner[groups] for grouped, groups, _ in pieces])
        dests = np.concatenate([self._dests(*piece) for piece in pieces])
        count = np.concatenate([np.diff(grouped.ptr)[groups] for grouped, groups, _ in pieces])
        by_owner = np.argsort(owner, kind="stable")
        owner_ptr = pointer(np.bincount(owner, minlength=self.grid.size))
        order = by_owner[relation_kernels.sort_classes(dests[by_owner], owner_ptr)]
        start = np.empty(len(order), np.int64)
        start[order] = pointer(count[order])[:-1]
        items, first = np.empty(count.sum(), np.int64), 0
        for grouped, groups, s in pieces:
            mine = slice(first, first + len(groups))
            places = ranges(grouped.ptr[groups], count[mine])
            items[ranges(start[mine], count[mine])] = grouped.items[places] * self.grid.slices + s
            first = mine.stop
        relation = Relation(self.grid.size, owner[order], dests[order], count[order])
        return ItemClasses(relation, items, np.repeat(self.vertex_owner, self.grid.slices))

    def _dests(self, grouped: Grouped, groups: NDArray[np.int64], s: int) -> NDArray[np.uint64]:
        """(C, words) the ranks that want slice s of each of some groups of vertices."""
        grid, owner, masks = self.grid, grouped.owner[groups], grouped.masks[groups]
        of_part = grid.depth * grid.slices  # ranks
        if self.over_parts:
            bits, step, first = grid.parts, of_part, grid.depth_of(owner) * grid.slices
        else:
            bits, step, first = grid.depth, grid.slices, grid.part_of(owner) * of_part
        dests = np.zeros((len(groups), mask_words(grid.size)), np.uint64)
        rows = np.arange(len(groups))
        for bit in range(bits):
            is_set = masks[:, bit // 64] >> np.uint64(bit % 64) & np.uint64(1)
            rank = first.astype(np.int64) + s + bit * step
            dests[rows, rank // 64] |= is_set << (rank % 64).astype(np.uint64)
        return dests


def expand_demand(needs: Needs) -> ItemDemand:
    """Which ranks want which items to sum them."""
    return ItemDemand(needs.grid, needs.owner, needs.readers, over_parts=True)


def fold_demand(needs: Needs) -> ItemDemand:
    """Which ranks contribute to which items."""
    return ItemDemand(needs.grid, needs.owner, needs.summers, over_parts=False)

"""Groups items with the same owner and the same destinations into classes, the unit of planning.

Items (what is exchanged as one row) of a class are interchangeable, so a planner needs their number only
(docs/concepts.md). How items come to be wanted is :mod:`dgcl.relation.demand`; nothing here looks at a graph but
:func:`halo_classes`.
Called by users, `dgcl/program/strategy`, `dgcl/grid/items`, `dgcl/placement/exchanges`, `dgcl/prepare/local_edges` and
others. Free to change while classes are those of the definition, sorted by (owner, destinations as an integer)
(`tests/dgcl/relation/test_classes.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.planner.array_types import Int32Array, Int64Array, MaskArray
from dgcl.planner.relation import Relation
from dgcl.relation.demand import Demand, halo_demand


@dataclass(frozen=True, eq=False)
class ItemClasses:
    """A relation, and the items that its classes are made of.

    Attributes:
        relation: C classes; sorted by (source, dests as an integer).
        items: (B,) int64, all items that some rank wants, class by class, as many as ``relation.count`` says; ascending
            within each.
        owner: (N,) int32, the owner of every item, wanted or not.
    """

    relation: Relation
    items: Int64Array
    owner: Int32Array


def build_classes(demand: Demand) -> ItemClasses:
    """Group items into classes by owner and by the set of ranks that want them.

    Only items that somebody wants are looked at. Time O(N + B + C log C); memory 20 bytes and a mask of whole
    64-bit words per wanted item.
    """
    world_size, owner = demand.world_size, demand.owner
    masks = [demand.readers]
    del demand  # so that a caller who does not keep it either frees its masks while they are grouped
    grouped = group_by_mask(masks.pop(), owner, world_size)
    relation = Relation(world_size, grouped.owner, grouped.masks, np.diff(grouped.ptr))
    return ItemClasses(relation, grouped.items, owner)


@dataclass(frozen=True, eq=False)
class Grouped:
    """Items in groups of one owner and one mask.

    Attributes:
        owner: (C,) int32, of each group; the groups are sorted by (owner, mask as an integer).
        masks: (C, W) uint64, none of them empty.
        ptr: (C + 1,) int64; group c is made of ``items[ptr[c]:ptr[c + 1]]``.
        items: (B,) int64, ascending within each group.
    """

    owner: Int32Array
    masks: MaskArray
    ptr: Int64Array
    items: Int64Array


def group_by_mask(masks: NDArray[Any], owner: Int32Array, num_owners: int) -> Grouped:
    """Group items with equal owners and masks, (W, N); those of empty masks are left out."""
    from dgcl.relation import relation_kernels

    items, wide, owner_ptr = relation_kernels.wanted_by_owner(masks, owner, num_owners)
    del masks
    numbers, first, owner_groups = relation_kernels.number_classes(wide, owner_ptr)
    distinct = wide[first]
    del wide
    order = relation_kernels.sort_classes(distinct, owner_groups)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    ptr = np.zeros(len(order) + 1, np.int64)
    grouped = relation_kernels.group_items(items, numbers, rank, ptr)
    owners = np.repeat(np.arange(num_owners, dtype=np.int32), np.diff(owner_groups))
    return Grouped(owners, distinct[order], ptr, grouped)


def halo_classes(graph: Graph, part: Any, world_size: int) -> ItemClasses:
    """Return the classes of a graph's vertices: :func:`build_classes` of :func:`halo_demand`.

    Args:
        graph: The whole graph.
        part: ``(num_nodes,)`` the owner of every vertex.
        world_size: The number of ranks.

    Raises:
        ValueError, TypeError: `part` does not fit the graph or `world_size`.
    """
    return build_classes(halo_demand(graph, part, world_size))

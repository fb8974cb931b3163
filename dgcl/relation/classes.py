"""Items with the same owner and the same destinations, grouped into classes: the unit of planning.

Items of one class are interchangeable, so a planner needs their number only (docs/concepts.md). How items come to
be wanted is :mod:`dgcl.relation.demand`; nothing here looks at a graph but :func:`halo_classes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.planner.relation import Relation
from dgcl.relation.demand import Demand, halo_demand

__all__ = ["ItemClasses", "build_classes", "halo_classes"]


@dataclass(frozen=True, eq=False)
class ItemClasses:
    """A relation, and the items that its classes are made of.

    Attributes:
        relation: C classes; sorted by (source, dests as an integer).
        class_ptr: (C + 1,) int64; class c is made of ``items[class_ptr[c]:class_ptr[c + 1]]``.
        items: (B,) int64, all items that some rank wants, ascending within each class.
        owner: (N,) int32, the owner of every item, wanted or not.
    """

    relation: Relation
    class_ptr: NDArray[np.int64]
    items: NDArray[np.int64]
    owner: NDArray[np.int32]

    @property
    def num_boundary(self) -> int:
        """Number of items that some rank other than their owner wants."""
        return len(self.items)


def build_classes(demand: Demand) -> ItemClasses:
    """Group items into classes by owner and by the set of ranks that want them.

    Only items that somebody wants are looked at. Time O(N + B + C log C); memory 20 bytes and a mask of whole
    64-bit words per wanted item.
    """
    from dgcl.relation import kernels

    world_size, owner = demand.world_size, demand.owner
    items, masks, owner_ptr = kernels.wanted_by_owner(demand.wanted, owner, world_size)
    del demand  # so that a caller who does not keep it either frees its masks here
    numbers, first, owner_classes = kernels.number_classes(masks, owner_ptr)
    dests = masks[first]
    del masks
    order = kernels.sort_classes(dests, owner_classes)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    class_ptr = np.zeros(len(order) + 1, np.int64)
    grouped = kernels.group_items(items, numbers, rank, class_ptr)
    sources = np.repeat(np.arange(world_size, dtype=np.int32), np.diff(owner_classes))
    relation = Relation(world_size, sources, dests[order], np.diff(class_ptr))
    return ItemClasses(relation, class_ptr, grouped, owner)


def halo_classes(graph: Graph, part: Any, world_size: int) -> ItemClasses:
    """Return the classes of a graph's vertices: :func:`build_classes` of :func:`halo_demand`.

    Raises:
        ValueError, TypeError: `part` does not fit the graph or `world_size`.
    """
    return build_classes(halo_demand(graph, part, world_size))

"""States who wants which item: the owner of every item, and the set of ranks that need its row.

An *item* is what is exchanged as one row. Here items are vertices, and rank r wants vertex u if r owns the head of an
edge out of u (DGCL paper, section 4.1): :func:`halo_demand`. Other ways to lay out an aggregation have other items
(slices of rows) or other wants (the rank that sums an edge instead of the owner of its head); all of them are a
:class:`Demand`, and everything behind it is the same.
Called by users, `classes`, `dgcl/grid/needs`, `dgcl/placement/exchanges`, `dgcl/prepare/local_edges` and others. Free
to change while a graph and its pairs (item, rank) make the same demand (`tests/dgcl/relation/test_demand.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.graph.csr import require_graph
from dgcl.partition.check_part import as_num_parts, check_part
from dgcl.planner.array_types import Int32Array


@dataclass(frozen=True, eq=False)
class Demand:
    """The owner of each of N items and the other ranks that want it.

    Attributes:
        world_size: number of ranks P.
        owner: (N,) int32, the rank that owns each item.
        readers: (W, N) unsigned; bit ``r % 64`` of ``readers[r // 64, i]`` tells whether rank r wants item i. Up to
            64 ranks W is 1 and the words may be narrower than 64 bits. An owner never wants its own items.
    """

    world_size: int
    owner: Int32Array
    readers: NDArray[Any]


def halo_demand(graph: Graph, part: Any, world_size: int) -> Demand:
    """Find who wants which vertex: the owners of the heads of its out-edges.

    One pass over the in-edges sets bits in one mask per vertex.

    Args:
        graph: the graph.
        part: (N,) integers, the owner of each vertex.
        world_size: number of parts P; parts without vertices are allowed here.

    Raises:
        ValueError, TypeError: `part` does not fit the graph or `world_size`.
    """
    require_graph(graph)
    world_size = as_num_parts(world_size, "world_size")
    owner = check_part(part, graph.num_nodes, world_size)
    masks = group_masks(graph, owner, world_size)

    from dgcl.relation import relation_kernels

    relation_kernels.clear_owners(masks, owner)
    return Demand(world_size, owner, masks)


def group_masks(graph: Graph, group: Int32Array, num_groups: int) -> NDArray[Any]:
    """Find which groups of vertices read each vertex, its own group included.

    Args:
        graph: the graph.
        group: (N,) int32 in [0, num_groups), the group of each vertex.
        num_groups: how many there are.

    Returns:
        (W, N) masks as :attr:`Demand.readers`: bit g of vertex u tells whether u has an out-edge to a head of group g.
    """
    from dgcl.relation import relation_kernels

    masks = empty_masks(graph.num_nodes, num_groups)
    for word, mask in enumerate(masks):  # each by the vertices whose group's bit it holds
        relation_kernels.mark_readers(
            graph.indptr, graph.indices, np.flatnonzero(group >> 6 == word), group, mask
        )
    return masks


def demand_of_pairs(owner: Int32Array, items: NDArray[Any], ranks: NDArray[Any], world_size: int) -> Demand:
    """The demand in which rank ``ranks[k]`` wants item ``items[k]``, for every k; pairs of owners are left out."""
    from dgcl.relation import relation_kernels

    masks = empty_masks(len(owner), world_size)
    relation_kernels.mark_pairs(items, ranks, owner, masks)
    return Demand(world_size, owner, masks)


def empty_masks(num_items: int, num_bits: int) -> NDArray[Any]:
    """(W, N) empty masks; narrow ones keep the random writes of the pass over the edges in cache.

    Three million one-byte masks fit in a cache where eight-byte ones do not.
    """
    if num_bits <= 64:
        return np.zeros((1, num_items), np.min_scalar_type((1 << num_bits) - 1))
    return np.zeros((-(-num_bits // 64), num_items), np.uint64)

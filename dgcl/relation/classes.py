"""From graph and parts to the relation: which vertices travel, from whom, to whom (DGCL paper, section 4.1).

A vertex u must reach every part that owns an out-neighbour of u, since an edge u->v means that v reads u.
Vertices with the same owner and the same destinations form a class, the unit of planning
(docs/concepts.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.partition.check import check_part
from dgcl.planner.relation import Relation

__all__ = ["VertexClasses", "build_classes"]


@dataclass(frozen=True, eq=False)
class VertexClasses:
    """A relation, and which vertices its classes are made of.

    Attributes:
        relation: C classes; sorted by (source, dests as an integer).
        class_ptr: (C + 1,) int64; class c is made of ``vertices[class_ptr[c]:class_ptr[c + 1]]``.
        vertices: (B,) int64, all boundary vertices: global ids, ascending within each class.
    """

    relation: Relation
    class_ptr: NDArray[np.int64]
    vertices: NDArray[np.int64]

    @property
    def num_boundary(self) -> int:
        """Number of vertices that some part other than their owner reads."""
        return len(self.vertices)


def build_classes(graph: Graph, part: Any, world_size: int) -> VertexClasses:
    """Find every vertex's destination set and group the vertices into classes.

    One pass over the in-edges sets bits in one mask per vertex; only boundary vertices are looked at after
    that. Time
    O(E + B + C log C); memory N masks of `world_size` bits (rounded up to 8, 16, 32 or whole 64-bit
    words) and 20 bytes and a mask of whole words per boundary vertex.

    Args:
        graph: the graph.
        part: (N,) integers, the owner of each vertex.
        world_size: number of parts P; parts without vertices are allowed here.

    Raises:
        ValueError, TypeError: `part` does not fit the graph or `world_size`.
    """
    owners = check_part(part, graph.num_nodes, world_size, allow_empty=True)

    from dgcl.relation import kernels as relation_kernels

    masks = _reader_masks(graph, owners, world_size)
    relation_kernels.clear_owners(masks, owners)
    vertices, wanted, owner_ptr = relation_kernels.boundary_by_owner(masks, owners, world_size)
    del masks
    numbers, first, owner_classes = relation_kernels.number_classes(wanted, owner_ptr)
    dests = wanted[first]
    del wanted
    order = relation_kernels.sort_classes(dests, owner_classes)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    class_ptr = np.zeros(len(order) + 1, np.int64)
    grouped = relation_kernels.group_vertices(vertices, numbers, rank, class_ptr)
    sources = np.repeat(np.arange(world_size, dtype=np.int32), np.diff(owner_classes))
    relation = Relation(world_size, sources, dests[order], np.diff(class_ptr))
    return VertexClasses(relation, class_ptr, grouped)


def _reader_masks(graph: Graph, owners: NDArray[np.int32], world_size: int) -> NDArray[Any]:
    """(W, N) masks of the parts that read each vertex, its owner included; as narrow as world_size allows.

    Narrow masks keep the random writes of the pass in cache: three million one-byte masks fit where
    eight-byte ones do not. With several words, each is filled by the vertices whose part's bit it holds.
    """
    from dgcl.relation.kernels import mark_readers

    if world_size <= 64:
        masks = np.zeros((1, graph.num_nodes), np.min_scalar_type((1 << world_size) - 1))
        mark_readers(graph.indptr, graph.indices, np.arange(graph.num_nodes), owners, masks[0])
        return masks
    num_words = -(-world_size // 64)
    masks = np.zeros((num_words, graph.num_nodes), np.uint64)
    word_of = (owners >> 6).astype(np.uint16)
    by_word = np.argsort(word_of, kind="stable")
    ends = np.cumsum(np.bincount(word_of, minlength=num_words))
    for word, (stop, size) in enumerate(zip(ends, np.diff(ends, prepend=0), strict=True)):
        mark_readers(graph.indptr, graph.indices, by_word[stop - size : stop], owners, masks[word])
    return masks

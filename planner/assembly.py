"""Journeys of portions to trees: one tree for each set of vertices that travel alike, every rank entered once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array, MaskArray
from dgcl.planner.compiled import compiled
from dgcl.planner.plan import Trees

if TYPE_CHECKING:
    from dgcl.planner.dealing import Journeys
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays


def assemble(journeys: Journeys, relation: Relation, arrays: TopologyArrays) -> Trees:
    """Return trees for all classes.

    Mixing plans can make a row enter a rank twice, or carry it to a relay that then has nothing to send. Of
    several entries the first in time is kept (what the rank sends later may use it), and relays that serve
    nobody are dropped; both only take load away.
    """
    order, ptr = _by_class(journeys.class_, relation.num_classes)
    tree_class, tree_count, edge_ptr, link, stage = _trees(
        ptr, journeys.begin[order], journeys.end[order], journeys.stage[order], journeys.link[order],
        relation.source, relation.dests, relation.count, arrays.link_src, arrays.link_dst, relation.world_size,
    )  # fmt: skip
    return Trees(tree_class, tree_count, edge_ptr, arrays.link_src[link], arrays.link_dst[link], stage)


@compiled
def _by_class(class_: Int32Array, num_classes: int) -> tuple[Int64Array, Int64Array]:
    """Return a stable order by class and the pointer to each class in it (a counting sort)."""
    ptr = np.zeros(num_classes + 1, np.int64)
    for i in range(class_.shape[0]):
        ptr[class_[i] + 1] += 1
    for c in range(num_classes):
        ptr[c + 1] += ptr[c]
    order = np.empty(class_.shape[0], np.int64)
    at = ptr[:-1].copy()
    for i in range(class_.shape[0]):
        order[at[class_[i]]] = i
        at[class_[i]] += 1
    return order, ptr


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
def _trees(
    ptr: Int64Array,
    begin: Int64Array,
    end: Int64Array,
    stage: Int32Array,
    link: Int32Array,
    source: Int32Array,
    dests: MaskArray,
    count: Int64Array,
    link_src: Int32Array,
    link_dst: Int32Array,
    world: int,
) -> tuple[Int32Array, Int64Array, Int64Array, Int32Array, Int32Array]:
    """Cut each class where any of its journeys begins or ends, and make one tree of each piece; merge equals."""
    num_classes = source.shape[0]
    room_trees, room_edges = num_classes + 16, link.shape[0] + 64
    tree_class, tree_count = np.empty(room_trees, np.int32), np.empty(room_trees, np.int64)
    edge_ptr = np.zeros(room_trees + 1, np.int64)
    out_link, out_stage = np.empty(room_edges, np.int32), np.empty(room_edges, np.int32)
    trees = edges = 0
    entered, needed = np.empty(world, np.int32), np.empty(world, np.int32)
    for c in range(num_classes):
        low, high = ptr[c], ptr[c + 1]
        marks = np.unique(np.concatenate((begin[low:high], end[low:high])))
        first_tree = trees
        for piece in range(marks.shape[0] - 1):
            if edges + high - low > room_edges:
                room_edges = 2 * room_edges + high - low
                out_link = np.concatenate((out_link, np.empty(room_edges - out_link.shape[0], np.int32)))
                out_stage = np.concatenate((out_stage, np.empty(room_edges - out_stage.shape[0], np.int32)))
            num = 0
            for e in range(low, high):
                if begin[e] <= marks[piece] < end[e]:
                    out_link[edges + num], out_stage[edges + num] = link[e], stage[e]
                    num += 1
            num = cleaned(
                out_link[edges:], out_stage[edges:], num, source[c], dests[c], link_src, link_dst, entered, needed
            )
            size = marks[piece + 1] - marks[piece]
            same = -1
            for t in range(first_tree, trees):
                if edge_ptr[t + 1] - edge_ptr[t] == num:
                    equal = True
                    for e in range(num):
                        other = edge_ptr[t] + e
                        if out_link[other] != out_link[edges + e] or out_stage[other] != out_stage[edges + e]:
                            equal = False
                            break
                    if equal:
                        same = t
                        break
            if same >= 0:
                tree_count[same] += size
                continue
            if trees == room_trees:
                tree_class = np.concatenate((tree_class, np.empty(room_trees, np.int32)))
                tree_count = np.concatenate((tree_count, np.empty(room_trees, np.int64)))
                edge_ptr = np.concatenate((edge_ptr, np.zeros(room_trees, np.int64)))
                room_trees *= 2
            tree_class[trees], tree_count[trees] = c, size
            edges += num
            trees += 1
            edge_ptr[trees] = edges
    return tree_class[:trees], tree_count[:trees], edge_ptr[: trees + 1], out_link[:edges], out_stage[:edges]

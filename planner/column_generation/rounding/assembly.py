"""Assembles hops of vertex intervals to trees: one for each set of vertices with the same hops.

`whole_trees` is the way from a fractional plan to trees: rounding, flow decomposition, assembly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.pricing.new_arrays import (
    filled_ints,
    grown_int32s,
    grown_ints,
    new_int32s,
    new_ints,
    sort_ints,
)
from dgcl.planner.column_generation.rounding.decomposition import ALL, IntervalHops, decompose
from dgcl.planner.column_generation.rounding.forest import LinkEnds, cleaned, same_tree, sort_by_stage
from dgcl.planner.column_generation.rounding.whole_flows import whole_flows
from dgcl.planner.compiled import compiled
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.pricing.flows import Flows
    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays


def assemble(interval_hops: IntervalHops, relation: Relation, arrays: TopologyArrays) -> Trees:
    """Return trees for all classes.

    In a combination of plans a row may be delivered to a rank twice, or reach a relay that has nobody to send it to.
    Of several deliveries the first is kept (what the rank sends later may use it), and useless relays are dropped;
    both only take load away.
    """
    order = np.argsort(interval_hops.class_, kind="stable")
    ptr = np.searchsorted(interval_hops.class_[order], np.arange(relation.num_classes + 1)).astype(np.int64)
    tree_class, tree_count, edge_ptr, link, stage = _trees(
        ptr,
        interval_hops.hop[order],
        interval_hops.interval[order],
        interval_hops.begin,
        interval_hops.end,
        relation.source,
        relation.dests,
        relation.count,
        LinkEnds(arrays.link_src, arrays.link_dst),
        relation.world_size,
    )
    return Trees(tree_class, tree_count, edge_ptr, arrays.link_src[link], arrays.link_dst[link], stage)


@compiled(inline=False, entry=False)
def _marks(
    interval: Int32Array,
    low: int,
    high: int,
    begin: Int64Array,
    end: Int64Array,
    count: int,
    marks: Int64Array,
) -> int:
    """Put into `marks` where the intervals of a class begin and end, each once, ascending; return their number."""
    marks[0], marks[1] = 0, count
    num = 2
    for e in range(low, high):
        if interval[e] != ALL:
            marks[num], marks[num + 1] = begin[interval[e]], end[interval[e]]
            num += 2
    if num == 2 and count > 0:
        return 2
    sort_ints(marks, num)
    kept = 1
    for i in range(1, num):
        if marks[i] != marks[kept - 1]:
            marks[kept] = marks[i]
            kept += 1
    return kept


@compiled
def _trees(
    ptr: Int64Array,
    hop: Int32Array,
    interval: Int32Array,
    begin: Int64Array,
    end: Int64Array,
    source: Int32Array,
    dests: MaskArray,
    count: Int64Array,
    ends: LinkEnds,
    world: int,
) -> tuple[Int32Array, Int64Array, Int64Array, Int32Array, Int32Array]:
    """Cut each class where any of its intervals begins or ends; make one tree of each part; merge equal ones."""
    num_classes, num_links = source.shape[0], ends.src.shape[0]
    longest = 0
    for c in range(num_classes):
        longest = max(longest, ptr[c + 1] - ptr[c])
    room_trees, room_edges = num_classes + 1024, hop.shape[0] + 2 * longest
    tree_class, tree_count = new_int32s(room_trees), new_ints(room_trees)
    edge_ptr = filled_ints(room_trees + 1, 0)
    out_link, out_stage = new_int32s(room_edges), new_int32s(room_edges)
    trees = edges = 0
    entered, needed = new_int32s(world), new_int32s(world)
    marks = new_ints(2 * longest + 2)
    for c in range(num_classes):
        low, high = ptr[c], ptr[c + 1]
        num_marks = _marks(interval, low, high, begin, end, count[c], marks)
        first_tree = trees
        for part in range(num_marks - 1):
            if edges + longest > room_edges:  # also leaves room for what is dropped again
                room_edges *= 2
                out_link, out_stage = grown_int32s(out_link, room_edges), grown_int32s(out_stage, room_edges)
            link, stage = out_link[edges:], out_stage[edges:]
            num = 0
            for e in range(low, high):
                p = interval[e]
                if p == ALL or begin[p] <= marks[part] < end[p]:
                    link[num], stage[num] = hop[e] % num_links, hop[e] // num_links
                    num += 1
            sort_by_stage(link, stage, num)
            num = cleaned(link, stage, num, source[c], dests[c], ends, entered, needed)
            size = marks[part + 1] - marks[part]
            same = same_tree(edge_ptr, out_link, out_stage, first_tree, trees, num)
            if same >= 0:
                tree_count[same] += size
                continue
            if trees == room_trees:
                room_trees *= 2
                tree_class, tree_count = (
                    grown_int32s(tree_class, room_trees),
                    grown_ints(tree_count, room_trees),
                )
                edge_ptr = grown_ints(edge_ptr, room_trees + 1)
            tree_class[trees], tree_count[trees] = c, size
            edges += num
            trees += 1
            edge_ptr[trees] = edges
    return tree_class[:trees], tree_count[:trees], edge_ptr[: trees + 1], out_link[:edges], out_stage[:edges]


def whole_trees(flows: Flows, space: StateSpace, relation: Relation, arrays: TopologyArrays) -> Trees:
    """Return trees for all classes that follow `flows` up to the rounding to whole rows."""
    num_links = arrays.link_src.shape[0]
    whole = whole_flows(space.family, space.moves, space.rows, flows, num_links)
    interval_hops = decompose(
        space.family, space.moves, flows, whole, space.items.ptr, space.item_set, relation.source,
        relation.count, num_links,
    )  # fmt: skip
    return assemble(interval_hops, relation, arrays)

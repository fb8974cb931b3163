"""Assembles hops of vertex intervals to trees: one for each set of vertices with the same hops."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily
from dgcl.planner.column_generation.pricing.tree_program import WAIT, Moves
from dgcl.planner.column_generation.rounding.decomposition import ALL, ForcedStates, IntervalHops
from dgcl.planner.column_generation.trees.edges import LinkEnds, cleaned, same_tree, sort_by_stage
from dgcl.planner.column_generation.trees.new_arrays import (
    filled_int32s,
    filled_ints,
    grown_int32s,
    grown_ints,
    new_int32_table,
    new_int32s,
    new_ints,
    sort_ints,
)
from dgcl.planner.compiled import compiled
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays


def assemble(
    interval_hops: IntervalHops,
    forced: ForcedStates,
    space: StateSpace,
    relation: Relation,
    arrays: TopologyArrays,
) -> Trees:
    """Return trees for all classes.

    In a combination of plans a row may be delivered to a rank twice, or reach a relay that has nobody to send it to.
    Of several deliveries the first is kept (what the rank sends later may use it), and useless relays are dropped;
    both only take load away.
    """
    ptr, hop, interval = _by_class(interval_hops, relation.num_classes)
    tree_class, tree_count, edge_ptr, link, stage = _trees(
        space.family,
        space.moves,
        forced,
        space.items.ptr,
        space.item_set,
        ptr,
        hop,
        interval,
        interval_hops.begin,
        interval_hops.end,
        relation.source,
        relation.dests,
        relation.count,
        LinkEnds(arrays.link_src, arrays.link_dst),
        relation.world_size,
    )
    return Trees(tree_class, tree_count, edge_ptr, arrays.link_src[link], arrays.link_dst[link], stage)


@compiled
def _by_class(interval_hops: IntervalHops, num_classes: int) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Sort hops by class, stably (a counting sort); return the pointer to each class, hops and intervals."""
    ptr, at = filled_ints(num_classes + 1, 0), new_ints(num_classes)
    for i in range(interval_hops.class_.shape[0]):
        ptr[interval_hops.class_[i] + 1] += 1
    for c in range(num_classes):
        at[c] = ptr[c]
        ptr[c + 1] += ptr[c]
    hop, interval = new_int32s(interval_hops.hop.shape[0]), new_int32s(interval_hops.hop.shape[0])
    for i in range(interval_hops.class_.shape[0]):
        to = at[interval_hops.class_[i]]
        hop[to], interval[to] = interval_hops.hop[i], interval_hops.interval[i]
        at[interval_hops.class_[i]] += 1
    return ptr, hop, interval


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


@compiled(inline=False, entry=False)
def _expand(
    family: SubsetFamily,
    moves: Moves,
    forced: ForcedStates,
    state: int,
    link: Int32Array,
    stage: Int32Array,
    num: int,
    queue: Int32Array,
) -> int:
    """Write the edges of the path from a forced state, by stages, from position `num` on; return the next position."""
    world, num_sets = forced.pair.shape[1], forced.pair.shape[2]
    num_groups = family.set_ptr.shape[0] - 1
    queue[0, 0], queue[0, 1], queue[0, 2] = (
        state // (num_sets * world),
        state // num_sets % world,
        state % num_sets,
    )
    group = 0
    while family.set_ptr[group + 1] <= queue[0, 2]:
        group += 1
    low = family.set_ptr[group]
    read, written = 0, 1
    while read < written:
        k, v, rest = queue[read, 0], queue[read, 1], queue[read, 2]
        read += 1
        splits = moves.splits[v * num_groups + group]
        while rest != low:
            f = rest
            rest = np.int32(low)
            if splits:
                q = forced.pair[k, v, f]
                f, rest = family.pair_first[q], family.pair_rest[q]
            j = forced.move[k, v, f]
            w = v
            if j != WAIT:
                link[num], stage[num] = moves.link[j], k
                num += 1
                w = moves.dst[j]
                if family.group_of[w] == group:
                    f = family.minus[f, family.bit_of[w]]
            if f != low:
                queue[written, 0], queue[written, 1], queue[written, 2] = k + 1, w, f
                written += 1
    return num


class _ForcedPaths(NamedTuple):
    """The edges of the paths from forced states; path ``number[s]`` is that of state s, -1 if unused."""

    number: Int32Array
    ptr: Int64Array
    link: Int32Array
    stage: Int32Array


@compiled(inline=False, entry=False)
def _expand_all(
    family: SubsetFamily,
    moves: Moves,
    forced: ForcedStates,
    start: Int64Array,
    hop: Int32Array,
    num_hops: int,
) -> _ForcedPaths:
    """Expand every forced state in which an item starts, or that an interval reaches, once."""
    num_stages, world, num_sets = forced.pair.shape
    longest = world * num_stages
    number = filled_int32s(num_stages * world * num_sets, -1)
    order = new_int32s(number.shape[0])
    num_paths = 0
    for s in start:
        if number[s] < 0 and forced.pair[0, s // num_sets, s % num_sets] >= 0:
            number[s], order[num_paths] = num_paths, s
            num_paths += 1
    for h in hop:
        if h >= num_hops and number[h - num_hops] < 0:
            number[h - num_hops], order[num_paths] = num_paths, h - num_hops
            num_paths += 1
    ptr = filled_ints(num_paths + 1, 0)
    link, stage = new_int32s(8 * num_paths + longest), new_int32s(8 * num_paths + longest)
    queue = new_int32_table(longest, 3)
    for i in range(num_paths):
        if ptr[i] + longest > link.shape[0]:
            link, stage = grown_int32s(link, 2 * link.shape[0]), grown_int32s(stage, 2 * stage.shape[0])
        ptr[i + 1] = _expand(family, moves, forced, order[i], link, stage, ptr[i], queue)
    return _ForcedPaths(number, ptr, link, stage)


@compiled
def _trees(
    family: SubsetFamily,
    moves: Moves,
    forced: ForcedStates,
    item_ptr: Int64Array,
    item_set: Int32Array,
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
    num_hops = forced.pair.shape[0] * num_links
    longest = 4 * world * forced.pair.shape[0] * (family.set_ptr.shape[0] - 1)  # edges of one tree, amply
    num_sets = forced.pair.shape[2]
    room_trees, room_edges = num_classes + 1024, 2 * (item_set.shape[0] + hop.shape[0]) + 2 * longest
    tree_class, tree_count = new_int32s(room_trees), new_ints(room_trees)
    edge_ptr = filled_ints(room_trees + 1, 0)
    out_link, out_stage = new_int32s(room_edges), new_int32s(room_edges)
    trees = edges = 0
    entered, needed = new_int32s(world), new_int32s(world)
    start = new_ints(item_set.shape[0])
    most = 0
    for c in range(num_classes):
        most = max(most, ptr[c + 1] - ptr[c])
    marks = new_ints(2 * most + 2)
    for c in range(num_classes):
        for i in range(item_ptr[c], item_ptr[c + 1]):
            start[i] = source[c] * num_sets + item_set[i]
    path_of_state, path_ptr, path_link, path_stage = _expand_all(family, moves, forced, start, hop, num_hops)
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
            for i in range(item_ptr[c], item_ptr[c + 1]):
                w = path_of_state[start[i]]
                if w >= 0 and forced.pair[0, source[c], item_set[i]] >= 0:
                    for e in range(path_ptr[w], path_ptr[w + 1]):
                        link[num], stage[num] = path_link[e], path_stage[e]
                        num += 1
            for e in range(low, high):
                p = interval[e]
                if p == ALL or begin[p] <= marks[part] < end[p]:
                    if hop[e] < num_hops:
                        link[num], stage[num] = hop[e] % num_links, hop[e] // num_links
                        num += 1
                    else:
                        w = path_of_state[hop[e] - num_hops]
                        for i in range(path_ptr[w], path_ptr[w + 1]):
                            link[num], stage[num] = path_link[i], path_stage[i]
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

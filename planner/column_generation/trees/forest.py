"""Forests: trees in arrays with room to grow in place, which the improvements of whole plans change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.arrays import BoolArray, Int32Array, Int64Array
from dgcl.planner.compiled import compiled
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology.arrays import TopologyArrays


class Forest(NamedTuple):
    """Trees with room for more: tree t has the edges ``first[t]:first[t] + size[t]``.

    Attributes:
        class_, count, first, size: per tree, its class, its rows, its first edge and the number of its edges.
        link, stage: per edge.
        used: (2,) int64, how many trees and edges there are.
    """

    class_: Int32Array
    count: Int64Array  # type: ignore[assignment]  # the field of a tuple of arrays, not tuple.count
    first: Int64Array
    size: Int64Array
    link: Int32Array
    stage: Int32Array
    used: Int64Array


def forest_from_trees(trees: Trees, arrays: TopologyArrays) -> Forest:
    """Return the trees as a forest with room to grow."""
    link = arrays.link_of[trees.edge_src, trees.edge_dst].astype(np.int32)
    return _with_room(
        trees.tree_class,
        trees.tree_count,
        trees.edge_ptr[:-1],
        np.diff(trees.edge_ptr),
        link,
        trees.edge_stage,
    )


def _with_room(
    class_: Int32Array,
    count: Int64Array,
    first: Int64Array,
    size: Int64Array,
    link: Int32Array,
    stage: Int32Array,
) -> Forest:
    """Return a forest of these trees with room for as many again and some."""
    num, edges = class_.shape[0], link.shape[0]
    room_trees, room_edges = 2 * num + 1024, 2 * edges + 8192

    def padded(array: np.ndarray[tuple[int], np.dtype[np.generic]], room: int):  # type: ignore[no-untyped-def]
        out = np.zeros(room, array.dtype)
        out[: array.shape[0]] = array
        return out

    return Forest(
        padded(class_, room_trees), padded(count, room_trees), padded(first, room_trees), padded(size, room_trees),
        padded(link, room_edges), padded(stage, room_edges), np.array([num, edges], np.int64),
    )  # fmt: skip


@compiled(inline=False, entry=False)
def append_tree(
    forest: Forest, class_: int, rows: int, link: Int32Array, stage: Int32Array, num: int
) -> bool:
    """Add a tree with the first `num` of these edges; return False, and change nothing, if there is no room."""
    tree, edge = forest.used[0], forest.used[1]
    if tree == forest.class_.shape[0] or edge + num > forest.link.shape[0]:
        return False
    forest.class_[tree], forest.count[tree] = class_, rows
    forest.first[tree], forest.size[tree] = edge, num
    for e in range(num):
        forest.link[edge + e], forest.stage[edge + e] = link[e], stage[e]
    forest.used[0], forest.used[1] = tree + 1, edge + num
    return True


def compact(forest: Forest) -> Forest:
    """Return a copy ordered by class, with equal trees of a class merged and empty ones dropped."""
    num = int(forest.used[0])
    alive = np.flatnonzero(forest.count[:num] > 0)
    alive = alive[np.argsort(forest.class_[alive], kind="stable")]
    total = forest.count[:num].copy()
    heads = alive[_merge_equal(forest, alive, total)]
    sizes, first = forest.size[heads], forest.first[heads]
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    take = np.arange(int(ptr[-1])) + np.repeat(first - ptr[:-1], sizes)
    return _with_room(
        forest.class_[heads], total[heads], ptr[:-1], sizes, forest.link[take], forest.stage[take]
    )


@compiled
def _merge_equal(forest: Forest, trees: Int64Array, total: Int64Array) -> BoolArray:
    """Tell which of `trees`, ordered by class, differ from all before them; add the rows of equal ones to `total`."""
    is_head = np.ones(trees.shape[0], np.bool_)
    heads = np.empty(trees.shape[0], np.int64)  # of the class at hand
    num_heads = 0
    for i in range(trees.shape[0]):
        t = trees[i]
        if i == 0 or forest.class_[t] != forest.class_[trees[i - 1]]:
            num_heads = 0
        for j in range(num_heads):
            other = heads[j]
            same = forest.size[other] == forest.size[t]
            e = 0
            while same and e < forest.size[t]:
                mine, theirs = forest.first[t] + e, forest.first[other] + e
                same = forest.link[mine] == forest.link[theirs] and forest.stage[mine] == forest.stage[theirs]
                e += 1
            if same:
                total[other] += total[t]
                is_head[i] = False
                break
        if is_head[i]:
            heads[num_heads] = t
            num_heads += 1
    return is_head


def trees_from_forest(forest: Forest, arrays: TopologyArrays) -> Trees:
    """Return a compact forest as trees."""
    num, edges = int(forest.used[0]), int(forest.used[1])
    link = forest.link[:edges]
    return Trees(
        forest.class_[:num],
        forest.count[:num],
        np.concatenate([forest.first[:num], [edges]]),
        arrays.link_src[link],
        arrays.link_dst[link],
        forest.stage[:edges],
    )

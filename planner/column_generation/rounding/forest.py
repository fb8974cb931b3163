"""Holds trees of whole rows in arrays with room for more, which compiled code changes in place.

An edge is a (link, stage) pair. `append_tree` refuses, and changes nothing, where there is no room; a tree that has
lost all its rows stays until `compact` or `ordered`. `cleaned` drops second deliveries and useless relays from a tree's
edges.
Called by `bundles`, `cheapest`, `planner/column_generation/improvement/tree_exchange`,
`planner/column_generation/improvement/reparent` and others. Free to change while equal trees of a class become one,
where the first stood (`tests/planner/column_generation/test_forest.py`), and cleaned trees deliver each row once
(`tests/planner/column_generation/test_whole_plans.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dgcl.planner.array_types import BoolArray, Int32Array, Int64Array, MaskArray, ranges
from dgcl.planner.planner_compiled import compiled
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology.arrays import TopologyArrays


class LinkEnds(NamedTuple):
    """The devices that links join: from ``src[l]`` to ``dst[l]``, (L,) int32 each."""

    src: Int32Array
    dst: Int32Array


@compiled(inline=False, allocates=False, entry=False)
def sort_by_stage(link: Int32Array, stage: Int32Array, num: int) -> None:
    """Sort the first `num` edges by (stage, link), in place (insertion sort: short and nearly sorted)."""
    for e in range(1, num):
        a, b = stage[e], link[e]
        at = e
        while at > 0 and (stage[at - 1] > a or (stage[at - 1] == a and link[at - 1] > b)):
            stage[at], link[at] = stage[at - 1], link[at - 1]
            at -= 1
        stage[at], link[at] = a, b


@compiled(allocates=False, entry=False)
def _is_clean(link: Int32Array, num: int, source: int, dests: np.uint64, ends: LinkEnds) -> bool:
    """Tell whether nothing is left to clean, for up to 64 devices.

    That is so if each device is entered at most once, the owner never, and every relay sends the row on.
    """
    entered, sending = np.uint64(1) << np.uint64(source), np.uint64(0)
    again = np.uint64(0)
    for e in range(num):
        bit = np.uint64(1) << np.uint64(ends.dst[link[e]])
        again |= entered & bit
        entered |= bit
        sending |= np.uint64(1) << np.uint64(ends.src[link[e]])
    return again == 0 and (entered & ~(dests | sending)) == 0


@compiled(inline=False, allocates=False, entry=False)
def cleaned(
    link: Int32Array,
    stage: Int32Array,
    num: int,
    source: int,
    dests: MaskArray,
    ends: LinkEnds,
    entered: Int32Array,
    needed: Int32Array,
) -> int:
    """Drop second deliveries and useless relays from edges sorted by stage, in place; return how many stay.

    Args:
        link, stage: the edges, ``[:num]`` of them.
        num: see there.
        source, wanted: the owner, and the destinations as mask words.
        ends: the devices that links join.
        entered, needed: (P,) scratch.
    """
    if dests.shape[0] == 1 and _is_clean(link, num, source, dests[0], ends):
        return num
    for d in range(entered.shape[0]):
        entered[d], needed[d] = 0, 0
    entered[source] = 1
    kept = 0
    for e in range(num):
        d = ends.dst[link[e]]
        if entered[d]:
            continue
        entered[d] = 1
        link[kept], stage[kept] = link[e], stage[e]
        kept += 1
    first = kept
    for e in range(kept - 1, -1, -1):  # children first: whoever sends over a kept edge is needed
        d = ends.dst[link[e]]
        if needed[d] or (dests[d >> 6] >> np.uint64(d & 63)) & np.uint64(1):
            needed[ends.src[link[e]]] = 1
            first -= 1
            link[first], stage[first] = link[e], stage[e]
    for e in range(first, kept):
        link[e - first], stage[e - first] = link[e], stage[e]
    return kept - first


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


def joined(parts: Sequence[tuple[npt.NDArray[Any], ...]]) -> Forest:
    """Return a compact forest of parts: (class, count, size) of trees, and (link, stage) of their edges."""
    class_, count, size, link, stage = (np.concatenate(column) for column in zip(*parts, strict=True))
    return compact(_with_room(class_.astype(np.int32), count, np.cumsum(size) - size, size, link, stage))


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

    def padded(array: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
        out = np.zeros(room, array.dtype)
        out[: array.shape[0]] = array
        return out

    return Forest(
        padded(class_, room_trees), padded(count, room_trees), padded(first, room_trees), padded(size, room_trees),
        padded(link, room_edges), padded(stage, room_edges), np.array([num, edges], np.int64),
    )  # fmt: skip


@compiled(inline=False, allocates=False, entry=False)
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
    alive, total = _by_class(forest), forest.count.copy()
    is_first = np.ones(alive.shape[0], np.bool_)
    _merge_equal(forest, alive, total, is_first, np.empty_like(alive))
    return _gathered(forest, alive[is_first], total)


def ordered(forest: Forest) -> Forest:
    """Return a copy ordered by class, without empty trees."""
    return _gathered(forest, _by_class(forest), forest.count)


def _by_class(forest: Forest) -> Int64Array:
    """Return the trees that have rows, ordered by class."""
    alive = np.flatnonzero(forest.count[: forest.used[0]] > 0)
    return alive[np.argsort(forest.class_[alive], kind="stable")]


def _gathered(forest: Forest, trees: Int64Array, count: Int64Array) -> Forest:
    """Return a copy of these trees with these rows."""
    sizes, first = forest.size[trees], forest.first[trees]
    take = ranges(first, sizes)
    return _with_room(
        forest.class_[trees],
        count[trees],
        np.cumsum(sizes) - sizes,
        sizes,
        forest.link[take],
        forest.stage[take],
    )


@compiled(allocates=False)
def _merge_equal(
    forest: Forest, trees: Int64Array, total: Int64Array, is_first: BoolArray, firsts: Int64Array
) -> None:
    """Clear `is_first` of those of `trees`, ordered by class, that equal one before; add their rows to its `total`.

    `firsts` is scratch: the trees of the class at hand that differ from all before them.
    """
    num_firsts = 0
    for i in range(trees.shape[0]):
        t = trees[i]
        if i == 0 or forest.class_[t] != forest.class_[trees[i - 1]]:
            num_firsts = 0
        for j in range(num_firsts):
            other = firsts[j]
            same = forest.size[other] == forest.size[t]
            e = 0
            while same and e < forest.size[t]:
                mine, theirs = forest.first[t] + e, forest.first[other] + e
                same = forest.link[mine] == forest.link[theirs] and forest.stage[mine] == forest.stage[theirs]
                e += 1
            if same:
                total[other] += total[t]
                is_first[i] = False
                break
        if is_first[i]:
            firsts[num_firsts] = t
            num_firsts += 1


def trees_from_forest(forest: Forest, arrays: TopologyArrays) -> Trees:
    """Return a compact forest as trees."""
    num, edges = forest.used.tolist()
    link = forest.link[:edges]
    return Trees(
        forest.class_[:num],
        forest.count[:num],
        np.concatenate([forest.first[:num], [edges]]),
        arrays.link_src[link],
        arrays.link_dst[link],
        forest.stage[:edges],
    )

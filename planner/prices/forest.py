"""Trees in arrays that can grow in place: what the improvements of whole-row plans work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array
from dgcl.planner.plan import Trees

if TYPE_CHECKING:
    from dgcl.topology.arrays import TopologyArrays


class Forest(NamedTuple):
    """Trees in arrays with room to grow: tree t of ``class_[t]`` has ``size[t]`` edges from ``first[t]`` on.

    Attributes:
        class_, count, first, size: one entry per tree.
        link, stage: the edges.
        used: (2,) int64: how many trees and edges there are.
    """

    class_: Int32Array
    count: Int64Array  # type: ignore[assignment]  # the field of a tuple of arrays, not tuple.count
    first: Int64Array
    size: Int64Array
    link: Int32Array
    stage: Int32Array
    used: Int64Array


def plant(trees: Trees, arrays: TopologyArrays) -> Forest:
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


def compact(forest: Forest) -> Forest:
    """Return the forest ordered by class, equal trees of a class merged, empty ones dropped."""
    num = int(forest.used[0])
    alive = np.flatnonzero(forest.count[:num] > 0)
    size, first = forest.size[alive], forest.first[alive]
    ptr = np.concatenate([[0], np.cumsum(size)])
    edges = np.arange(int(ptr[-1])) + np.repeat(first - ptr[:-1], size)
    link, stage = forest.link[edges], forest.stage[edges]
    keys: dict[tuple[int, bytes, bytes], int] = {}
    owner = np.empty(alive.shape[0], np.int64)
    classes = forest.class_[alive]
    for t, c in enumerate(classes.tolist()):
        part = slice(ptr[t], ptr[t + 1])
        owner[t] = keys.setdefault((c, stage[part].tobytes(), link[part].tobytes()), t)
    heads = np.unique(owner)
    total = np.zeros(alive.shape[0], np.int64)
    np.add.at(total, owner, forest.count[alive])
    heads = heads[np.argsort(classes[heads], kind="stable")]
    sizes = size[heads]
    new_ptr = np.concatenate([[0], np.cumsum(sizes)])
    take = np.arange(int(new_ptr[-1])) + np.repeat(ptr[heads] - new_ptr[:-1], sizes)
    return _with_room(classes[heads], total[heads], new_ptr[:-1], sizes, link[take], stage[take])


def felled(forest: Forest, arrays: TopologyArrays) -> Trees:
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

"""The polishing pass over a plan: from soft to sharp, keeping the best plan met on the way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array
from dgcl.planner.plan import Trees
from dgcl.planner.prices.polish import Clock, Forest, exchange
from dgcl.planner.prices.tree_program import empty_choices

if TYPE_CHECKING:
    from dgcl.planner.prices.fractional import Problem
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays

SCHEDULES = (  # of sharpness: beta times the time of one row; each starts from the best plan of those before
    (8.0, 32.0, 128.0, 512.0),
    (4.0, 16.0, 64.0, 256.0),
    (2.0, 8.0, 32.0, 128.0, 512.0),
    (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0),
    (1.0, 4.0, 16.0, 64.0, 256.0),
    (0.25, 1.0, 4.0, 16.0, 64.0, 256.0),
)
PASSES = 8  # price updates at each sharpness
FEW_TREES = 1500  # up to which every schedule is tried; with more rows a row is worth less
PACE = 0.1  # beyond, a schedule that takes off less than this share of what is above `enough` is no progress


def improve(
    trees: Trees,
    problem: Problem,
    relation: Relation,
    arrays: TopologyArrays,
    num_stages: int,
    *,
    enough: float,
    latency_unit: float,
    thorough: bool = False,
    deadline: float = np.inf,
) -> Trees:
    """Exchange trees for better ones; the result is never slower than `trees`.

    Args:
        trees: a plan of at most `num_stages` stages.
        problem, relation, arrays: what it was made from.
        num_stages: stages that may be used.
        enough: stop when the plan takes no longer than this, in rows per GB/s.
        latency_unit: rows per GB/s in a second (1e9 / row_bytes), to bring latencies into that unit.
        thorough: try every schedule, forwards and backwards, again and again while that helps; for many
            trees, while it helps at a good pace.
        deadline: on the clock of time.perf_counter.
    """
    if trees.num_trees == 0:
        return trees
    space, routes = problem.space, problem.routes
    forest = _forest(trees, arrays)
    clock = _clock(problem, arrays, num_stages, latency_unit)
    choices = empty_choices(num_stages, space.world_size, space.num_sets)
    unit = float(np.median(routes.cost[arrays.link_directions]))  # time of a row on a usual direction
    fixed = (
        space.family, space.moves, choices, routes, space.items.ptr, space.item_set,
        relation.source, relation.dests, arrays.link_src, arrays.link_dst,
    )  # fmt: skip
    best_time = first_time = exchange(*fixed, forest, clock, 1.0 / unit, enough, 0, False)
    best = _compact(forest)
    few = trees.num_trees <= FEW_TREES
    number = (2 * len(SCHEDULES) if thorough else len(SCHEDULES)) if few else 6 if thorough else 1
    at = since = 0
    while best_time > enough and since < number and (thorough or at < number):
        forest, before = _compact(best), best_time
        since += 1
        for sharpness in SCHEDULES[(at // 2 if thorough else at) % len(SCHEDULES)]:
            if best_time <= enough or time.perf_counter() > deadline:
                break
            passes = PASSES if few or thorough else PASSES // 2
            reached = exchange(*fixed, forest, clock, sharpness / unit, enough, passes, at % 2 == 1)
            forest = _compact(forest)
            if reached < best_time * (1.0 - 1e-9):
                best_time, best = reached, _compact(forest)
        if before - best_time > (0.0 if few else PACE * (before - enough)):
            since = 0
        at += 1
    return _trees(best, arrays) if best_time < first_time else trees


def _forest(trees: Trees, arrays: TopologyArrays) -> Forest:
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


def _compact(forest: Forest) -> Forest:
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


def _clock(problem: Problem, arrays: TopologyArrays, num_stages: int, latency_unit: float) -> Clock:
    num_links, num_directions = arrays.link_src.shape[0], arrays.bandwidth.shape[0]
    link_of_hop = np.repeat(np.arange(num_links), np.diff(arrays.link_ptr)).astype(np.int32)
    order = np.argsort(arrays.link_directions, kind="stable")
    ptr = np.searchsorted(arrays.link_directions[order], np.arange(num_directions + 1)).astype(np.int64)
    shape = (num_stages, num_directions)
    return Clock(
        np.zeros((num_stages, num_links), np.int64),
        np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(num_stages), np.zeros(num_stages),
        arrays.link_latency * latency_unit,
        np.array([arrays.link_latency.any()]),
        ptr,
        link_of_hop[order],
    )  # fmt: skip


def _trees(forest: Forest, arrays: TopologyArrays) -> Trees:
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

"""Whole-row improvement between groups: a device is handed its row by another one that has it by then.

With devices in groups a row crosses to each other group once, straight from its owner's (hierarchy.py). An owner
whose machine has more to send out than others have to take in is then the bottleneck, although a machine that
has the row already could pass it on. Here single edges of finished trees are replaced: the edge into a device
by one from any other device of the tree that has the row early enough, or can get it earlier, in a stage before
that device's own sends. As in polish.py the gradient of the plan's smoothed time (clock.py) prices every (stage, link),
and rows move as long as the exact change of the smooth time is a gain. In turn with that, whole trees are exchanged
(polish.py), which balances what a group's devices take in.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.improvement.exchange import EVERY_TREE, exchange
from dgcl.planner.column_generation.improvement.makespan import (
    Clock,
    best_portion,
    load,
    shift,
    start_clock,
    weigh,
    wind,
)
from dgcl.planner.column_generation.pricing.routes import Routes, link_prices
from dgcl.planner.column_generation.pricing.tree_program import empty_choices
from dgcl.planner.column_generation.trees.edges import cleaned, sort_by_stage
from dgcl.planner.column_generation.trees.forest import Forest, plant
from dgcl.planner.compiled import compiled
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays

SHARPNESS = (30.0, 100.0, 300.0, 1000.0)  # beta times the plan's time, from soft to sharp
PASSES = 3  # price updates at each
DEAR = 0.02  # edges below this share of the dearest price stay where they are


def rehang(
    trees: Trees,
    problem: Problem,
    relation: Relation,
    arrays: TopologyArrays,
    num_stages: int,
    *,
    enough: float,
    latency_unit: float,
    deadline: float = np.inf,
) -> Trees:
    """Replace edges by edges from other holders, and whole trees by cheaper ones, in turn.

    Args:
        trees: a plan of at most `num_stages` stages; the result is never slower.
        problem, relation, arrays: what it was made from.
        num_stages: stages that may be used.
        enough: stop when the plan takes no longer than this, in rows per GB/s.
        latency_unit: rows per GB/s in a second (1e9 / row_bytes).
        deadline: on the clock of time.perf_counter.
    """
    if trees.num_trees == 0:
        return trees
    space, routes = problem.space, problem.routes
    forest = plant(trees, arrays)
    clock = start_clock(problem, arrays, num_stages, latency_unit, forest)
    choices = empty_choices(num_stages, space.world_size, space.num_sets)
    ends = arrays.link_src, arrays.link_dst
    single = (routes, relation.source, arrays.link_of.astype(np.int32), *ends)
    whole = (
        space.family, space.moves, choices, routes, space.items.ptr, space.item_set,
        relation.source, relation.dests, *ends,
    )  # fmt: skip
    first_time = reached = exchange(
        *whole, forest, clock, np.ones(num_stages), enough, 0, 0, EVERY_TREE, False
    )
    best_time, best = first_time, trees
    for sharpness in SHARPNESS:
        if best_time <= enough or time.perf_counter() > deadline:
            break
        reached = _pass_on(*single, forest, clock, np.full(num_stages, sharpness / reached), enough, PASSES)
        if time.perf_counter() < deadline:
            forest = plant(_tidied(forest, relation, arrays), arrays)
            load(clock, forest)
            reached = exchange(
                *whole,
                forest,
                clock,
                np.full(num_stages, sharpness / reached),
                enough,
                PASSES,
                0,
                EVERY_TREE,
                False,
            )
        if reached < best_time * (1.0 - 1e-6):
            best_time, best = reached, _tidied(forest, relation, arrays)
    return best


@compiled
def _pass_on(
    routes: Routes,
    source: Int32Array,
    link_of: Int32Array,
    link_src: Int32Array,
    link_dst: Int32Array,
    forest: Forest,
    clock: Clock,
    beta: FloatArray,
    enough: float,
    passes: int,
) -> float:
    """Replace edges, up to `passes` price updates or until nothing is gained; return the plan's true time.

    `forest`, with which the clock is loaded, is changed in place as long as it has room; the edges of its trees are
    in no order afterwards.
    """
    num_stages, num_directions = clock.busy.shape
    num_links, world = clock.rows.shape[1], link_of.shape[0]
    weight, price = np.empty((num_stages, num_directions)), np.empty((num_stages, num_links))
    entered = np.full(
        world, num_stages, np.int64
    )  # the stage in which a device gets the row; never: num_stages
    longest = 0
    for link in range(num_links):
        longest = max(longest, routes.ptr[link + 1] - routes.ptr[link])
    touched, delta = np.empty(4 * longest, np.int64), np.zeros((num_stages, num_directions))
    use_link, use_stage = np.empty(4, np.int32), np.empty(4, np.int32)
    use_sign = np.array([1, -1, 1, -1])
    for _ in range(passes):
        if wind(clock, routes, beta) <= enough:
            break
        weigh(clock, weight)
        link_prices(weight, routes, price)
        dearest = 0.0
        for k in range(num_stages):
            for link in range(num_links):
                if clock.rows[k, link] > 0 and price[k, link] < np.inf:
                    dearest = max(dearest, price[k, link])
        improved = False
        for t in range(forest.used[0]):
            low = forest.first[t]
            high = low + forest.size[t]
            owner = source[forest.class_[t]]
            entered[owner] = -1
            for e in range(low, high):
                entered[link_dst[forest.link[e]]] = forest.stage[e]
            for e in range(low, high):
                old_link, old_stage = forest.link[e], forest.stage[e]
                old_price = price[old_stage, old_link]
                if old_price < DEAR * dearest or forest.count[t] == 0:
                    continue
                head = link_dst[old_link]
                last = num_stages - 1
                for other in range(low, high):
                    if link_src[forest.link[other]] == head:
                        last = min(last, forest.stage[other] - 1)
                best, new_link, new_stage, moved, earlier = 0.95 * old_price, -1, 0, -1, 0
                for other in range(low - 1, high):
                    holder = owner if other < low else link_dst[forest.link[other]]
                    link = link_of[holder, head]
                    if holder == head or link < 0:
                        continue
                    for k in range(entered[holder] + 1, last + 1):
                        if price[k, link] < best:
                            best, new_link, new_stage, moved = price[k, link], link, k, -1
                    if other < low or link_src[forest.link[other]] == head:
                        continue
                    # or the holder gets its row earlier, from whom it has it now
                    inward = forest.link[other]
                    for before in range(entered[link_src[inward]] + 1, min(last, entered[holder])):
                        extra = price[before, inward] - price[entered[holder], inward]
                        for k in range(before + 1, min(last, entered[holder]) + 1):
                            if price[k, link] + extra < best:
                                best, new_link, new_stage = price[k, link] + extra, link, k
                                moved, earlier = other, before
                if new_link < 0:
                    continue
                use_link[0], use_stage[0], use_link[1], use_stage[1] = (
                    new_link,
                    new_stage,
                    old_link,
                    old_stage,
                )
                uses = 2
                if moved >= 0:
                    use_link[2], use_stage[2] = forest.link[moved], earlier
                    use_link[3], use_stage[3] = forest.link[moved], forest.stage[moved]
                    uses = 4
                best_rows = best_portion(
                    clock,
                    routes,
                    use_link,
                    use_stage,
                    use_sign,
                    uses,
                    forest.count[t],
                    0.0,
                    beta,
                    touched,
                    delta,
                )
                if best_rows == 0:
                    continue
                if best_rows < forest.count[t]:  # the others stay as they were, in a tree of their own
                    grown, edges = forest.used[0], forest.used[1]
                    if grown == forest.class_.shape[0] or edges + high - low > forest.link.shape[0]:
                        continue
                    forest.class_[grown], forest.count[grown] = forest.class_[t], forest.count[t] - best_rows
                    forest.first[grown], forest.size[grown] = edges, high - low
                    for other in range(low, high):
                        forest.link[edges + other - low] = forest.link[other]
                        forest.stage[edges + other - low] = forest.stage[other]
                    forest.used[0], forest.used[1] = grown + 1, edges + high - low
                    forest.count[t] = best_rows
                shift(
                    clock, routes, use_link, use_stage, use_sign, uses, best_rows, beta, True, touched, delta
                )
                forest.link[e], forest.stage[e] = new_link, new_stage
                entered[head] = new_stage
                if moved >= 0:
                    forest.stage[moved] = earlier
                    entered[link_dst[forest.link[moved]]] = earlier
                improved = True
                if clock.total.min() < 1e-6:  # far below its reference height: roundings would rule
                    wind(clock, routes, beta)
            entered[owner] = num_stages
            for e in range(low, high):
                entered[link_dst[forest.link[e]]] = num_stages
        if not improved:
            break
    return wind(clock, routes, beta)


def _tidied(forest: Forest, relation: Relation, arrays: TopologyArrays) -> Trees:
    """Return the trees in use, by class, edges by stage, without relays that nobody asks any more."""
    alive = np.flatnonzero(forest.count[: forest.used[0]] > 0)
    alive = alive[np.argsort(forest.class_[alive], kind="stable")]
    old_size = forest.size[alive]
    ptr = np.concatenate([[0], np.cumsum(old_size)])
    take = np.arange(int(ptr[-1])) + np.repeat(forest.first[alive] - ptr[:-1], old_size)
    link, stage = forest.link[take], forest.stage[take]
    size = _tidy(
        ptr, forest.class_[alive], relation.source, relation.dests, *(arrays.link_src, arrays.link_dst),
        link, stage, relation.world_size,
    )  # fmt: skip
    kept = np.arange(int(ptr[-1])) - np.repeat(ptr[:-1], old_size) < np.repeat(size, old_size)
    link, stage = link[kept], stage[kept]
    new_ptr = np.concatenate([[0], np.cumsum(size)])
    ends = arrays.link_src[link], arrays.link_dst[link]
    return Trees(forest.class_[alive], forest.count[alive], new_ptr, *ends, stage)


@compiled
def _tidy(
    edge_ptr: Int64Array,
    tree_class: Int32Array,
    source: Int32Array,
    dests: MaskArray,
    link_src: Int32Array,
    link_dst: Int32Array,
    link: Int32Array,
    stage: Int32Array,
    world: int,
) -> Int64Array:
    """Sort and clean every tree's edges in place; return how many each keeps."""
    size = np.empty(tree_class.shape[0], np.int64)
    entered, needed = np.empty(world, np.int32), np.empty(world, np.int32)
    for t in range(tree_class.shape[0]):
        part = slice(edge_ptr[t], edge_ptr[t + 1])
        num = edge_ptr[t + 1] - edge_ptr[t]
        sort_by_stage(link[part], stage[part], num)
        c = tree_class[t]
        size[t] = cleaned(
            link[part], stage[part], num, source[c], dests[c], link_src, link_dst, entered, needed
        )
    return size

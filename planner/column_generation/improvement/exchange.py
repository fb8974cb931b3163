"""Whole-row improvement: trees are exchanged for cheaper ones while the real stage times fall.

Rounding leaves some directions a row or two above their share, and dropping second deliveries leaves others
below. Both matter when counts are small. Here the gradient of the plan's smoothed time (clock.py) is a price
for every (stage, direction); the tree program finds the cheapest tree of every class at these prices, and rows
are moved to it from dearer trees as long as the exact change is a gain.
"""

from __future__ import annotations

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.improvement.makespan import Clock, best_portion, shift, weigh, wind
from dgcl.planner.column_generation.pricing.routes import Routes, link_prices
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily
from dgcl.planner.column_generation.pricing.tree_edges import trace
from dgcl.planner.column_generation.pricing.tree_program import Choices, Moves, cheapest_trees
from dgcl.planner.column_generation.trees.edges import cleaned, sort_by_stage
from dgcl.planner.column_generation.trees.forest import Forest
from dgcl.planner.compiled import compiled

EVERY_TREE = 1 << 62
LEAST = 3e-3  # share of its price that another tree must save to be looked at more closely


@compiled
def exchange(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    routes: Routes,
    item_ptr: Int64Array,
    item_set: Int32Array,
    source: Int32Array,
    dests: MaskArray,
    link_src: Int32Array,
    link_dst: Int32Array,
    forest: Forest,
    clock: Clock,
    beta: FloatArray,
    enough: float,
    passes: int,
    low: int,
    high: int,
    backwards: bool,
) -> float:
    """Exchange trees for cheaper ones, up to `passes` price updates or until nothing is gained.

    Also ends once the plan's true time is at most `enough`. The trees ``low:high`` are looked at (`EVERY_TREE`: all)
    in order, or `backwards`. `beta` (K,) is how sharp the smooth time is in each stage.

    `forest`, with which the clock is loaded, is changed in place as long as it has room. Returns the plan's true time.
    """
    num_stages, num_directions = clock.busy.shape
    num_links = clock.rows.shape[1]
    world = choices.split.shape[1]
    weight, price = np.empty((num_stages, num_directions)), np.empty((num_stages, num_links))
    room = 4 * world * world * num_stages
    new_link, new_stage = np.empty(room, np.int32), np.empty(room, np.int32)
    use_link, use_stage, use_sign = (
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int64),
    )
    stack = np.empty((room, 3), np.int64)
    entered, needed = np.empty(world, np.int32), np.empty(world, np.int32)
    longest = 0
    for link in range(num_links):
        longest = max(longest, routes.ptr[link + 1] - routes.ptr[link])
    touched, delta = np.empty(room * longest, np.int64), np.zeros((num_stages, num_directions))
    for _ in range(passes):
        if wind(clock, routes, beta) <= enough:
            break
        weigh(clock, weight)
        link_prices(weight, routes, price)
        cheapest_trees(family, moves, price, choices)
        improved = stale = False
        first, last = min(low, forest.used[0]), min(high, forest.used[0])
        traced = -1
        num_new = 0
        new_price = 0.0
        for number in range(first, last):
            t = first + last - 1 - number if backwards else number
            c = forest.class_[t]
            rows = forest.count[t]
            if rows == 0:
                continue
            old_price = 0.0
            for e in range(forest.first[t], forest.first[t] + forest.size[t]):
                old_price += price[forest.stage[e], forest.link[e]]
            if traced != c:
                lowest = 0.0
                for i in range(item_ptr[c], item_ptr[c + 1]):
                    lowest += choices.value[0, source[c], item_set[i]]
                if not lowest < old_price * (1.0 - LEAST):
                    continue
                num_new = 0
                for i in range(item_ptr[c], item_ptr[c + 1]):
                    num_new = trace(
                        family, moves, choices, source[c], item_set[i], new_link, new_stage, num_new, stack
                    )
                sort_by_stage(new_link, new_stage, num_new)
                num_new = cleaned(
                    new_link, new_stage, num_new, source[c], dests[c], link_src, link_dst, entered, needed
                )
                traced = c
                new_price = 0.0
                for e in range(num_new):
                    new_price += price[new_stage[e], new_link[e]]
            if not new_price < old_price * (1.0 - LEAST):
                continue
            num = 0
            for e in range(num_new):
                use_link[num], use_stage[num], use_sign[num] = new_link[e], new_stage[e], 1
                num += 1
            for e in range(forest.first[t], forest.first[t] + forest.size[t]):
                use_link[num], use_stage[num], use_sign[num] = forest.link[e], forest.stage[e], -1
                num += 1
            hops = routes.base[0] * (num_new - forest.size[t])
            best_rows = best_portion(
                clock, routes, use_link, use_stage, use_sign, num, rows, hops, beta, touched, delta
            )
            if best_rows == 0:
                continue
            grown = forest.used[0]
            edges = forest.used[1]
            if grown == forest.class_.shape[0] or edges + num_new > forest.link.shape[0]:
                return wind(clock, routes, beta)
            shift(clock, routes, use_link, use_stage, use_sign, num, best_rows, beta, True, touched, delta)
            improved = True
            stale = stale or clock.total.min() < 1e-6  # far below its reference height: roundings would rule
            forest.count[t] -= best_rows
            forest.class_[grown], forest.count[grown] = c, best_rows
            forest.first[grown], forest.size[grown] = edges, num_new
            for e in range(num_new):
                forest.link[edges + e], forest.stage[edges + e] = new_link[e], new_stage[e]
            forest.used[0], forest.used[1] = grown + 1, edges + num_new
            if stale:
                wind(clock, routes, beta)
                stale = False
        if not improved:
            break
    return wind(clock, routes, beta)

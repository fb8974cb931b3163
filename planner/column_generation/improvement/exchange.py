"""Exchanges trees of a whole plan for cheaper ones while the smoothed makespan falls.

Rounding leaves some directions a row or two above their share, and dropping second deliveries leaves others below.
Both matter when counts are small. The gradient of the smoothed makespan (makespan.py) is a price for every (stage,
direction); the tree program finds the cheapest tree of every class at these prices; and rows move to it from more
expensive trees, as many as gain most by the exact change of the smoothed makespan.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array
from dgcl.planner.column_generation.improvement.instance import Instance
from dgcl.planner.column_generation.improvement.makespan import (
    LinkUses,
    SmoothMakespan,
    best_amount,
    empty_uses,
    gradient,
    recompute,
    shift,
)
from dgcl.planner.column_generation.pricing.routes import link_prices
from dgcl.planner.column_generation.pricing.tree_edges import trace
from dgcl.planner.column_generation.pricing.tree_program import Choices, cheapest_trees
from dgcl.planner.column_generation.trees.edges import cleaned, sort_by_stage
from dgcl.planner.column_generation.trees.forest import Forest, append_tree
from dgcl.planner.compiled import compiled

EVERY_TREE = 1 << 62
MIN_SAVING = 3e-3  # share of its price that another tree must save before rows are counted
MIN_TOTAL = 1e-6  # of a stage's sum of powers: below, rounding errors would decide, and all is recomputed


class TreeBuffer(NamedTuple):
    """The edges of one tree, with scratch; P devices.

    Attributes:
        link, stage: int32, the edges.
        stack: (n, 3) int64 scratch of `trace`.
        entered, needed: (P,) int32 scratch of `cleaned`.
    """

    link: Int32Array
    stage: Int32Array
    stack: Int64Array
    entered: Int32Array
    needed: Int32Array


@compiled(inline=False, entry=False)
def empty_tree(world: int, room: int) -> TreeBuffer:
    """Allocate a tree of up to `room` edges."""
    return TreeBuffer(
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty((room, 3), np.int64),
        np.empty(world, np.int32),
        np.empty(world, np.int32),
    )


@compiled(inline=False, entry=False)
def cheapest_tree(instance: Instance, choices: Choices, c: int, out: TreeBuffer) -> int:
    """Put the cheapest tree of class c into `out`, clean and by stages; return the number of its edges."""
    source, num = instance.source[c], 0
    for i in range(instance.item_ptr[c], instance.item_ptr[c + 1]):
        num = trace(
            instance.family, instance.moves, choices, source, instance.item_set[i], out.link, out.stage, num, out.stack
        )  # fmt: skip
    sort_by_stage(out.link, out.stage, num)
    return cleaned(
        out.link, out.stage, num, source, instance.dests[c], instance.ends, out.entered, out.needed
    )


@compiled(entry=False)
def _tree_price(price: FloatArray, link: Int32Array, stage: Int32Array, first: int, last: int) -> float:
    """Return what a row pays for the edges ``first:last``."""
    total = 0.0
    for e in range(first, last):
        total += price[stage[e], link[e]]
    return total


@compiled(entry=False)
def _set_uses(uses: LinkUses, new: TreeBuffer, num_new: int, forest: Forest, t: int) -> int:
    """Describe the exchange of tree t for the new one in `uses`; return the number of link uses."""
    num = 0
    for e in range(num_new):
        uses.link[num], uses.stage[num], uses.sign[num] = new.link[e], new.stage[e], 1
        num += 1
    for e in range(forest.first[t], forest.first[t] + forest.size[t]):
        uses.link[num], uses.stage[num], uses.sign[num] = forest.link[e], forest.stage[e], -1
        num += 1
    return num


@compiled(inline=False)
def exchange(
    instance: Instance,
    choices: Choices,
    forest: Forest,
    smooth: SmoothMakespan,
    beta: FloatArray,
    enough: float,
    passes: int,
    low: int,
    high: int,
    backwards: bool,
) -> float:
    """Exchange trees for cheaper ones, for up to `passes` price updates or until nothing is gained.

    Args:
        instance: states, links and classes.
        choices: scratch for the tree program.
        forest: the trees, changed in place as long as there is room.
        smooth: the makespan, loaded with the forest.
        beta: (K,), how sharp the smoothed makespan is in each stage.
        enough: the true time at which to stop.
        passes: see above.
        low, high: the trees ``low:high`` may be exchanged; `EVERY_TREE` as `high` for all.
        backwards: take the trees from the last to the first.

    Returns:
        The plan's true time.
    """
    num_stages, num_directions = smooth.busy.shape
    num_links = smooth.rows.shape[1]
    world = choices.split.shape[1]
    routes = instance.routes
    weight, price = np.empty((num_stages, num_directions)), np.empty((num_stages, num_links))
    room = 4 * world * world * num_stages
    new, uses = empty_tree(world, room), empty_uses(routes, num_stages, room)
    for _ in range(passes):
        if recompute(smooth, routes, beta) <= enough:
            break
        gradient(smooth, weight)
        link_prices(weight, routes, price)
        cheapest_trees(instance.family, instance.moves, price, choices)
        improved = False
        first, last = min(low, forest.used[0]), min(high, forest.used[0])
        traced = -1  # the class whose cheapest tree is in `new`
        num_new = 0
        new_price = 0.0
        for number in range(first, last):
            t = first + last - 1 - number if backwards else number
            c = forest.class_[t]
            if forest.count[t] == 0:
                continue
            old_price = _tree_price(
                price, forest.link, forest.stage, forest.first[t], forest.first[t] + forest.size[t]
            )
            if traced != c:
                lowest = 0.0
                for i in range(instance.item_ptr[c], instance.item_ptr[c + 1]):
                    lowest += choices.value[0, instance.source[c], instance.item_set[i]]
                if not lowest < old_price * (1.0 - MIN_SAVING):
                    continue
                num_new = cheapest_tree(instance, choices, c, new)
                traced = c
                new_price = _tree_price(price, new.link, new.stage, 0, num_new)
            if not new_price < old_price * (1.0 - MIN_SAVING):
                continue
            num = _set_uses(uses, new, num_new, forest, t)
            hops = routes.base[0] * (num_new - forest.size[t])
            rows = best_amount(smooth, routes, uses, num, forest.count[t], hops, beta)
            if rows == 0:
                continue
            if not append_tree(forest, c, rows, new.link, new.stage, num_new):
                return recompute(smooth, routes, beta)
            forest.count[t] -= rows
            shift(smooth, routes, uses, num, rows, beta, True)
            improved = True
            if smooth.total.min() < MIN_TOTAL:
                recompute(smooth, routes, beta)
        if not improved:
            break
    return recompute(smooth, routes, beta)

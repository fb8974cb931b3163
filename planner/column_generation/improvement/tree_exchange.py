"""Moves rows of a whole plan from expensive trees to cheaper ones while the smoothed makespan falls.

Rounding leaves some directions a row or two above their share, and dropping second deliveries leaves others below; both
matter when counts are small. The gradient of the smoothed makespan (an approximation of the plan's time: makespan.py)
is a price for every (stage, direction); the tree program finds the cheapest tree of every class at these prices; and as
many rows move to it as gain most by the exact change. `exchange` does so for one sharpness, `improve` from a soft
makespan to a sharp one.
Called by `reparent`, `planner/column_generation/search/stage_search`, `planner/column_generation/search/grouped` and
`dgcl/cli/warmup`. Free to change while every row is still delivered and no plan gets slower
(`tests/planner/column_generation/test_whole_plans.py`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array
from dgcl.planner.column_generation.improvement.makespan import (
    LinkUses,
    SmoothMakespan,
    best_amount,
    empty_uses,
    gradient,
    load,
    move,
    recompute,
    smooth_makespan,
)
from dgcl.planner.column_generation.pricing.flows import link_prices
from dgcl.planner.column_generation.pricing.tree_program import (
    Choices,
    cheapest_trees,
    empty_choices,
)
from dgcl.planner.column_generation.rounding.cheapest import (
    Instance,
    TreeBuffer,
    cheapest_tree,
    class_instance,
    empty_tree,
)
from dgcl.planner.column_generation.rounding.forest import (
    Forest,
    append_tree,
    compact,
    forest_from_trees,
    trees_from_forest,
)
from dgcl.planner.planner_compiled import compiled
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem


EVERY_TREE = 1 << 62
MIN_SAVING = 3e-3  # share of its price that another tree must save before rows are counted


@compiled(allocates=False, entry=False)
def _tree_price(price: FloatArray, link: Int32Array, stage: Int32Array, first: int, last: int) -> float:
    """Return what a row pays for the edges ``first:last``."""
    total = 0.0
    for e in range(first, last):
        total += price[stage[e], link[e]]
    return total


@compiled(allocates=False, entry=False)
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


class ExchangeBuffer(NamedTuple):
    """Scratch of `exchange`; K stages, C directions, L links.

    Attributes:
        choices: of the tree program.
        weight, price: (K, C) and (K, L), prices of directions and of links.
        new, uses: a tree, and what an exchange for it changes.
    """

    choices: Choices
    weight: FloatArray
    price: FloatArray
    new: TreeBuffer
    uses: LinkUses


def exchange_buffer(problem: Problem, num_stages: int) -> ExchangeBuffer:
    """Allocate the scratch of `exchange`."""
    space, routes = problem.space, problem.routes
    room = 4 * space.world_size**2 * num_stages
    return ExchangeBuffer(
        empty_choices(num_stages, space),
        np.empty((num_stages, routes.cost.shape[0])),
        np.empty((num_stages, routes.base.shape[0])),
        empty_tree(space.world_size, room),
        empty_uses(routes, num_stages, room),
    )


@compiled(allocates=False)
def exchange(
    instance: Instance,
    buffer: ExchangeBuffer,
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
        buffer: scratch.
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
    routes, (choices, weight, price, new, uses) = instance.routes, buffer
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
            move(smooth, routes, uses, num, rows, beta)
            improved = True
        if not improved:
            break
    return recompute(smooth, routes, beta)


SCHEDULES = (  # of beta times the time of one row; each starts from the best plan of those before
    (8.0, 32.0, 128.0, 512.0),
    (4.0, 16.0, 64.0, 256.0),
    (2.0, 8.0, 32.0, 128.0, 512.0),
    (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0),
    (1.0, 4.0, 16.0, 64.0, 256.0),
    (0.25, 1.0, 4.0, 16.0, 64.0, 256.0),
)
PASSES = 8  # price updates at each sharpness
FEW_TREES = 1500  # up to which every schedule is tried; of more rows each is worth less
PACE = 0.1  # of the time above `enough`: with more trees, a schedule that takes off less is no progress


def improve(
    trees: Trees,
    problem: Problem,
    num_stages: int,
    *,
    enough: float,
    thorough: bool = False,
    deadline: float = np.inf,
) -> Trees:
    """Exchange trees for better ones; the result is never slower than `trees`.

    Args:
        trees: a plan of at most `num_stages` stages.
        problem: what it was made from.
        num_stages: stages that may be used.
        enough: stop when the plan takes no longer than this, in rows per GB/s.
        thorough: try every schedule, forwards and backwards, again and again while that helps; for many
            trees, while it helps at a good pace.
        deadline: on the clock of time.process_time.
    """
    if trees.num_trees == 0:
        return trees
    instance, routes, arrays = class_instance(problem), problem.routes, problem.space.arrays
    forest = forest_from_trees(trees, arrays)
    smooth = smooth_makespan(problem, num_stages, forest)
    buffer = exchange_buffer(problem, num_stages)
    unit = float(np.median(routes.cost[arrays.link_directions]))  # time of a row on a usual direction
    best_time = first_time = recompute(smooth, routes, np.full(num_stages, 1.0 / unit))
    best = compact(forest)
    few = trees.num_trees <= FEW_TREES
    number = (2 * len(SCHEDULES) if thorough else len(SCHEDULES)) if few else 3 if thorough else 1
    at = since = 0
    while best_time > enough and since < number and (thorough or at < number):
        forest, before = compact(best), best_time
        load(smooth, forest)
        since += 1
        for sharpness in SCHEDULES[(at // 2 if thorough else at) % len(SCHEDULES)]:
            if best_time <= enough or time.process_time() > deadline:
                break
            passes = PASSES if few or thorough else PASSES // 2
            beta = np.full(num_stages, sharpness / unit)
            backwards = at % 2 == 1
            reached = exchange(
                instance, buffer, forest, smooth, beta, enough, passes, 0, EVERY_TREE, backwards
            )
            forest = compact(forest)
            if reached < best_time * (1.0 - 1e-9):
                best_time, best = reached, compact(forest)
        if before - best_time > (0.0 if few else PACE * (before - enough)):
            since = 0
        at += 1
    return trees_from_forest(best, arrays) if best_time < first_time else trees

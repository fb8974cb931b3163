"""Re-parents edges of finished trees: a device gets its row from another device that has it by then.

With devices in groups each group that needs a row gets it straight from its owner's. A machine with much to send is
then the bottleneck, although others that have its rows could pass them on; the comment below has the method.
Called by `planner/column_generation/search/stage_search`. Free to change while every row is delivered, machines pass on
rows of one that has too much to send, and the clock is looked at between trees
(`tests/planner/column_generation/test_reparent.py`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array, Int64Array
from dgcl.planner.column_generation.improvement.makespan import (
    LinkUses,
    SmoothMakespan,
    best_amount,
    gradient,
    load,
    move,
    recompute,
    smooth_makespan,
)
from dgcl.planner.column_generation.improvement.tree_exchange import (
    EVERY_TREE,
    ExchangeBuffer,
    exchange,
    exchange_buffer,
)
from dgcl.planner.column_generation.pricing.flows import link_prices
from dgcl.planner.column_generation.rounding.cheapest import Instance, class_instance
from dgcl.planner.column_generation.rounding.forest import (
    Forest,
    append_tree,
    cleaned,
    forest_from_trees,
    ordered,
    sort_by_stage,
    trees_from_forest,
)
from dgcl.planner.planner_compiled import compiled
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem

SHARPNESS = (30.0, 100.0, 300.0, 1000.0)  # beta times the plan's time, from soft to sharp
PASSES = 6  # price updates at each
TREES = 10_000  # looked at between two looks at the clock
EXPENSIVE = 0.02  # edges below this share of the highest price in use stay
MAX_SHARE = 0.95  # of the price of an edge that its replacement may cost


# With devices in groups a row crosses to each other group once, straight from its owner's
# (pricing/device_groups.py). An owner whose machine has more to send out than others have to take in is then the
# bottleneck, although a machine that has the row could pass it on. Here single edges of finished trees are
# replaced: the edge into a device by one from any other device of the tree that has the row early enough, or can
# get it earlier, in a stage before that device's own sends. The gradient of the smoothed makespan (makespan.py)
# prices every (stage, link), and as many rows move as gain most by its exact change. In turn with that, whole
# trees are exchanged (tree_exchange.py), which balances what the devices of a group take in.


def reparent(trees: Trees, problem: Problem, num_stages: int, *, enough: float, deadline: float) -> Trees:
    """Replace edges by edges from other holders, and whole trees by cheaper ones, in turn.

    Args:
        trees: a plan of at most `num_stages` stages; the result is never slower.
        problem: what it was made from.
        num_stages: stages that may be used.
        enough: stop when the plan takes no longer than this, in rows per GB/s.
        deadline: on the clock of time.process_time.
    """
    if trees.num_trees == 0:
        return trees
    instance, arrays = class_instance(problem), problem.space.arrays
    forest = forest_from_trees(trees, arrays)
    smooth = smooth_makespan(problem, num_stages, forest)
    buffer, link_of = exchange_buffer(problem, num_stages), arrays.link_of.astype(np.int32)
    entered = np.full(link_of.shape[0], num_stages)
    best, best_time = forest, recompute(smooth, problem.routes, np.ones(num_stages))
    first_time = reached = best_time
    for sharpness in SHARPNESS:
        if best_time <= enough or time.process_time() > deadline:
            break
        beta = np.full(num_stages, sharpness / reached)
        for _ in range(PASSES):
            improved, num_trees = False, forest.used[0]
            for first in range(0, num_trees, TREES):
                if time.process_time() > deadline:
                    break
                last = min(first + TREES, num_trees)
                improved |= _reparent_edges(
                    instance, link_of, forest, smooth, beta, buffer, entered, first, last
                )
            reached = recompute(smooth, problem.routes, beta)
            if not improved or reached <= enough:
                break
        if time.process_time() < deadline:
            forest = _cleaned(forest, instance)
            load(smooth, forest)
            beta = np.full(num_stages, sharpness / reached)
            reached = exchange(instance, buffer, forest, smooth, beta, enough, PASSES, 0, EVERY_TREE, False)
        if reached < best_time * (1.0 - 1e-6):
            best, best_time = _cleaned(forest, instance), reached
    return trees_from_forest(best, arrays) if best_time < first_time else trees


class _Replacement(NamedTuple):
    """What takes the place of the edge into a device.

    Attributes:
        link, stage: the new edge; link -1 if none is cheaper.
        moved, earlier: the position of the edge by which the sender gets its row, and the earlier stage to which that
            moves; -1 and 0 if it stays.
    """

    link: int
    stage: int
    moved: int
    earlier: int


@compiled(inline=False, allocates=False, entry=False)
def _cheapest_replacement(
    instance: Instance,
    link_of: Int32Array,
    forest: Forest,
    t: int,
    e: int,
    entered: Int64Array,
    price: FloatArray,
) -> _Replacement:
    """Return the cheapest way to replace edge e of tree t.

    Args:
        instance, forest: as in `exchange`.
        link_of: (P, P) int32, the link from one device to another, -1 for none.
        t, e: tree and position of the edge.
        entered: (P,) the stage in which each device gets the row; -1 for the owner.
        price: (K, L), what a row pays.
    """
    src, dst = instance.ends
    low, high = forest.first[t], forest.first[t] + forest.size[t]
    owner, head = instance.source[forest.class_[t]], dst[forest.link[e]]
    last = price.shape[0] - 1  # stage before the device's own sends
    for other in range(low, high):
        if src[forest.link[other]] == head:
            last = min(last, forest.stage[other] - 1)
    best = MAX_SHARE * price[forest.stage[e], forest.link[e]]
    new_link, new_stage, moved, earlier = np.int64(-1), np.int64(0), np.int64(-1), np.int64(0)
    for other in range(low - 1, high):
        holder = owner if other < low else dst[forest.link[other]]
        link = link_of[holder, head]
        if holder == head or link < 0:
            continue
        for k in range(entered[holder] + 1, last + 1):
            if price[k, link] < best:
                best, new_link, new_stage, moved = price[k, link], np.int64(link), np.int64(k), np.int64(-1)
        if other < low or src[forest.link[other]] == head:
            continue
        inward = forest.link[other]  # or the holder gets its row earlier over this link
        for before in range(entered[src[inward]] + 1, min(last, entered[holder])):
            extra = price[before, inward] - price[entered[holder], inward]
            for k in range(before + 1, min(last, entered[holder]) + 1):
                if price[k, link] + extra < best:
                    best, new_link, new_stage = price[k, link] + extra, np.int64(link), np.int64(k)
                    moved, earlier = np.int64(other), np.int64(before)
    return _Replacement(new_link, new_stage, moved, earlier)


@compiled(allocates=False, entry=False)
def _set_uses(uses: LinkUses, forest: Forest, e: int, new: _Replacement) -> int:
    """Describe the replacement of edge e in `uses`; return the number of link uses."""
    uses.link[0], uses.stage[0], uses.sign[0] = new.link, new.stage, 1
    uses.link[1], uses.stage[1], uses.sign[1] = forest.link[e], forest.stage[e], -1
    if new.moved < 0:
        return 2
    uses.link[2], uses.stage[2], uses.sign[2] = forest.link[new.moved], new.earlier, 1
    uses.link[3], uses.stage[3], uses.sign[3] = forest.link[new.moved], forest.stage[new.moved], -1
    return 4


@compiled(allocates=False, entry=False)
def _highest_price(smooth: SmoothMakespan, price: FloatArray) -> float:
    """Return the largest finite price of a (stage, link) in use."""
    highest = 0.0
    for k in range(price.shape[0]):
        for link in range(price.shape[1]):
            if smooth.rows[k, link] > 0 and price[k, link] < np.inf:
                highest = max(highest, price[k, link])
    return highest


@compiled(allocates=False)
def _reparent_edges(
    instance: Instance,
    link_of: Int32Array,
    forest: Forest,
    smooth: SmoothMakespan,
    beta: FloatArray,
    buffer: ExchangeBuffer,
    entered: Int64Array,
    first: int,
    last: int,
) -> bool:
    """Replace edges of trees ``first:last``; return whether that gained something. Before the first one it sets prices.

    `forest`, with which `smooth` is loaded, is changed in place as long as there is room. The edges of its trees are
    in no order afterwards. `entered` (P,) is when each device gets the row, before and after each call the number of
    stages: never.
    """
    routes, dst, num_stages = instance.routes, instance.ends.dst, smooth.busy.shape[0]
    _, weight, price, _, uses = buffer
    if first == 0:
        recompute(smooth, routes, beta)
        gradient(smooth, weight)
        link_prices(weight, routes, price)
    highest, improved = _highest_price(smooth, price), False
    for t in range(first, last):
        low, high = forest.first[t], forest.first[t] + forest.size[t]
        owner = instance.source[forest.class_[t]]
        entered[owner] = -1
        for e in range(low, high):
            entered[dst[forest.link[e]]] = forest.stage[e]
        for e in range(low, high):
            if price[forest.stage[e], forest.link[e]] < EXPENSIVE * highest or forest.count[t] == 0:
                continue
            new = _cheapest_replacement(instance, link_of, forest, t, e, entered, price)
            if new.link < 0:
                continue
            num, all_rows = _set_uses(uses, forest, e, new), forest.count[t]
            rows = best_amount(smooth, routes, uses, num, all_rows, 0.0, beta)
            if rows == 0:
                continue
            if rows < all_rows:  # the others stay as they were, in a tree of their own
                link, stage = forest.link[low:high], forest.stage[low:high]
                if not append_tree(forest, forest.class_[t], all_rows - rows, link, stage, high - low):
                    continue
                forest.count[t] = rows
            move(smooth, routes, uses, num, rows, beta)
            entered[dst[forest.link[e]]] = new.stage
            forest.link[e], forest.stage[e] = new.link, new.stage
            if new.moved >= 0:
                forest.stage[new.moved] = new.earlier
                entered[dst[forest.link[new.moved]]] = new.earlier
            improved = True
        entered[owner] = num_stages
        for e in range(low, high):
            entered[dst[forest.link[e]]] = num_stages
    return improved


def _cleaned(forest: Forest, instance: Instance) -> Forest:
    """Return a copy by class, with edges by stage and without relays that serve nobody."""
    copy = ordered(forest)
    _clean_trees(instance, copy, *np.empty((2, instance.family.group_of.shape[0]), np.int32))
    return ordered(copy)


@compiled(allocates=False)
def _clean_trees(instance: Instance, forest: Forest, entered: Int32Array, needed: Int32Array) -> None:
    """Sort and clean every tree's edges in place; `entered` and `needed` are scratch of `cleaned`."""
    for t in range(forest.used[0]):
        part, c = slice(forest.first[t], forest.first[t] + forest.size[t]), forest.class_[t]
        link, stage = forest.link[part], forest.stage[part]
        sort_by_stage(link, stage, forest.size[t])
        forest.size[t] = cleaned(
            link, stage, forest.size[t], instance.source[c], instance.dests[c], instance.ends, entered, needed
        )  # fmt: skip

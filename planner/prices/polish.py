"""Whole-row improvement: trees are exchanged for cheaper ones while the real stage times fall.

Rounding leaves some directions a row or two above their share, and dropping second deliveries leaves others
below. Both matter when counts are small. Here the plan's time is smoothed to the sum over stages of log(1 +
sum over c of (exp(beta * h) - 1)) / beta, where h(k, c) is how long direction c is busy in stage k (with
the latency of the slowest link that uses it). Its gradient is a price for every (stage, direction); the
tree program finds the cheapest tree of every class at these prices, and rows are moved to it from dearer
trees as long as the exact change is a gain. With growing beta the smooth time becomes the true one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import BoolArray, FloatArray, Int32Array, Int64Array, MaskArray
from dgcl.planner.compiled import compiled
from dgcl.planner.prices.assembly import cleaned, sort_by_stage
from dgcl.planner.prices.loop import Routes, link_prices
from dgcl.planner.prices.subsets import SubsetFamily
from dgcl.planner.prices.tree_program import WAIT, Choices, Moves, cheapest_trees


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


class Clock(NamedTuple):
    """The loads of a plan and what follows from them, K stages, C directions, L links.

    Attributes:
        rows: (K, L) int64. busy: (K, C), time units that the rows take. height: (K, C), `busy` plus the
        largest latency of a link in use there; 0 where nothing is sent. power: (K, C), exp(beta * (height -
        top)). top, total: (K,), the reference height, and the sum of `power` less that of idle directions,
        plus one idle. latency: (L,) in time units. by_direction_ptr, by_direction: the links that use each
        direction.
    """

    rows: Int64Array
    busy: FloatArray
    height: FloatArray
    power: FloatArray
    top: FloatArray
    total: FloatArray
    latency: FloatArray
    late: BoolArray
    by_direction_ptr: Int64Array
    by_direction: Int32Array


@compiled
def _worst_latency(
    rows: Int64Array,
    latency: FloatArray,
    by_direction_ptr: Int64Array,
    by_direction: Int32Array,
    k: int,
    c: int,
) -> float:
    """Return the largest latency of the links in use through a direction; `rows` must be up to date."""
    worst = 0.0
    for i in range(by_direction_ptr[c], by_direction_ptr[c + 1]):
        link = by_direction[i]
        if rows[k, link] > 0 and latency[link] > worst:
            worst = latency[link]
    return worst


@compiled
def _wind(clock: Clock, forest: Forest, routes: Routes, beta: float) -> float:
    """Recompute the clock from the forest; return the plan's true time."""
    clock.rows[:] = 0
    for t in range(forest.used[0]):
        for e in range(forest.first[t], forest.first[t] + forest.size[t]):
            clock.rows[forest.stage[e], forest.link[e]] += forest.count[t]
    num_stages, num_directions = clock.busy.shape
    clock.busy[:] = 0.0
    time = 0.0
    for k in range(num_stages):
        for link in range(clock.rows.shape[1]):
            if clock.rows[k, link]:
                for i in range(routes.ptr[link], routes.ptr[link + 1]):
                    c = routes.direction[i]
                    clock.busy[k, c] += clock.rows[k, link] * routes.cost[c]
        for c in range(num_directions):
            clock.height[k, c] = clock.busy[k, c]
            if clock.late[0] and clock.busy[k, c] > 0.0:
                clock.height[k, c] += _worst_latency(
                    clock.rows, clock.latency, clock.by_direction_ptr, clock.by_direction, k, c
                )
        clock.top[k] = clock.height[k].max()
        idle = np.exp(-beta * clock.top[k])
        clock.total[k] = idle
        for c in range(num_directions):
            clock.power[k, c] = np.exp(beta * (clock.height[k, c] - clock.top[k]))
            clock.total[k] += clock.power[k, c] - idle
        time += clock.top[k]
    return time


@compiled
def _shift(
    clock: Clock,
    routes: Routes,
    link: Int32Array,
    stage: Int32Array,
    sign: Int64Array,
    num: int,
    rows: int,
    beta: float,
    apply: bool,
    touched: Int64Array,
    delta: FloatArray,
) -> float:
    """Return by how much the smooth time changes when ``sign * rows`` are added to each of `num` link uses.

    `delta` is (K, C) zeros, and so again afterwards. With `apply` the clock is changed.
    """
    num_directions = clock.busy.shape[1]
    late = clock.late[0]
    for e in range(num):
        clock.rows[stage[e], link[e]] += sign[e] * rows
    many = 0
    for e in range(num):
        k = stage[e]
        for i in range(routes.ptr[link[e]], routes.ptr[link[e] + 1]):
            c = routes.direction[i]
            if delta[k, c] == 0.0:
                touched[many] = k * num_directions + c
                many += 1
            delta[k, c] += sign[e] * rows * routes.cost[c]
            if delta[k, c] == 0.0:
                delta[k, c] = 1e-300  # keeps it listed once
    gain = 0.0
    for k in range(clock.top.shape[0]):
        change = 0.0
        for i in range(many):
            if touched[i] // num_directions != k:
                continue
            c = touched[i] % num_directions
            busy = clock.busy[k, c] + delta[k, c]
            if busy < 1e-9 * routes.cost[c]:
                busy = 0.0  # less than any whole row: what is left are roundings
            height = busy
            if late and busy > 0.0:
                height += _worst_latency(
                    clock.rows, clock.latency, clock.by_direction_ptr, clock.by_direction, k, c
                )
            power = np.exp(beta * (height - clock.top[k]))
            change += power - clock.power[k, c]
            if apply:
                clock.busy[k, c], clock.height[k, c], clock.power[k, c] = busy, height, power
        if change != 0.0:
            gain += np.log(max(1.0 + change / clock.total[k], 1e-12)) / beta  # less is lost in rounding
            if apply:
                clock.total[k] += change
    for i in range(many):
        delta[touched[i] // num_directions, touched[i] % num_directions] = 0.0
    if not apply:
        for e in range(num):
            clock.rows[stage[e], link[e]] -= sign[e] * rows
    return gain


@compiled
def _trace(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    source: int,
    set_: int,
    link: Int32Array,
    stage: Int32Array,
    num: int,
    stack: Int64Array,
) -> int:
    """Append the edges of the cheapest tree of one set to `link` and `stage`; return how many there are
    then."""
    num_groups = family.set_ptr.shape[0] - 1
    group = 0
    while family.set_ptr[group + 1] <= set_:
        group += 1
    low = family.set_ptr[group]
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, source, set_
    depth = 1
    while depth:
        depth -= 1
        k, v, f = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        if moves.splits[v * num_groups + group]:
            choice = choices.split[k, v, f]
            rest = family.pair_rest[choice]
            f = np.int64(family.pair_first[choice])
            if rest != low:
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = k, v, rest
                depth += 1
        j = choices.move[k, v, f]
        if j == WAIT:
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = k + 1, v, f
            depth += 1
            continue
        w = moves.dst[j]
        link[num], stage[num] = moves.link[j], k
        num += 1
        if family.group_of[w] == group:
            f = np.int64(family.minus[f, family.bit_of[w]])
        if f != low:
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = k + 1, w, f
            depth += 1
    return num


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
    beta: float,
    enough: float,
    passes: int,
    backwards: bool,
) -> float:
    """Exchange trees for cheaper ones, up to `passes` price updates or until nothing is gained.

    Also ends once the plan's true time is at most `enough`. The trees are looked at in order, or `backwards`.

    `forest` is changed in place as long as it has room. Returns the plan's true time.
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
        if _wind(clock, forest, routes, beta) <= enough:
            break
        for k in range(num_stages):
            for c in range(num_directions):
                weight[k, c] = clock.power[k, c] / clock.total[k]
        link_prices(weight, routes, price)
        cheapest_trees(family, moves, price, choices)
        improved = stale = False
        trees = forest.used[0]
        traced = -1
        num_new = 0
        new_price = 0.0
        for number in range(trees):
            t = trees - 1 - number if backwards else number
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
                if not lowest < old_price * (1.0 - 1e-9):
                    continue
                num_new = 0
                for i in range(item_ptr[c], item_ptr[c + 1]):
                    num_new = _trace(
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
            if not new_price < old_price * (1.0 - 1e-9):
                continue
            num = 0
            for e in range(num_new):
                use_link[num], use_stage[num], use_sign[num] = new_link[e], new_stage[e], 1
                num += 1
            for e in range(forest.first[t], forest.first[t] + forest.size[t]):
                use_link[num], use_stage[num], use_sign[num] = forest.link[e], forest.stage[e], -1
                num += 1
            hops = routes.base[0] * (num_new - forest.size[t])
            best_gain, best_rows = -1e-12 * clock.top.sum(), np.int64(0)
            part = rows
            while part > 0:
                gain = hops * part + _shift(
                    clock, routes, use_link, use_stage, use_sign, num, part, beta, False, touched, delta
                )
                if gain < best_gain:
                    best_gain, best_rows = gain, part
                part //= 2
            if best_rows == 0:
                continue
            grown = forest.used[0]
            edges = forest.used[1]
            if grown == forest.class_.shape[0] or edges + num_new > forest.link.shape[0]:
                return _wind(clock, forest, routes, beta)
            _shift(clock, routes, use_link, use_stage, use_sign, num, best_rows, beta, True, touched, delta)
            improved = True
            stale = stale or clock.total.min() < 1e-6  # far below its reference height: roundings would rule
            forest.count[t] -= best_rows
            forest.class_[grown], forest.count[grown] = c, best_rows
            forest.first[grown], forest.size[grown] = edges, num_new
            for e in range(num_new):
                forest.link[edges + e], forest.stage[edges + e] = new_link[e], new_stage[e]
            forest.used[0], forest.used[1] = grown + 1, edges + num_new
            if stale:
                _wind(clock, forest, routes, beta)
                stale = False
        if not improved:
            break
    return _wind(clock, forest, routes, beta)

"""The smoothed time of a plan, kept up to date while rows move from tree to tree.

The plan's time is smoothed to the sum over stages of log(1 + sum over c of (exp(beta(k) * h) - 1)) / beta(k), where
h(k, c) is how long direction c is busy in stage k (with the latency of the slowest link that uses it). Its
gradient is a price for every (stage, direction). With growing beta the smooth time becomes the true one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.arrays import BoolArray, FloatArray, Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.routes import Routes
from dgcl.planner.column_generation.trees.forest import Forest
from dgcl.planner.compiled import compiled

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.topology.arrays import TopologyArrays


class Clock(NamedTuple):
    """The loads of a plan and what follows from them, K stages, C directions, L links.

    Attributes:
        rows: (K, L) int64, exactly what the plan sends.
        busy: (K, C), time units that the rows take.
        height: (K, C), `busy` plus the largest latency of a link in use there; 0 where nothing is sent.
        power: (K, C), exp(beta(k) * (height - top)).
        top, total: (K,), the reference height, and the sum of `power` less that of idle directions, plus one idle.
        latency: (L,) in time units.
        late: (1,), whether there is any.
        by_direction_ptr, by_direction: the links that use each direction.
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


def start_clock(
    problem: Problem, arrays: TopologyArrays, num_stages: int, latency_unit: float, forest: Forest
) -> Clock:
    """Return a clock loaded with a forest; latencies in time units, `latency_unit` to the second."""
    num_links, num_directions = arrays.link_src.shape[0], arrays.bandwidth.shape[0]
    link_of_hop = np.repeat(np.arange(num_links), np.diff(arrays.link_ptr)).astype(np.int32)
    order = np.argsort(arrays.link_directions, kind="stable")
    ptr = np.searchsorted(arrays.link_directions[order], np.arange(num_directions + 1)).astype(np.int64)
    shape = (num_stages, num_directions)
    clock = Clock(
        np.zeros((num_stages, num_links), np.int64),
        np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(num_stages), np.zeros(num_stages),
        arrays.link_latency * latency_unit,
        np.array([arrays.link_latency.any()]),
        ptr,
        link_of_hop[order],
    )  # fmt: skip
    load(clock, forest)
    return clock


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
def load(clock: Clock, forest: Forest) -> None:
    """Take the rows that a forest sends; whoever moves rows from then on tells the clock (`shift`)."""
    clock.rows[:] = 0
    for t in range(forest.used[0]):
        for e in range(forest.first[t], forest.first[t] + forest.size[t]):
            clock.rows[forest.stage[e], forest.link[e]] += forest.count[t]


@compiled
def wind(clock: Clock, routes: Routes, beta: FloatArray) -> float:
    """Recompute all that follows from the clock's rows; return the plan's true time."""
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
        idle = np.exp(-beta[k] * clock.top[k])
        clock.total[k] = idle
        for c in range(num_directions):
            clock.power[k, c] = np.exp(beta[k] * (clock.height[k, c] - clock.top[k]))
            clock.total[k] += clock.power[k, c] - idle
        time += clock.top[k]
    return time


@compiled
def shift(
    clock: Clock,
    routes: Routes,
    link: Int32Array,
    stage: Int32Array,
    sign: Int64Array,
    num: int,
    rows: int,
    beta: FloatArray,
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
            power = np.exp(beta[k] * (height - clock.top[k]))
            change += power - clock.power[k, c]
            if apply:
                clock.busy[k, c], clock.height[k, c], clock.power[k, c] = busy, height, power
        if change != 0.0:
            gain += np.log(max(1.0 + change / clock.total[k], 1e-12)) / beta[k]  # less is lost in rounding
            if apply:
                clock.total[k] += change
    for i in range(many):
        delta[touched[i] // num_directions, touched[i] % num_directions] = 0.0
    if not apply:
        for e in range(num):
            clock.rows[stage[e], link[e]] -= sign[e] * rows
    return gain


@compiled
def weigh(clock: Clock, weight: FloatArray) -> None:
    """Put the gradient of the smooth time by `busy` into `weight` (K, C)."""
    for k in range(weight.shape[0]):
        for c in range(weight.shape[1]):
            weight[k, c] = clock.power[k, c] / clock.total[k]


@compiled
def best_portion(
    clock: Clock,
    routes: Routes,
    link: Int32Array,
    stage: Int32Array,
    sign: Int64Array,
    num: int,
    most: int,
    hops: float,
    beta: FloatArray,
    touched: Int64Array,
    delta: FloatArray,
) -> int:
    """Return how many rows best make a move: of `most`, half of that, and so on, the one with the greatest
    gain; 0 if none gains. Each row costs `hops` besides; the other arguments are those of `shift`.

    Where the smooth time is convex in the rows that move (see `_outset`), none gain if it does not fall at first,
    and once fewer rows gain less, still fewer gain less still.
    """
    least = -1e-12 * clock.top.sum()
    slope, convex = _outset(clock, routes, link, stage, sign, num, touched, delta)
    if convex and slope + hops >= 0.0:
        return 0
    best_gain, best = least, np.int64(0)
    rows = np.int64(most)
    while rows > 0:
        gain = hops * rows + shift(clock, routes, link, stage, sign, num, rows, beta, False, touched, delta)
        if gain < best_gain:
            best_gain, best = gain, rows
        elif convex and best > 0:
            break
        rows //= 2
    return int(best)


@compiled
def _outset(
    clock: Clock,
    routes: Routes,
    link: Int32Array,
    stage: Int32Array,
    sign: Int64Array,
    num: int,
    touched: Int64Array,
    delta: FloatArray,
) -> tuple[float, bool]:
    """Return by how much the smooth time changes for each row of a move, at first, and whether it is convex.

    The logarithm of a sum of exponentials of linear functions and of a constant >= 0 is convex. What directions that
    the move leaves as they are add up to, less one for each idle direction, must not be negative, therefore; it is
    where hardly anything else runs in the stage. Latencies make jumps.
    """
    if clock.late[0]:
        return 0.0, False
    num_directions = clock.busy.shape[1]
    many = 0
    for e in range(num):
        k = stage[e]
        for i in range(routes.ptr[link[e]], routes.ptr[link[e] + 1]):
            c = routes.direction[i]
            if delta[k, c] == 0.0:
                touched[many] = k * num_directions + c
                many += 1
            delta[k, c] += sign[e] * routes.cost[c]
            if delta[k, c] == 0.0:
                delta[k, c] = 1e-300  # keeps it listed once
    slope, convex = 0.0, True
    for k in range(clock.top.shape[0]):
        rest, along = clock.total[k], 0.0
        for i in range(many):
            if touched[i] // num_directions == k:
                c = touched[i] % num_directions
                along += clock.power[k, c] * delta[k, c]
                if abs(delta[k, c]) > 1e-200:
                    rest -= clock.power[k, c]
        slope += along / clock.total[k]
        convex = convex and rest >= -1e-12 * clock.total[k]
    for i in range(many):
        delta[touched[i] // num_directions, touched[i] % num_directions] = 0.0
    return slope, convex

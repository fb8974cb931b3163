"""The smoothed makespan of a plan (a differentiable approximation of its time), updated while rows move between trees.

It is the sum over stages k of log(1 + sum over c of (exp(beta(k) * h(k, c)) - 1)) / beta(k), where h(k, c) is how long
connection-direction c is busy in stage k, plus the largest latency of a link that uses it there. Its gradient is a
price for every (stage, direction). With growing beta(k) it tends to the true time.
Called by `reparent`, `tree_exchange` and `planner/column_generation/search/grouped`. Free to change while the number of
rows that it advises to move gains most by this formula (of all, half, a quarter, ...), and asking changes no load
(`tests/planner/column_generation/test_makespan.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.array_types import BoolArray, FloatArray, Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.flows import Routes
from dgcl.planner.column_generation.rounding.forest import Forest
from dgcl.planner.planner_compiled import compiled

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem


MIN_TOTAL = 1e-6  # of a stage's sum of powers: below, rounding errors would decide, and all is recomputed


class SmoothMakespan(NamedTuple):
    """The loads of a plan and what follows from them, K stages, C directions, L links.

    Attributes:
        rows: (K, L) int64, exactly what the plan sends.
        busy: (K, C), time units that the rows take.
        height: (K, C), `busy` plus the largest latency of a link in use there; 0 where nothing is sent.
        power: (K, C), exp(beta(k) * (height - top)).
        top, total: (K,), the reference height, and the sum of `power` less that of idle directions, plus one idle.
        latency: (L,) in time units.
        has_latency: (1,), whether any link has one.
        by_direction_ptr, by_direction: the links that use each direction.
    """

    rows: Int64Array
    busy: FloatArray
    height: FloatArray
    power: FloatArray
    top: FloatArray
    total: FloatArray
    latency: FloatArray
    has_latency: BoolArray
    by_direction_ptr: Int64Array
    by_direction: Int32Array


class LinkUses(NamedTuple):
    """A change of what trees use, with scratch; the first so many entries count.

    Attributes:
        link, stage: int32, the link uses.
        sign: int64, 1 for a use that is added, -1 for one that is removed.
        touched: int64 scratch, one entry per direction of every use.
        delta: (K, C) scratch, zeros before and after every call.
    """

    link: Int32Array
    stage: Int32Array
    sign: Int64Array
    touched: Int64Array
    delta: FloatArray


def empty_uses(routes: Routes, num_stages: int, room: int) -> LinkUses:
    """Allocate a change of up to `room` link uses."""
    longest = int(np.diff(routes.ptr).max(initial=0))
    link, stage = np.empty((2, room), np.int32)
    return LinkUses(
        link,
        stage,
        np.empty(room, np.int64),
        np.empty(room * longest, np.int64),
        np.zeros((num_stages, routes.cost.shape[0])),
    )


def smooth_makespan(problem: Problem, num_stages: int, forest: Forest) -> SmoothMakespan:
    """Return the loads of a forest; `recompute` fills in the rest."""
    arrays = problem.space.arrays
    order = np.argsort(arrays.link_directions, kind="stable")
    ptr = np.searchsorted(arrays.link_directions[order], np.arange(arrays.num_directions + 1))
    busy, height, power = np.zeros((3, num_stages, arrays.num_directions))
    top, total = np.zeros((2, num_stages))
    smooth = SmoothMakespan(
        np.zeros((num_stages, arrays.num_links), np.int64),
        busy,
        height,
        power,
        top,
        total,
        arrays.link_latency * problem.latency_unit,
        np.array([arrays.link_latency.any()]),
        ptr,
        arrays.link_of_hop[order].astype(np.int32),
    )
    load(smooth, forest)
    return smooth


@compiled(allocates=False, entry=False)
def _worst_latency(smooth: SmoothMakespan, k: int, c: int) -> float:
    """Return the largest latency of the links in use through a direction; `rows` must be up to date."""
    worst = 0.0
    for i in range(smooth.by_direction_ptr[c], smooth.by_direction_ptr[c + 1]):
        link = smooth.by_direction[i]
        if smooth.rows[k, link] > 0 and smooth.latency[link] > worst:
            worst = smooth.latency[link]
    return worst


def load(smooth: SmoothMakespan, forest: Forest) -> None:
    """Set the rows to those that a forest sends; later changes of the forest must go through `shift`."""
    num, edges = forest.used
    smooth.rows[:] = 0
    use = forest.stage[:edges], forest.link[:edges]
    np.add.at(smooth.rows, use, np.repeat(forest.count[:num], forest.size[:num]))


@compiled(inline=False, allocates=False)
def recompute(smooth: SmoothMakespan, routes: Routes, beta: FloatArray) -> float:
    """Recompute everything that follows from the rows; return the plan's true time."""
    num_stages, num_directions = smooth.busy.shape
    smooth.busy[:] = 0.0
    time = 0.0
    for k in range(num_stages):
        for link in range(smooth.rows.shape[1]):
            if smooth.rows[k, link]:
                for i in range(routes.ptr[link], routes.ptr[link + 1]):
                    c = routes.direction[i]
                    smooth.busy[k, c] += smooth.rows[k, link] * routes.cost[c]
        for c in range(num_directions):
            smooth.height[k, c] = smooth.busy[k, c]
            if smooth.has_latency[0] and smooth.busy[k, c] > 0.0:
                smooth.height[k, c] += _worst_latency(smooth, k, c)
        smooth.top[k] = 0.0
        for c in range(num_directions):
            smooth.top[k] = max(smooth.top[k], smooth.height[k, c])
        idle = np.exp(-beta[k] * smooth.top[k])
        smooth.total[k] = idle
        for c in range(num_directions):
            smooth.power[k, c] = np.exp(beta[k] * (smooth.height[k, c] - smooth.top[k]))
            smooth.total[k] += smooth.power[k, c] - idle
        time += smooth.top[k]
    return time


@compiled(allocates=False, entry=False)
def _add_busy_changes(smooth: SmoothMakespan, routes: Routes, uses: LinkUses, num: int, rows: int) -> int:
    """Add to ``uses.delta`` how busy times change, list the directions in ``uses.touched``; return how many."""
    num_directions = smooth.busy.shape[1]
    touched, delta = uses.touched, uses.delta
    many = 0
    for e in range(num):
        k, link = uses.stage[e], uses.link[e]
        for i in range(routes.ptr[link], routes.ptr[link + 1]):
            c = routes.direction[i]
            if delta[k, c] == 0.0:
                touched[many] = k * num_directions + c
                many += 1
            delta[k, c] += uses.sign[e] * rows * routes.cost[c]
            if delta[k, c] == 0.0:
                delta[k, c] = 1e-300  # keeps it listed once
    return many


@compiled(allocates=False, entry=False)
def _clear_busy_changes(uses: LinkUses, many: int, num_directions: int) -> None:
    """Set what `_add_busy_changes` added back to zero."""
    for i in range(many):
        uses.delta[uses.touched[i] // num_directions, uses.touched[i] % num_directions] = 0.0


@compiled(inline=False, allocates=False, entry=False)
def shift(
    smooth: SmoothMakespan, routes: Routes, uses: LinkUses, num: int, rows: int, beta: FloatArray, apply: bool
) -> float:
    """Return by how much the smoothed time changes when ``sign * rows`` are added to each of `num` link uses.

    With `apply` the loads are changed, too.
    """
    num_directions = smooth.busy.shape[1]
    has_latency = smooth.has_latency[0]
    for e in range(num):
        smooth.rows[uses.stage[e], uses.link[e]] += uses.sign[e] * rows
    many = _add_busy_changes(smooth, routes, uses, num, rows)
    gain = 0.0
    for k in range(smooth.top.shape[0]):
        change = 0.0
        for i in range(many):
            if uses.touched[i] // num_directions != k:
                continue
            c = uses.touched[i] % num_directions
            busy = smooth.busy[k, c] + uses.delta[k, c]
            if busy < 1e-9 * routes.cost[c]:
                busy = 0.0  # less than any whole row: what is left is rounding
            height = busy
            if has_latency and busy > 0.0:
                height += _worst_latency(smooth, k, c)
            power = np.exp(beta[k] * (height - smooth.top[k]))
            change += power - smooth.power[k, c]
            if apply:
                smooth.busy[k, c], smooth.height[k, c], smooth.power[k, c] = busy, height, power
        if change != 0.0:
            gain += np.log(max(1.0 + change / smooth.total[k], 1e-12)) / beta[k]  # less is lost in rounding
            if apply:
                smooth.total[k] += change
    _clear_busy_changes(uses, many, num_directions)
    if not apply:
        for e in range(num):
            smooth.rows[uses.stage[e], uses.link[e]] -= uses.sign[e] * rows
    return gain


@compiled(inline=False, allocates=False, entry=False)
def move(
    smooth: SmoothMakespan, routes: Routes, uses: LinkUses, num: int, rows: int, beta: FloatArray
) -> None:
    """Add ``sign * rows`` to each of `num` link uses."""
    shift(smooth, routes, uses, num, rows, beta, True)
    for k in range(smooth.total.shape[0]):
        if smooth.total[k] < MIN_TOTAL:
            recompute(smooth, routes, beta)
            break


@compiled(inline=False, allocates=False, entry=False)
def gradient(smooth: SmoothMakespan, weight: FloatArray) -> None:
    """Set `weight` (K, C) to the derivatives of the smoothed time by `busy`."""
    for k in range(weight.shape[0]):
        for c in range(weight.shape[1]):
            weight[k, c] = smooth.power[k, c] / smooth.total[k]


@compiled(inline=False, allocates=False)
def best_amount(
    smooth: SmoothMakespan, routes: Routes, uses: LinkUses, num: int, most: int, hops: float, beta: FloatArray
) -> int:
    """Return with how many rows a change gains most: `most`, half of that, and so on; 0 if none gains.

    Each row costs `hops` besides; the other arguments are those of `shift`. Where the smoothed time is convex in the
    rows that move (see `_initial_slope`), no amount gains unless the time falls at first, and once a smaller amount
    gains less, all still smaller ones do.
    """
    time = 0.0
    for k in range(smooth.top.shape[0]):
        time += smooth.top[k]
    slope, convex = _initial_slope(smooth, routes, uses, num)
    if convex and slope + hops >= 0.0:
        return 0
    best_gain, best = -1e-12 * time, np.int64(0)
    rows = np.int64(most)
    while rows > 0:
        gain = hops * rows + shift(smooth, routes, uses, num, rows, beta, False)
        if gain < best_gain:
            best_gain, best = gain, rows
        elif convex and best > 0:
            break
        rows //= 2
    return int(best)


@compiled(allocates=False, entry=False)
def _initial_slope(smooth: SmoothMakespan, routes: Routes, uses: LinkUses, num: int) -> tuple[float, bool]:
    """Return the derivative of the smoothed time at no rows, and whether the time is convex in the rows.

    The logarithm of a sum of exponentials of linear functions and of a constant >= 0 is convex. The constant is what
    the directions that the change leaves alone add up to, less one for each idle direction; it is negative where
    hardly anything else runs in the stage. Latencies make jumps, hence no statement there.
    """
    if smooth.has_latency[0]:
        return 0.0, False
    num_directions = smooth.busy.shape[1]
    many = _add_busy_changes(smooth, routes, uses, num, 1)
    slope, convex = 0.0, True
    for k in range(smooth.top.shape[0]):
        rest, along = smooth.total[k], 0.0
        for i in range(many):
            if uses.touched[i] // num_directions == k:
                c = uses.touched[i] % num_directions
                along += smooth.power[k, c] * uses.delta[k, c]
                if abs(uses.delta[k, c]) > 1e-200:
                    rest -= smooth.power[k, c]
        slope += along / smooth.total[k]
        convex = convex and rest >= -1e-12 * smooth.total[k]
    _clear_busy_changes(uses, many, num_directions)
    return slope, convex

"""Whole trees for all bundles, from an outline of the stages to a plan in which all directions are evenly busy.

First every bundle gets the cheapest tree at the prices of one of the outline's answers, a slice of them at a time;
directions that are ahead of their share are dearer for the slices that follow. Then *sweeps*: slice by slice the
bundles whose trees are dear are offered the cheapest trees at the prices of that moment (polish.py), and take them as
far as that makes the smoothed time (clock.py) shorter. Unlike rounds of prices, in which all rows turn to what is
cheap at once, this settles: the plan is a whole one from the start, and a handful of sweeps is enough.

The smooth time is as sharp in a short stage as in a long one. With one sharpness for all a stage would cost
log(directions) / beta before anything is sent in it, and short stages, which keep NICs and switches busy together,
would go.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array, MaskArray
from dgcl.planner.column_generation.improvement.exchange import exchange
from dgcl.planner.column_generation.improvement.makespan import start_clock
from dgcl.planner.column_generation.pricing.routes import add_busy_times, link_prices
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily
from dgcl.planner.column_generation.pricing.tree_edges import trace
from dgcl.planner.column_generation.pricing.tree_program import Choices, Moves, cheapest_trees, empty_choices
from dgcl.planner.column_generation.trees.edges import cleaned, sort_by_stage
from dgcl.planner.column_generation.trees.forest import Forest, compact, plant
from dgcl.planner.compiled import compiled
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.improvement.bundles import Bundles
    from dgcl.planner.column_generation.master.aggregated import Outline
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.topology.arrays import TopologyArrays

SLICES = 32  # price updates in a sweep
LEAST_SLICE = 64  # bundles
SHARPNESS = (20.0, 20.0, 50.0, 50.0, 100.0, 200.0, 400.0)  # beta(k) times the time of stage k, sweep by sweep
SHORT = 0.02  # of the plan's time: no stage counts as shorter
DIVIDED = 64  # rows from which a bundle is divided between the answers of an outline
TURN = 0.6180339887498949  # 1 / the golden ratio: multiples of it, less their integers, are evenly spread
TILT, MOST_TILT = (
    5.0,
    5.0,
)  # how much dearer what is ahead of its share becomes: exponent, and its largest value


class Balance:
    """A plan of `num_stages` stages for all bundles, better with every sweep.

    Attributes:
        seconds: its true time in rows per GB/s.
        sweeps: how many there were.
    """

    def __init__(
        self,
        problem: Problem,
        bundles: Bundles,
        arrays: TopologyArrays,
        outline: Outline,
        latency_unit: float,
        deadline: float = np.inf,
    ) -> None:
        num_stages = outline.busy.shape[0]
        self.problem, self.bundles, self.arrays, self.num_stages = problem, bundles, arrays, num_stages
        space = problem.space
        self._choices = empty_choices(num_stages, space.world_size, space.num_sets)
        self._forest = self._start(outline, deadline)
        self._best = compact(self._forest)  # a copy: sweeps change the other in place, and may gain nothing
        self._clock = start_clock(problem, arrays, num_stages, latency_unit, self._forest)
        self.sweeps = 0
        self.seconds = self._exchange(np.ones(num_stages), 0.0, 0, 0)

    def sweep(self, enough: float, deadline: float = np.inf) -> None:
        """Look at every bundle once.

        Args:
            enough: stop when the plan takes no longer than this, in rows per GB/s.
            deadline: on the clock of time.perf_counter.
        """
        sharpness = SHARPNESS[min(self.sweeps, len(SHARPNESS) - 1)]
        num = int(self._forest.used[0])
        step = max(LEAST_SLICE, -(-num // SLICES))
        reached = self.seconds
        for low in range(0, num, step):
            top = self._clock.top
            beta = sharpness / np.maximum(top, SHORT * top.sum())
            reached = self._exchange(beta, enough, low, low + step)
            if reached <= enough or time.perf_counter() > deadline:
                break
        self._forest = compact(self._forest)
        self.sweeps += 1
        if reached < self.seconds:
            self.seconds, self._best = reached, compact(self._forest)

    def forest(self) -> Forest:
        """Return the best trees so far, compact; classes are bundles."""
        return self._best

    def _exchange(self, beta: FloatArray, enough: float, low: int, high: int) -> float:
        space, bundles, arrays = self.problem.space, self.bundles, self.arrays
        return exchange(
            space.family, space.moves, self._choices, self.problem.routes, bundles.ptr, bundles.set_,
            bundles.source, bundles.dests, arrays.link_src, arrays.link_dst, self._forest, self._clock, beta,
            enough, 1, low, high, False,
        )  # fmt: skip

    def _start(self, outline: Outline, deadline: float) -> Forest:
        """Give every bundle trees that follow the outline's answers; all that are left at once after the deadline."""
        space, routes, bundles = self.problem.space, self.problem.routes, self.bundles
        pieces = _pieces(bundles.count, outline.share)
        length = np.maximum(outline.busy.max(axis=1), SHORT * outline.busy.max(axis=1).sum())
        rows = np.zeros((self.num_stages, routes.base.shape[0]))
        price = np.empty_like(rows)
        parts = []
        num, done, total = bundles.count.shape[0], 0, int(bundles.count.sum())
        step = max(LEAST_SLICE, -(-num // SLICES))
        low = 0
        while low < num:
            step = num if time.perf_counter() > deadline else step
            busy = np.zeros_like(outline.busy)
            add_busy_times(rows, routes, busy)
            ahead = TILT * (busy - done / total * outline.busy) / length[:, None]
            tilt = np.exp(np.clip(ahead, -MOST_TILT, MOST_TILT))
            for weight, piece in zip(outline.weights, pieces[:, low : low + step], strict=True):
                which = low + np.flatnonzero(piece)
                link_prices(weight * tilt, routes, price)
                cheapest_trees(space.family, space.moves, price, self._choices)
                count = piece[which - low]
                size, link, stage = _cheapest(
                    space.family, space.moves, self._choices, bundles.source, bundles.set_, bundles.dests, which,
                    count, self.arrays.link_src, self.arrays.link_dst, rows,
                )  # fmt: skip
                parts.append((which.astype(np.int32), count, size, link, stage))
            done += int(bundles.count[low : low + step].sum())
            low += step
        class_, count, size, link, stage = (np.concatenate(column) for column in zip(*parts, strict=True))
        ptr = np.concatenate([[0], np.cumsum(size)])
        ends = self.arrays.link_src[link], self.arrays.link_dst[link]
        return compact(plant(Trees(class_, count, ptr, *ends, stage), self.arrays))


def _pieces(count: Int64Array, share: FloatArray) -> Int64Array:
    """Divide the rows of bundles in these shares, (n, N); small ones go to one answer each, in turn."""
    ends = np.cumsum(share)
    ends[-1] = 1.0
    begins = np.concatenate([[0.0], ends[:-1]])
    offset = np.arange(count.shape[0]) * TURN % 1.0
    divided = np.floor(ends[:, None] * count + offset) - np.floor(begins[:, None] * count + offset)
    chosen = (offset >= begins[:, None]) & (offset < ends[:, None])
    return np.where(count >= DIVIDED, divided.astype(np.int64), chosen * count)


@compiled
def _cheapest(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    source: Int32Array,
    set_: Int32Array,
    dests: MaskArray,
    which: Int64Array,
    count: Int64Array,
    link_src: Int32Array,
    link_dst: Int32Array,
    link_rows: FloatArray,
) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Return sizes and edges of the cheapest trees of the bundles `which`, and add their rows to `link_rows`."""
    num_stages, world, _ = choices.split.shape
    longest = 4 * world * num_stages
    size = np.empty(which.shape[0], np.int64)
    link, stage = (
        np.empty(8 * which.shape[0] + longest, np.int32),
        np.empty(8 * which.shape[0] + longest, np.int32),
    )
    stack = np.empty((longest, 3), np.int64)
    entered, needed = np.empty(world, np.int32), np.empty(world, np.int32)
    edges = np.int64(0)
    for n in range(which.shape[0]):
        b = which[n]
        if edges + longest > link.shape[0]:
            link = np.concatenate((link, np.empty_like(link)))
            stage = np.concatenate((stage, np.empty_like(stage)))
        num = trace(family, moves, choices, source[b], set_[b], link[edges:], stage[edges:], 0, stack)
        sort_by_stage(link[edges:], stage[edges:], num)
        num = cleaned(
            link[edges:], stage[edges:], num, source[b], dests[b], link_src, link_dst, entered, needed
        )
        for e in range(edges, edges + num):
            link_rows[stage[e], link[e]] += count[n]
        size[n] = num
        edges += num
    return size, link[:edges], stage[:edges]

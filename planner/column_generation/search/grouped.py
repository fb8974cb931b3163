"""Plans 25 to 64 devices in groups: for each number of stages the aggregated problem, then coordinate descent.

The aggregated problem (master/aggregated.py) has one price per kind of direction. Plans are of bundles
(rounding/bundles.py), a few thousand for millions of classes. Fewer devices are planned over every link, stage by stage
(stage_search.py); on more it takes minutes and finds nothing better than plans by machines
(``methods/hierarchical.py``). Those alone would be 3.2 % longer in the mean up to 32 devices, and no rule tells
beforehand which of the two wins, so ``auto`` asks both. `CoordinateDescent` and `best_grouped_plan` say how it works.
Called by `stage_search`. Free to change while a pass never makes the best plan slower, the parts of a divided bundle
add up to its rows, and plans of 32 devices are within 3 % of the bound
(`tests/planner/column_generation/test_grouped.py`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import FloatArray, Int64Array
from dgcl.planner.column_generation.improvement.makespan import recompute, smooth_makespan
from dgcl.planner.column_generation.improvement.tree_exchange import exchange, exchange_buffer
from dgcl.planner.column_generation.master.aggregated import direction_kinds, solve_aggregated
from dgcl.planner.column_generation.pricing.flows import add_busy_times, link_prices
from dgcl.planner.column_generation.pricing.tree_program import cheapest_trees
from dgcl.planner.column_generation.rounding.cheapest import cheapest_of
from dgcl.planner.column_generation.rounding.forest import Forest, compact, joined

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.aggregated import AggregatedSolution
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.column_generation.rounding.bundles import Bundles

BATCHES = 32  # price updates in a pass
MIN_BATCH = 64  # bundles
SHARPNESS = (20.0, 20.0, 50.0, 50.0, 100.0, 200.0, 400.0)  # beta(k) times the time of stage k, by pass
DIVIDED = 64  # rows from which a bundle is divided between the answers
GOLDEN = 0.6180339887498949  # 1 / the golden ratio; fractional parts of its multiples are evenly spread
# How much more expensive a direction becomes that is ahead of its share: the exponent, and its largest value.
CORRECTION, MAX_CORRECTION = 5.0, 5.0
SHORT = 0.02  # of the plan's time: no stage counts as shorter
NUMBERS = (2, 3, 4, 6)  # of stages
# Above the floor after one pass, and after two: a larger number of stages is tried instead.
FAR, CLOSE = 0.12, 0.04
MAX_PASSES, MAX_THOROUGH_PASSES = 7, 20
FAIR = 0.01  # above the floor, relatively; below, passes must be fast (`FAST`)
SLOW, FAST = 0.05, 0.2  # share of the time above `enough` that a pass must take off: above `FAIR`, and below
WORK = 1_200_000  # (bundle, stage) pairs: no pass begins beyond


class CoordinateDescent:
    """A plan of `num_stages` stages for all bundles, improved pass by pass.

    At the start every bundle gets the cheapest tree at the prices of one answer of the aggregated problem
    (master/aggregated.py), a batch of bundles at a time; directions that are ahead of their share cost more for the
    batches that follow. Then come *passes*: batch by batch the bundles with expensive trees are offered the cheapest
    trees at the prices of that moment (improvement/tree_exchange.py), and take them as far as that makes the smoothed
    makespan (improvement/makespan.py) shorter. Rounds of multiplicative weights turn all rows at once to what is
    cheap; this converges in a handful of passes, and always holds a whole plan.

    The makespan is smoothed as sharply in a short stage as in a long one. With the same beta for all a stage would
    cost log(directions) / beta before anything is sent in it, and short stages, in which NICs and switches are busy
    together, would vanish.

    Attributes:
        best: the best trees so far, compact; classes are bundles.
        time: the true time of these, in rows per GB/s.
        num_passes: number of passes so far.
    """

    def __init__(
        self,
        problem: Problem,
        bundles: Bundles,
        aggregated: AggregatedSolution,
        deadline: float = np.inf,
    ) -> None:
        num_stages = aggregated.busy.shape[0]
        self.problem, self.bundles, self.num_stages = problem, bundles, num_stages
        self._buffer = exchange_buffer(problem, num_stages)
        self._instance = bundles.instance(problem)
        self._forest = self._start(aggregated, deadline)
        self.best = compact(self._forest)  # a copy: passes change the other in place, and may gain nothing
        self._smooth = smooth_makespan(problem, num_stages, self._forest)
        self.num_passes = 0
        self.time = recompute(self._smooth, problem.routes, np.ones(num_stages))

    def run_pass(self, enough: float, deadline: float = np.inf) -> None:
        """Offer every bundle a cheaper tree once.

        Args:
            enough: stop when the plan takes no longer than this, in rows per GB/s.
            deadline: on the clock of time.process_time.
        """
        sharpness = SHARPNESS[min(self.num_passes, len(SHARPNESS) - 1)]
        num = int(self._forest.used[0])
        step = max(MIN_BATCH, -(-num // BATCHES))
        reached = self.time
        for low in range(0, num, step):
            top = self._smooth.top
            beta = sharpness / np.maximum(top, SHORT * top.sum())
            reached = exchange(
                self._instance, self._buffer, self._forest, self._smooth, beta, enough, 1, low, low + step, False
            )  # fmt: skip
            if reached <= enough or time.process_time() > deadline:
                break
        self._forest = compact(self._forest)
        self.num_passes += 1
        if reached < self.time:
            self.time, self.best = reached, compact(self._forest)

    def _start(self, aggregated: AggregatedSolution, deadline: float) -> Forest:
        """Give every bundle trees that follow the aggregated answers; after the deadline all that are left at once."""
        space, routes, bundles = self.problem.space, self.problem.routes, self.bundles
        choices = self._buffer.choices
        amounts = _divide_rows(bundles.count, aggregated.share)
        length = np.maximum(aggregated.busy.max(axis=1), SHORT * aggregated.busy.max(axis=1).sum())
        rows = np.zeros((self.num_stages, routes.base.shape[0]))
        price = np.empty_like(rows)
        parts = []
        num, done, total = bundles.count.shape[0], 0, int(bundles.count.sum())
        step = max(MIN_BATCH, -(-num // BATCHES))
        low = 0
        while low < num:
            step = num if time.process_time() > deadline else step
            busy = np.zeros_like(aggregated.busy)
            add_busy_times(rows, routes, busy)
            ahead = CORRECTION * (busy - done / total * aggregated.busy) / length[:, None]
            correction = np.exp(np.clip(ahead, -MAX_CORRECTION, MAX_CORRECTION))
            for weight, amount in zip(aggregated.weights, amounts[:, low : low + step], strict=True):
                which = low + np.flatnonzero(amount)
                link_prices(weight * correction, routes, price)
                cheapest_trees(space.family, space.moves, price, choices)
                count = amount[which - low]
                parts.append((which, count, *cheapest_of(self._instance, choices, which, count, rows)))
            done += int(bundles.count[low : low + step].sum())
            low += step
        return joined(parts)


def _divide_rows(count: Int64Array, share: FloatArray) -> Int64Array:
    """Divide the rows of bundles in these shares, (n, N); small bundles go whole to one answer each, in turn."""
    ends = np.cumsum(share)
    ends[-1] = 1.0
    begins = np.concatenate([[0.0], ends[:-1]])
    offset = np.arange(count.shape[0]) * GOLDEN % 1.0
    divided = np.floor(ends[:, None] * count + offset) - np.floor(begins[:, None] * count + offset)
    chosen = (offset >= begins[:, None]) & (offset < ends[:, None])
    return np.where(count >= DIVIDED, divided.astype(np.int64), chosen * count)


def best_grouped_plan(
    problem: Problem,
    bundles: Bundles,
    least: int,
    *,
    floor: float,
    aim: float,
    enough: float,
    thorough: bool,
    deadline: float,
    needed: bool,
) -> CoordinateDescent | None:
    """Return the best plan found; None if in no number of stages every row can arrive.

    The time of the aggregated problem says little about what coordinate descent reaches when machines are not equally
    busy: more stages leave more ways around the busiest directions. A number of stages is therefore judged by its
    first passes.

    Links whose latency alone takes too long are not used, so some rows may be unable to arrive.

    Args:
        problem: states and links of devices in groups, and all `bundles` of them.
        least: smallest number of stages in which all rows can arrive.
        floor: a bound on such plans, in rows per GB/s; it may be 0.
        aim: a rough idea of a good plan's time, rows per GB/s, > 0.
        enough: stop when a plan takes no longer than this.
        thorough: allow more passes, whatever the work.
        deadline: on the clock of time.process_time; the first pass that it interrupts is the last.
        needed: whether a plan is needed even if none can be found before the deadline.
    """
    kind = direction_kinds(problem.space.arrays)
    most = problem.space.world_size - 1
    numbers = [k for k in NUMBERS if least <= k <= most] or [least]
    best: CoordinateDescent | None = None
    work = 0  # (bundle, stage) pairs in passes so far
    for num_stages in numbers:
        last = num_stages == numbers[-1]
        if (best is not None or not needed) and time.process_time() > deadline:
            break
        aggregated = solve_aggregated(problem, kind, num_stages, aim, deadline)
        if aggregated is None or (not last and aggregated.busy.max(axis=1).sum() > (1.0 + FAR) * floor):
            continue
        if (best is not None or not needed) and time.process_time() > deadline:
            break
        descent = CoordinateDescent(problem, bundles, aggregated, deadline)
        before, passes = np.inf, MAX_THOROUGH_PASSES if thorough else MAX_PASSES
        while descent.time > enough and descent.num_passes < passes:
            descent.run_pass(enough, deadline)
            work += num_stages * bundles.source.shape[0]
            if time.process_time() > deadline or (work > WORK and descent.num_passes > 1 and not thorough):
                break
            above = {1: FAR, 2: CLOSE}.get(descent.num_passes)
            if not last and above is not None and descent.time > (1.0 + above) * floor:
                break
            slow = thorough or descent.time > (1.0 + FAIR) * floor
            if before - descent.time < (SLOW if slow else FAST) * (before - enough):
                break
            before = descent.time
        best = descent if best is None or descent.time < best.time else best
        if time.process_time() > deadline or best.time <= (1.0 + FAIR) * floor or work > WORK:
            break
    return best

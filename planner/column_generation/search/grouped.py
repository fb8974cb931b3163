"""The best plan for devices in groups: for each number of stages the aggregated problem, then coordinate descent.

The time of the aggregated problem (master/aggregated.py) says little about what coordinate descent reaches when
machines are not equally busy: more stages leave more ways around the busiest directions. A number of stages is
therefore judged by its first passes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.column_generation.improvement.coordinate_descent import CoordinateDescent
from dgcl.planner.column_generation.master.aggregated import direction_kinds, solve_aggregated

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.column_generation.rounding.bundles import Bundles
    from dgcl.topology.arrays import TopologyArrays

NUMBERS = (2, 3, 4, 6)  # of stages
FAR, CLOSE = (
    0.12,
    0.04,
)  # above the floor after one pass, and after two: a larger number of stages is tried instead
MAX_PASSES, MAX_THOROUGH_PASSES = 7, 20
FAIR = 0.01  # above the floor, relatively; below, passes must be fast (`FAST`)
SLOW, FAST = 0.05, 0.2  # share of the time above `enough` that a pass must take off: above `FAIR`, and below
WORK = 1_200_000  # (bundle, stage) pairs: no pass begins beyond


def best_grouped_plan(
    problem: Problem,
    bundles: Bundles,
    arrays: TopologyArrays,
    least: int,
    *,
    floor: float,
    aim: float,
    enough: float,
    latency_unit: float,
    thorough: bool = False,
    deadline: float = np.inf,
    needed: bool = True,
) -> CoordinateDescent | None:
    """Return the best plan found; None if in no number of stages every row can arrive.

    Links whose latency alone takes too long are not used, so some rows may be unable to arrive.

    Args:
        problem: states and links of devices in groups, and all `bundles` of them.
        arrays: the machine.
        least: smallest number of stages in which all rows can arrive.
        floor: a bound on such plans, in rows per GB/s; it may be 0.
        aim: a rough idea of a good plan's time, rows per GB/s, > 0.
        enough: stop when a plan takes no longer than this.
        latency_unit: rows per GB/s in a second (1e9 / row_bytes).
        thorough: allow more passes, whatever the work.
        deadline: on the clock of time.perf_counter; the first pass that it interrupts is the last.
        needed: whether a plan is needed even if none can be found before the deadline.
    """
    kind = direction_kinds(arrays)
    most = problem.space.world_size - 1
    numbers = [k for k in NUMBERS if least <= k <= most] or [least]
    best: CoordinateDescent | None = None
    work = 0  # (bundle, stage) pairs in passes so far
    for num_stages in numbers:
        last = num_stages == numbers[-1]
        if (best is not None or not needed) and time.perf_counter() > deadline:
            break
        aggregated = solve_aggregated(problem, kind, num_stages, aim, deadline)
        if aggregated is None or (not last and aggregated.busy.max(axis=1).sum() > (1.0 + FAR) * floor):
            continue
        if (best is not None or not needed) and time.perf_counter() > deadline:
            break
        descent = CoordinateDescent(problem, bundles, arrays, aggregated, latency_unit, deadline)
        before = np.inf
        while descent.time > enough and descent.num_passes < (
            MAX_THOROUGH_PASSES if thorough else MAX_PASSES
        ):
            descent.run_pass(enough, deadline)
            work += num_stages * bundles.source.shape[0]
            if time.perf_counter() > deadline or (work > WORK and descent.num_passes > 1 and not thorough):
                break
            if (
                not last
                and descent.time > (1.0 + (FAR if descent.num_passes == 1 else CLOSE)) * floor
                and descent.num_passes <= 2
            ):
                break
            slow = thorough or descent.time > (1.0 + FAIR) * floor
            if before - descent.time < (SLOW if slow else FAST) * (before - enough):
                break
            before = descent.time
        best = descent if best is None or descent.time < best.time else best
        if time.perf_counter() > deadline or best.time <= (1.0 + FAIR) * floor or work > WORK:
            break
    return best

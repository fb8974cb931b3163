"""The best plan for devices in groups: numbers of stages in turn, an outline of each, then sweeps over all bundles.

What an outline (alike.py) promises says little of what sweeps (balance.py) can keep when machines are not equally
busy: more stages leave more ways around what is busiest. A number of stages is therefore judged by its first sweeps.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.column_generation.improvement.coordinate_descent import Balance
from dgcl.planner.column_generation.master.aggregated import kinds_of, outline

if TYPE_CHECKING:
    from dgcl.planner.column_generation.improvement.bundles import Bundles
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.topology.arrays import TopologyArrays

NUMBERS = (2, 3, 4, 6)  # of stages
FAR, CLOSE = (
    0.12,
    0.04,
)  # above the floor: a larger number is tried after one sweep, and none any more after two
SWEEPS, THOROUGH_SWEEPS = 7, 20
FAIR = 0.01  # above the floor; up to that sweeps go on at almost any pace
WORK = 1_200_000  # (bundle, stage) pairs: no sweep begins beyond
SLOW, FAST = 0.05, 0.2  # share of what is above `enough` that a sweep must take off: above `FAIR`, and below


def balanced(
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
) -> Balance | None:
    """Return the best balance found; None if in no number of stages every row can arrive.

    Links whose latency alone takes too long are not used, so it may be that some rows cannot.

    Args:
        problem: states and links of devices in groups, and all `bundles` of them.
        arrays: the machine.
        least: smallest number of stages in which all rows can arrive.
        floor: a bound on such plans, in rows per GB/s; it may be 0.
        aim: a rough idea of a good plan's time, rows per GB/s, > 0.
        enough: stop when a plan takes no longer than this.
        latency_unit: rows per GB/s in a second (1e9 / row_bytes).
        thorough: sweep more often, whatever the work.
        deadline: on the clock of time.perf_counter; the first sweep that it interrupts is the last.
        needed: whether a balance is wanted even if none can be had before the deadline.
    """
    kind = kinds_of(arrays)
    most = problem.space.world_size - 1
    numbers = [k for k in NUMBERS if least <= k <= most] or [least]
    best: Balance | None = None
    work = 0  # (bundle, stage) pairs looked at
    for num_stages in numbers:
        last = num_stages == numbers[-1]
        if (best is not None or not needed) and time.perf_counter() > deadline:
            break
        draft = outline(problem, kind, num_stages, aim, deadline)
        if draft is None or (not last and draft.busy.max(axis=1).sum() > (1.0 + FAR) * floor):
            continue
        if (best is not None or not needed) and time.perf_counter() > deadline:
            break
        run = Balance(problem, bundles, arrays, draft, latency_unit, deadline)
        before = np.inf
        while run.seconds > enough and run.sweeps < (THOROUGH_SWEEPS if thorough else SWEEPS):
            run.sweep(enough, deadline)
            work += num_stages * bundles.source.shape[0]
            if time.perf_counter() > deadline or (work > WORK and run.sweeps > 1 and not thorough):
                break
            if (
                not last
                and run.seconds > (1.0 + (FAR if run.sweeps == 1 else CLOSE)) * floor
                and run.sweeps <= 2
            ):
                break
            slow = thorough or run.seconds > (1.0 + FAIR) * floor
            if before - run.seconds < (SLOW if slow else FAST) * (before - enough):
                break
            before = run.seconds
        best = run if best is None or run.seconds < best.seconds else best
        if time.perf_counter() > deadline or best.seconds <= (1.0 + FAIR) * floor or work > WORK:
            break
    return best

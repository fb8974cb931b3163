"""Solves a smaller master problem of column generation, with one price per kind of connection-direction.

A kind has equal bandwidth, at equal places of equally long routes. On equal machines most of what prices must find is
the same for a kind: in which stages NICs work, and when rows are spread inside machines. The linear program then has a
few dozen rows instead of thousands, and about thirty answers (sets of cheapest trees at given prices) solve it. That
directions of a kind are not equally busy is left to search/grouped.py, which starts from here.
Called by `planner/column_generation/search/grouped`. Free to change while the shares of answers add up to 1, directions
of a kind have one bandwidth, and too few stages have no solution (`tests/planner/column_generation/test_grouped.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import FloatArray, Int64Array
from dgcl.planner.column_generation.master.fractional import Pricing, Problem, soft_weights
from dgcl.planner.column_generation.master.restricted_master import Columns, solve_master

if TYPE_CHECKING:
    from dgcl.topology.arrays import TopologyArrays

ROUNDS, STEP = 24, 0.5  # of multiplicative weights, before the first linear program
MAX_PROGRAMS = 8  # largest number of linear programs
BLENDS = (
    0.2,
    0.5,
    0.8,
)  # shares of the best prices so far, blended with the program's duals, that are priced
MAX_GAP = 2e-3  # relative distance between solution and bound at which the search ends
MIN_SHARE = 0.01  # answers with a smaller share are left out


@dataclass(frozen=True, eq=False)
class AggregatedSolution:
    """Answers, and the share of every bundle that follows each; K stages, C directions, n answers.

    Attributes:
        weights: (n, K, C), the prices at which the trees of each answer are the cheapest.
        share: (n,) > 0, adding up to 1.
        busy: (K, C), how long each direction would be busy if all of a kind were equally so.
    """

    weights: FloatArray
    share: FloatArray
    busy: FloatArray


def direction_kinds(arrays: TopologyArrays) -> Int64Array:
    """Return (C,) the kind of each direction: of equal bandwidth, at equal places of equally long routes."""
    places: list[set[tuple[int, int]]] = [set() for _ in range(arrays.num_directions)]
    for first, last in pairwise(arrays.link_ptr.tolist()):
        for at, c in enumerate(arrays.link_directions[first:last].tolist()):
            places[c].add((at, last - first))
    keys = [
        (speed, tuple(sorted(ends))) for speed, ends in zip(arrays.bandwidth.tolist(), places, strict=True)
    ]
    number = {key: n for n, key in enumerate(sorted(set(keys)))}
    return np.array([number[key] for key in keys], np.int64)


def solve_aggregated(
    problem: Problem, kind: Int64Array, num_stages: int, aim: float, deadline: float = np.inf
) -> AggregatedSolution | None:
    """Return the best solution of `num_stages` stages if directions of a kind are equally busy.

    Args:
        problem: states and links.
        kind: (C,) from `direction_kinds`.
        num_stages: K.
        aim: a rough idea of a good plan's time, rows per GB/s, > 0.
        deadline: on the clock of time.process_time; then the solution over the answers so far.

    Returns:
        None if not every row can arrive in so many stages.
    """
    space, routes = problem.space, problem.routes
    size = np.bincount(kind)
    num_kinds = size.shape[0]
    pricing, everyone = Pricing(space, routes, num_stages), np.array([0, space.world_size])
    priced: list[FloatArray] = []
    times: list[FloatArray] = []
    hops: list[float] = []
    values: list[float] = []

    def price_out(shared: FloatArray) -> FloatArray:
        """Answer prices per kind, (K, kinds) that add up to 1 in each stage; return the kinds' mean busy times."""
        value, _ = pricing.answer((shared / size)[:, kind])
        busy, moved = pricing.columns(everyone)
        mean = np.stack([np.bincount(kind, weights=stage, minlength=num_kinds) / size for stage in busy[0]])
        priced.append(shared)
        times.append(mean)
        hops.append(float(moved[0]))
        values.append(value)
        return mean

    score = np.zeros((num_stages, num_kinds))
    for t in range(ROUNDS):
        score += STEP * num_stages / aim / np.sqrt(t + 1.0) * price_out(soft_weights(score))
        if values[-1] == np.inf:
            return None
        if time.process_time() > deadline:
            break
    for iteration in range(MAX_PROGRAMS):
        num = len(times)
        columns = Columns(np.array(times), np.array(hops), np.zeros(num, np.int64), np.arange(num))
        solution = solve_master(columns, 1, float(routes.base.max()))
        best = int(np.argmax(values))
        late = iteration == MAX_PROGRAMS - 1 or time.process_time() > deadline
        if late or solution.time <= (1.0 + MAX_GAP) * values[best]:
            break
        for blend in BLENDS:
            price_out(blend * priced[best] + (1.0 - blend) * solution.weight)
    used = np.flatnonzero(solution.share >= MIN_SHARE)
    share = solution.share[used] / solution.share[used].sum()
    weights = np.array([(priced[n] / size)[:, kind] for n in used])
    return AggregatedSolution(weights, share, np.tensordot(share, columns.times[used], 1)[:, kind])

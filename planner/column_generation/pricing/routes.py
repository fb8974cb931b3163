"""What links load, and the prices that follow from weights of connection-directions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array
from dgcl.planner.compiled import compiled


class Routes(NamedTuple):
    """What links load: C connection-directions, L links.

    Attributes:
        ptr: (L+1,) int64, and direction: int32, the connection-directions of link l are
            ``direction[ptr[l]:ptr[l+1]]``.
        cost: (C,) float64, time units that one row takes on a connection-direction.
        factor: (L,) float64 >= 1, how much more a row counts that comes over a link of high latency
            (`latency_factor`); 1 without latencies, inf for links that may not be used.
        base: (L,) float64, a small price of each link in every stage, so that idle detours are not free.
    """

    ptr: Int64Array
    direction: Int32Array
    cost: FloatArray
    factor: FloatArray
    base: FloatArray


def latency_factor(latency: FloatArray, stage_time: float) -> FloatArray:
    """Return how much more rows count over links of this latency, in stages that take at most `stage_time`.

    In such a stage, whose time is T, a direction c that is busy for a time b(c) takes part in T >=
    latency(l) + b(c) for every link l in use through it, and latency(l) >= T * latency(l) / stage_time;
    hence T >= b(c) / (1 - latency(l) / stage_time). T is then also at least any average of these over the
    rows on c: sum over links l of (rows of l) * cost(c) * factor(l).
    """
    left = 1.0 - latency / stage_time
    return np.where(left > 1e-6, 1.0 / np.maximum(left, 1e-6), np.inf)


@compiled(inline=False)
def link_prices(weight: FloatArray, routes: Routes, out: FloatArray) -> None:
    """Set `out` (K, L) to the price of a row on each link, given weights of directions (K, C)."""
    for k in range(out.shape[0]):
        for link in range(out.shape[1]):
            price = 0.0
            for i in range(routes.ptr[link], routes.ptr[link + 1]):
                c = routes.direction[i]
                price += weight[k, c] * routes.cost[c]
            out[k, link] = np.inf
            if routes.factor[link] < np.inf:
                out[k, link] = routes.base[link] + routes.factor[link] * price


@compiled(inline=False)
def add_busy_times(link_rows: FloatArray, routes: Routes, out: FloatArray) -> None:
    """Add to `out` (K, C) how long the rows (K, L) over links keep each connection-direction busy."""
    for k in range(link_rows.shape[0]):
        for link in range(link_rows.shape[1]):
            if link_rows[k, link] != 0.0:
                rows = link_rows[k, link] * routes.factor[link]
                for i in range(routes.ptr[link], routes.ptr[link + 1]):
                    c = routes.direction[i]
                    out[k, c] += rows * routes.cost[c]

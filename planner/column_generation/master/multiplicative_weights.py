"""Prices found by multiplicative weights, and samples of the plans that answer them.

The problem is a game. One player chooses for each stage k a price vector w(k, .) >= 0 over
connection-directions with sum 1; the other answers with the trees that are cheapest when a row over
connection-direction c in stage k costs w(k, c) / bandwidth(c). The value of the game is the least time of
any fractional plan with that many stages. Each round answers the current prices exactly (tree_program.py)
and then raises the prices of what the answer keeps busy: w(k, c) is proportional to exp of the weighted sum
of the times that c was busy in stage k (Arora, Hazan and Kale, "The multiplicative weights update method",
2012).

Answers of single rounds swing wildly and only their averages settle, and slowly. Some of them are therefore
kept as *columns*, one per block of owners, for a small linear program that finds the best mixture
(mixture.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.flows import Flows, push
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily
from dgcl.planner.column_generation.pricing.tree_program import Choices, Moves, cheapest_trees
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


@compiled
def link_prices(weight: FloatArray, routes: Routes, out: FloatArray) -> None:
    """Set `out` (K, L) to what a row pays on each link when directions have the weights (K, C)."""
    for k in range(out.shape[0]):
        for link in range(out.shape[1]):
            price = 0.0
            for i in range(routes.ptr[link], routes.ptr[link + 1]):
                c = routes.direction[i]
                price += weight[k, c] * routes.cost[c]
            out[k, link] = np.inf
            if routes.factor[link] < np.inf:
                out[k, link] = routes.base[link] + routes.factor[link] * price


@compiled
def add_busy_times(link_rows: FloatArray, routes: Routes, out: FloatArray) -> None:
    """Add to `out` (K, C) how long the rows (K, L) over links keep each connection-direction busy."""
    for k in range(link_rows.shape[0]):
        for link in range(link_rows.shape[1]):
            if link_rows[k, link] != 0.0:
                rows = link_rows[k, link] * routes.factor[link]
                for i in range(routes.ptr[link], routes.ptr[link + 1]):
                    c = routes.direction[i]
                    out[k, c] += rows * routes.cost[c]


@compiled
def soft_weights(score: FloatArray, weight: FloatArray) -> None:
    """Set `weight` to the softmax of `score` in each stage."""
    for k in range(score.shape[0]):
        top = score[k].max()
        total = 0.0
        for c in range(score.shape[1]):
            weight[k, c] = np.exp(score[k, c] - top)
            total += weight[k, c]
        for c in range(score.shape[1]):
            weight[k, c] /= total


@compiled
def answer_value(choices: Choices, start: FloatArray) -> float:
    """Return the price of the cheapest trees of all rows; inf when some set cannot be reached."""
    total = 0.0
    for v in range(start.shape[0]):
        for f in range(start.shape[1]):
            if start[v, f] > 0.0:
                total += start[v, f] * choices.value[0, v, f]
    return total


@compiled
def answer_columns(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    start: FloatArray,
    block_ptr: Int64Array,
    routes: Routes,
    flows: Flows,
    columns: FloatArray,
    traffic: FloatArray,
) -> None:
    """Set `columns` (B, K, C) to the busy times that each block's rows cause, `traffic` (B,) to their
    hops."""
    rows = np.empty((choices.split.shape[0], routes.base.shape[0]))
    for b in range(block_ptr.shape[0] - 1):
        push(family, moves, choices, start, block_ptr[b], block_ptr[b + 1], rows, False, flows)
        columns[b] = 0.0
        add_busy_times(rows, routes, columns[b])
        traffic[b] = rows.sum()


@compiled
def run_rounds(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    start: FloatArray,
    block_ptr: Int64Array,
    routes: Routes,
    flows: Flows,
    score: FloatArray,
    first: int,
    last: int,
    step: float,
    every: int,
    prices: FloatArray,
    columns: FloatArray,
    traffic: FloatArray,
    mean_weight: FloatArray,
) -> float:
    """Play rounds ``first:last`` from `score`, in place.

    Args:
        family, moves, choices, start: the states (StateSpace); `choices` is scratch.
        block_ptr: (B+1,) int64, the owners of each block of a column.
        routes, flows: what links load; into `flows` nothing is recorded.
        score: (K, C) logarithms of the weights, updated.
        first, last: numbers of the rounds, for the falling step.
        step: step of round 0, relative to the time that is aimed at; round t takes step / sqrt(t + 1).
        every: keep the answer of every so manieth round (0: of none).
        prices, columns, traffic: outputs for the kept answers: (n, K, L), (n, B, K, C) and (n, B).
        mean_weight: (K, C), the weights of all rounds are added to it.

    Returns:
        The largest value of an answer: a bound on every plan of K stages, in time units, if `routes.base`
        is 0.
    """
    num_stages, num_directions = score.shape
    num_links = routes.base.shape[0]
    weight, busy = np.empty((num_stages, num_directions)), np.empty((num_stages, num_directions))
    price, rows = np.empty((num_stages, num_links)), np.empty((num_stages, num_links))
    world = start.shape[0]
    best = 0.0
    kept = 0
    for t in range(first, last):
        soft_weights(score, weight)
        link_prices(weight, routes, price)
        cheapest_trees(family, moves, price, choices)
        best = max(best, answer_value(choices, start))
        busy[:] = 0.0
        if every > 0 and (t - first) % every == every - 1:
            prices[kept] = price
            answer_columns(
                family, moves, choices, start, block_ptr, routes, flows, columns[kept], traffic[kept]
            )
            for b in range(columns.shape[1]):
                busy += columns[kept, b]
            kept += 1
        else:
            push(family, moves, choices, start, 0, world, rows, False, flows)
            add_busy_times(rows, routes, busy)
        score += step / np.sqrt(t + 1.0) * busy
        mean_weight += weight
    return best

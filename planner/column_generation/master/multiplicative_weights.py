"""Finds prices by multiplicative weights, and keeps some of the plans that answer them as columns.

The problem is a game. One player chooses for each stage k a price vector w(k, .) >= 0 over
connection-directions with sum 1; the other answers with the trees that are cheapest when a row over
connection-direction c in stage k costs w(k, c) / bandwidth(c). The value of the game is the least time of
any fractional plan with that many stages. Each round answers the current prices exactly (tree_program.py)
and then raises the prices of what the answer keeps busy: w(k, c) is proportional to exp of the weighted sum
of the times that c was busy in stage k (Arora, Hazan and Kale, "The multiplicative weights update method",
2012).

An *answer* is the set of cheapest trees at given prices. Answers of single rounds oscillate; only their averages
converge, and slowly. Some answers are therefore kept as *columns*, one per block of owners, and a small linear
program finds their best combination (restricted_master.py).
"""

from __future__ import annotations

import numpy as np

from dgcl.planner.arrays import FloatArray, Int64Array
from dgcl.planner.column_generation.pricing.flows import Flows, Routes, add_busy_times, link_prices, push
from dgcl.planner.column_generation.pricing.new_arrays import new_float_table
from dgcl.planner.column_generation.pricing.states import Moves, SubsetFamily
from dgcl.planner.column_generation.pricing.tree_program import Choices, cheapest_trees
from dgcl.planner.compiled import compiled


@compiled(inline=False, entry=False)
def set_all(table: FloatArray, value: float) -> None:
    """Set every entry of a (K, n) table."""
    for k in range(table.shape[0]):
        for c in range(table.shape[1]):
            table[k, c] = value


@compiled(inline=False, entry=False)
def add_scaled(table: FloatArray, factor: float, other: FloatArray) -> None:
    """Add ``factor * other`` to a (K, n) table."""
    for k in range(table.shape[0]):
        for c in range(table.shape[1]):
            table[k, c] += factor * other[k, c]


@compiled(entry=False)
def soft_weights(score: FloatArray, weight: FloatArray) -> None:
    """Set `weight` to the softmax of `score` in each stage."""
    for k in range(score.shape[0]):
        top = score[k, 0]
        for c in range(1, score.shape[1]):
            top = max(top, score[k, c])
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


@compiled(inline=False, entry=False)
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
    """Set `columns` (B, K, C) to the busy times that each block's rows cause, `traffic` (B,) to their hops."""
    rows = new_float_table(choices.split.shape[0], routes.base.shape[0])
    for b in range(block_ptr.shape[0] - 1):
        push(family, moves, choices, start, block_ptr[b], block_ptr[b + 1], rows, False, flows)
        column = columns[b]
        set_all(column, 0.0)
        add_busy_times(rows, routes, column)
        traffic[b] = 0.0
        for k in range(rows.shape[0]):
            for link in range(rows.shape[1]):
                traffic[b] += rows[k, link]


@compiled(inline=False)
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
    """Run rounds ``first:last`` of multiplicative weights, in place.

    Args:
        family, moves, choices, start: the states (StateSpace); `choices` is scratch.
        block_ptr: (B+1,) int64, the owners of each block of a column.
        routes, flows: what links load; into `flows` nothing is recorded.
        score: (K, C) logarithms of the weights, updated.
        first, last: numbers of the rounds, for the falling step.
        step: step of round 0, relative to the time that is aimed at; round t takes step / sqrt(t + 1).
        every: keep the answer of every `every`-th round (0: of none).
        prices, columns, traffic: outputs for the kept answers: (n, K, L), (n, B, K, C) and (n, B).
        mean_weight: (K, C), the weights of all rounds are added to it.

    Returns:
        The largest value of an answer: a bound on every plan of K stages, in time units, if `routes.base`
        is 0.
    """
    num_stages, num_directions = score.shape
    num_links = routes.base.shape[0]
    weight, busy = new_float_table(num_stages, num_directions), new_float_table(num_stages, num_directions)
    price, rows = new_float_table(num_stages, num_links), new_float_table(num_stages, num_links)
    world = start.shape[0]
    best = 0.0
    kept = 0
    for t in range(first, last):
        soft_weights(score, weight)
        link_prices(weight, routes, price)
        cheapest_trees(family, moves, price, choices)
        best = max(best, answer_value(choices, start))
        set_all(busy, 0.0)
        if every > 0 and (t - first) % every == every - 1:
            set_all(prices[kept], 0.0)
            add_scaled(prices[kept], 1.0, price)
            answer_columns(
                family, moves, choices, start, block_ptr, routes, flows, columns[kept], traffic[kept]
            )
            for b in range(columns.shape[1]):
                add_scaled(busy, 1.0, columns[kept, b])
            kept += 1
        else:
            push(family, moves, choices, start, 0, world, rows, False, flows)
            add_busy_times(rows, routes, busy)
        add_scaled(score, step / np.sqrt(t + 1.0), busy)
        add_scaled(mean_weight, 1.0, weight)
    return best

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

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, Int64Array
from dgcl.planner.column_generation.pricing.flows import Routes, add_busy_times, link_prices, push
from dgcl.planner.column_generation.pricing.new_arrays import new_float_table
from dgcl.planner.column_generation.pricing.states import Moves, SubsetFamily
from dgcl.planner.column_generation.pricing.tree_program import Choices, cheapest_trees, empty_choices
from dgcl.planner.compiled import compiled

if TYPE_CHECKING:
    from dgcl.planner.column_generation.pricing.states import StateSpace


def soft_weights(score: FloatArray) -> FloatArray:
    """Return the softmax of `score` (K, C) in each stage."""
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True), np.float64)


class Pricing:
    """Answers weights of (stage, direction) pairs, K stages and C directions, with the cheapest trees of all rows."""

    def __init__(self, space: StateSpace, routes: Routes, num_stages: int) -> None:
        self._space, self._routes, self._shape = space, routes, (num_stages, routes.cost.shape[0])
        self._choices = empty_choices(num_stages, space.world_size, space.num_sets)

    def answer(self, weight: FloatArray, routes: Routes | None = None) -> tuple[float, FloatArray]:
        """Find the cheapest trees; return their price, inf when some row cannot arrive, and the link prices (K, L).

        Where `routes.base` is 0 the price bounds every plan of K stages, in time units.
        """
        space, routes = self._space, self._routes if routes is None else routes
        price = np.empty((self._shape[0], routes.base.shape[0]))
        link_prices(weight, routes, price)
        cheapest_trees(space.family, space.moves, price, self._choices)
        some = space.start > 0.0
        return float(space.start[some] @ self._choices.value[0][some]), price

    def columns(self, block_ptr: Int64Array) -> tuple[FloatArray, FloatArray]:
        """Return the busy times (B, K, C) and hops (B,) that the trees cause for each block of owners."""
        space, blocks = self._space, block_ptr.shape[0] - 1
        columns, hops = np.zeros((blocks, *self._shape)), np.empty(blocks)
        answer_columns(
            space.family,
            space.moves,
            self._choices,
            space.start,
            block_ptr,
            self._routes,
            columns,
            hops,
        )
        return columns, hops


@compiled(inline=False)
def answer_columns(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    start: FloatArray,
    block_ptr: Int64Array,
    routes: Routes,
    columns: FloatArray,
    hops: FloatArray,
) -> None:
    """Add to `columns` (B, K, C) the busy times that each block's rows cause; set `hops` (B,)."""
    rows = new_float_table(choices.split.shape[0], routes.base.shape[0])
    for b in range(block_ptr.shape[0] - 1):
        push(family, moves, choices, start, block_ptr[b], block_ptr[b + 1], rows)
        add_busy_times(rows, routes, columns[b])
        hops[b] = 0.0
        for k in range(rows.shape[0]):
            for link in range(rows.shape[1]):
                hops[b] += rows[k, link]

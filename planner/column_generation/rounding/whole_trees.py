"""Whole trees from a fractional plan: the trees of its answers, each for a whole number of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, Int64Array
from dgcl.planner.column_generation.pricing.tree_program import cheapest_trees, empty_choices
from dgcl.planner.column_generation.rounding.bundles import Bundles
from dgcl.planner.column_generation.rounding.cheapest import cheapest_of
from dgcl.planner.column_generation.rounding.forest import Forest, compact, joined
from dgcl.planner.compiled import compiled

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.topology.arrays import TopologyArrays

UNITS, MOST = 2.0**20, 2.0**61  # in a row, and in all: trees are merged with their rows counted in these


def whole_forest(
    answers: Iterable[tuple[FloatArray, FloatArray]],
    bundles: Bundles,
    problem: Problem,
    arrays: TopologyArrays,
) -> Forest:
    """Return a compact forest of trees for all bundles.

    Args:
        answers: prices (K, L), at which the trees of the answer are the cheapest, and the share of the rows of each
            owner's block (B,) that follow it.
        bundles, problem, arrays: what is to be planned.
    """
    space, instance = problem.space, bundles.instance(problem, arrays)
    block = np.searchsorted(problem.block_ptr, bundles.source, side="right") - 1
    units, parts = min(UNITS, MOST / float(bundles.count.max())), []
    for price, share in answers:
        rows = np.zeros(price.shape)
        choices = empty_choices(price.shape[0], space.world_size, space.num_sets)
        amount = np.ceil(units * share[block] * bundles.count).astype(np.int64)
        which = np.flatnonzero(amount)
        cheapest_trees(space.family, space.moves, price, choices)
        parts.append((which, amount[which], *cheapest_of(instance, choices, which, amount[which], rows)))
    forest = joined(parts, arrays)
    _round(forest, bundles.count, rows)
    return compact(forest)


@compiled
def _round(forest: Forest, rows: Int64Array, error: FloatArray) -> None:
    """Turn the counts of trees, ordered by bundle, into whole ones that add up to the `rows` of each bundle.

    They are rounded down; each row that remains goes to the tree with the largest shortfall, its own and that of the
    (stage, link) pairs that it uses. So later bundles make up for the rounding of earlier ones. `error` (K, L) is
    scratch.
    """
    error[:] = 0.0
    first, num = 0, forest.used[0]
    missing, pull = np.empty(num), np.empty(num)
    while first < num:
        bundle, last, total = forest.class_[first], first, 0.0
        while last < num and forest.class_[last] == bundle:
            total += forest.count[last]
            last += 1
        left = rows[bundle]
        for t in range(first, last):
            exact = rows[bundle] * (forest.count[t] / total)
            forest.count[t] = np.int64(np.floor(exact + 1e-9))
            left -= forest.count[t]
            missing[t], pull[t] = exact - forest.count[t], 0.0
            for e in range(forest.first[t], forest.first[t] + forest.size[t]):
                pull[t] += error[forest.stage[e], forest.link[e]]
        while left != 0:  # floors of very large numbers can exceed the total by a few
            step, best = 1 if left > 0 else -1, -1
            for t in range(first, last):
                if step < 0 and forest.count[t] == 0:
                    continue
                if best < 0 or step * (missing[t] + pull[t]) > step * (missing[best] + pull[best]):
                    best = t
            forest.count[best] += step
            missing[best] -= step
            left -= step
        for t in range(first, last):
            for e in range(forest.first[t], forest.first[t] + forest.size[t]):
                error[forest.stage[e], forest.link[e]] += missing[t]
        first = last

"""The restricted master problem: the best combination of kept columns, a small linear program (simplex.py).

Each column says how long one block of owners would keep each (stage, connection-direction) busy if all its
rows were sent as in one answer. A solution takes of each block's columns shares that add up to 1; its time
is the sum over stages of the busiest direction. The dual values of the busy times are the prices of the next
pricing problem (Dantzig and Wolfe, "Decomposition principle for linear programs", 1960).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dgcl.planner.array_types import FloatArray, Int64Array
from dgcl.planner.column_generation.master.simplex import Basis, solve

MAX_SCALE_RATIO = 1e3  # of the time at hand to the unit of the last program; beyond, a new unit and basis


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns, n of them.

    Attributes:
        times: (n, K, C), how long the column keeps each direction busy in each stage.
        hops: (n,), rows times links.
        block, answer: (n,), the block of owners, and the answer that the column belongs to.
    """

    times: FloatArray
    hops: FloatArray
    block: Int64Array
    answer: Int64Array

    def joined(self, other: Columns) -> Columns:
        """Return both."""
        return Columns(
            np.concatenate([self.times, other.times]),
            np.concatenate([self.hops, other.hops]),
            np.concatenate([self.block, other.block]),
            np.concatenate([self.answer, other.answer]),
        )

    def select(self, which: Int64Array) -> Columns:
        """Return the columns `which`."""
        return Columns(self.times[which], self.hops[which], self.block[which], self.answer[which])


@dataclass(frozen=True, eq=False)
class MasterSolution:
    """An optimal solution of the restricted master problem.

    Attributes:
        time: what the combination takes, in the unit of the columns.
        share: (n,) of each column, >= 0; those of a block add up to 1.
        weight: (K, C) >= 0, each stage's adding up to 1: the dual prices.
        reduced_cost: (n,), what a column costs at these prices above the cheapest combination of its block.
        unit: the time that is 1 in the linear program.
        directions: those that the linear program knows.
        basis: from which a program with more columns starts.
    """

    time: float
    share: FloatArray
    weight: FloatArray
    reduced_cost: FloatArray
    unit: float
    directions: Int64Array
    basis: Basis

    def cheapest(self, num: int) -> Int64Array:
        """Return the `num` cheapest columns, or all basic ones if these are more, in their order."""
        rank = self.reduced_cost.copy()
        rank[self.basis.columns()] = -np.inf
        return np.sort(np.argsort(rank, kind="stable")[: max(num, self.basis.columns().shape[0])])

    def with_columns(self, kept: Int64Array) -> MasterSolution:
        """Return the same solution over the columns `kept` only, all basic ones among them."""
        return replace(
            self,
            share=self.share[kept],
            reduced_cost=self.reduced_cost[kept],
            basis=self.basis.with_columns(kept),
        )


def solve_master(
    columns: Columns, num_blocks: int, hop_cost: float, last: MasterSolution | None = None
) -> MasterSolution:
    """Return the combination with the least time plus `hop_cost` times its hops.

    Args:
        columns: at least one of each block.
        num_blocks: number of blocks B.
        hop_cost: time units per row and link; small, so that among equals the one that moves less is taken.
        last: the solution for the first of these columns, which saves most of the pivots.
    """
    num, num_stages, num_directions = columns.times.shape
    simple = _best_single_columns(columns, num_blocks)
    assert np.isfinite(simple)
    used = np.flatnonzero(columns.times.any(axis=(0, 1)))
    if last is not None and not (
        last.unit / MAX_SCALE_RATIO <= simple <= last.unit * MAX_SCALE_RATIO
        and np.isin(used, last.directions).all()
    ):
        last = None
    unit = simple if last is None else last.unit
    directions = used if last is None else last.directions
    if directions.shape[0] == 0:
        directions = np.zeros(1, np.int64)
    flat = columns.times[:, :, directions].reshape(num, -1)
    solution = solve(
        flat.T / unit, columns.hops * (hop_cost / unit), columns.block, num_stages, num_blocks,
        None if last is None else last.basis,
    )  # fmt: skip
    total = np.bincount(columns.block, weights=solution.share, minlength=num_blocks)
    share = solution.share / total[columns.block]
    paid = np.maximum(-solution.price[: flat.shape[1]], 0.0).reshape(num_stages, -1)
    paid /= paid.sum(axis=1, keepdims=True)
    weight = np.zeros((num_stages, num_directions))
    weight[:, directions] = paid
    block_dual = solution.price[flat.shape[1] :] * unit  # the dual of a block: what its rows pay in all
    reduced = columns.hops * hop_cost + flat @ paid.reshape(-1) - block_dual[columns.block]
    time = float(np.tensordot(share, columns.times, 1).max(axis=1).sum())
    return MasterSolution(time, share, weight, reduced, unit, directions, solution.basis)


def _best_single_columns(columns: Columns, num_blocks: int) -> float:
    """Return the sum over blocks of the least time of one column; the largest time of all where that is 0."""
    best = np.full(num_blocks, np.inf)
    np.minimum.at(best, columns.block, columns.times.max(axis=2).sum(axis=1))
    return float(best.sum() or columns.times.max() or 1.0)

"""The best mixture of kept answers: a small linear program (simplex.py), solved again and again as answers come.

Each column says how long one block of owners would keep each (stage, connection-direction) busy if all its
rows were sent as in one answer. A mixture takes of each block's columns shares that add up to 1; its time
is the sum over stages of the busiest direction. The dual values of the busy times are the prices at which
the next answer is worth asking for (Dantzig and Wolfe, "Decomposition principle for linear programs",
1960).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dgcl.planner.arrays import FloatArray, Int64Array
from dgcl.planner.column_generation.master.simplex import Basis, solve

FAR = (
    1e3  # how much the time at hand may differ from a linear program's unit before it begins with another one
)


@dataclass(frozen=True, eq=False)
class Columns:
    """Kept answers, n columns.

    Attributes:
        times: (n, K, C), how long the column keeps each direction busy in each stage.
        hops: (n,), rows times links.
        block, answer: (n,), where it comes from.
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

    def taken(self, which: Int64Array) -> Columns:
        """Return the columns `which`."""
        return Columns(self.times[which], self.hops[which], self.block[which], self.answer[which])


@dataclass(frozen=True, eq=False)
class Mixture:
    """The solution.

    Attributes:
        seconds: time of the mixture, in the unit of the columns.
        share: (n,) of each column, >= 0; those of a block add up to 1.
        weight: (K, C) >= 0, each stage's adding up to 1: the dual prices.
        reduced_cost: (n,), how much dearer a column is at these prices than the cheapest mixture of its
            block.
        unit: the time that is 1 in the linear program.
        directions: those that the linear program knows.
        basis: where a program of more columns goes on from.
    """

    seconds: float
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

    def of_kept(self, kept: Int64Array) -> Mixture:
        """Return the same mixture when the columns `kept`, all basic ones among them, are all that is left."""
        return replace(
            self, share=self.share[kept], reduced_cost=self.reduced_cost[kept], basis=self.basis.of_kept(kept)
        )


def best_mixture(columns: Columns, num_blocks: int, hop_cost: float, last: Mixture | None = None) -> Mixture:
    """Return the mixture with the least time plus `hop_cost` times its hops.

    Args:
        columns: at least one of each block.
        num_blocks: number of blocks B.
        hop_cost: time units per row and link; small, so that among equals the one that moves less is taken.
        last: the best mixture of the first of these columns, which saves most of the work.
    """
    num, num_stages, num_directions = columns.times.shape
    simple = _one_each(columns, num_blocks)
    assert np.isfinite(simple)
    used = np.flatnonzero(columns.times.any(axis=(0, 1)))
    if last is not None and not (
        last.unit / FAR <= simple <= last.unit * FAR and np.isin(used, last.directions).all()
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
    rent = solution.price[flat.shape[1] :] * unit  # what a block pays for its rows
    reduced = columns.hops * hop_cost + flat @ paid.reshape(-1) - rent[columns.block]
    seconds = float(np.tensordot(share, columns.times, 1).max(axis=1).sum())
    return Mixture(seconds, share, weight, reduced, unit, directions, solution.basis)


def _one_each(columns: Columns, num_blocks: int) -> float:
    """Return what the best column of each block takes, added up; the largest time of all where that is nothing."""
    best = np.full(num_blocks, np.inf)
    np.minimum.at(best, columns.block, columns.times.max(axis=2).sum(axis=1))
    return float(best.sum() or columns.times.max() or 1.0)

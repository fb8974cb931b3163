"""The best mixture of kept answers: a small linear program, solved by HiGHS.

Each column says how long one block of owners would keep each (stage, connection-direction) busy if all its
rows were sent as in one answer. A mixture takes of each block's columns shares that add up to 1; its time
is the sum over stages of the busiest direction. The dual values of the busy times are the prices at which
the next answer is worth asking for (Dantzig and Wolfe, "Decomposition principle for linear programs",
1960).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgcl.planner.arrays import FloatArray, Int64Array


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
    """

    seconds: float
    share: FloatArray
    weight: FloatArray
    reduced_cost: FloatArray


def best_mixture(columns: Columns, num_blocks: int, hop_cost: float) -> Mixture:
    """Return the mixture with the least time plus `hop_cost` times its hops.

    Args:
        columns: at least one of each block.
        num_blocks: number of blocks B.
        hop_cost: time units per row and link; small, so that among equals the one that moves less is taken.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    num, num_stages, num_directions = columns.times.shape
    flat = columns.times.reshape(num, -1)
    used = np.flatnonzero(flat.any(axis=0))
    stage_of = used // num_directions
    scale = max(float(flat.max(initial=0.0)), 1e-300)
    at, row = np.nonzero(flat[:, used])
    data = np.concatenate([flat[at, used[row]] / scale, np.full(used.shape[0], -1.0)])
    rows = np.concatenate([row, np.arange(used.shape[0])])
    cols = np.concatenate([at, num + stage_of])
    shape = (used.shape[0], num + num_stages)
    shares = coo_array((np.ones(num), (columns.block, np.arange(num))), shape=(num_blocks, shape[1]))
    cost = np.concatenate([columns.hops * (hop_cost / scale), np.ones(num_stages)])
    solution = linprog(
        cost,
        A_ub=coo_array((data, (rows, cols)), shape=shape).tocsc(),
        b_ub=np.zeros(shape[0]),
        A_eq=shares.tocsc(),
        b_eq=np.ones(num_blocks),
        method="highs-ds",
        options={"presolve": False},  # finds nothing to take away here, and takes an eighth of the time
    )
    if solution.status != 0:
        raise ArithmeticError(f"the mixture program was not solved: {solution.message}")
    share = np.maximum(solution.x[:num], 0.0)
    share /= np.bincount(columns.block, weights=share, minlength=num_blocks)[columns.block]
    weight = np.zeros(num_stages * num_directions)
    weight[used] = np.maximum(-solution.ineqlin.marginals, 0.0)
    weight = weight.reshape(num_stages, num_directions)
    total = weight.sum(axis=1, keepdims=True)
    weight = np.where(total > 0, weight / np.where(total > 0, total, 1.0), 1.0 / num_directions)
    reduced = cost[:num] * scale + flat @ weight.reshape(-1) - solution.eqlin.marginals[columns.block] * scale
    seconds = float(np.tensordot(share, columns.times, 1).max(axis=1).sum())
    return Mixture(seconds, share, weight, reduced)

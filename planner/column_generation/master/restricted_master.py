"""Solves the restricted master problem of column generation, a small linear program, with HiGHS.

A column says how long one block of owners keeps each (stage, connection-direction) busy if all its rows are sent as in
one answer (the cheapest trees at some prices). Of each block's columns a solution takes shares that add up to 1; its
time is the sum over stages of the busiest direction. The dual values of the busy times are the next prices (Dantzig and
Wolfe, "Decomposition principle for linear programs", 1960). Columns are added a few at a time, dozens of times for a
plan: each program starts from the last one's basis.
Called by `aggregated`, `fractional` and `price_bound`. Free to change while times are scipy's, from the last basis as
from nothing, and the prices prove them (`tests/planner/column_generation/test_restricted_master.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from highspy import HighsBasis, HighsBasisStatus, HighsModelStatus, HighsStatus, kHighsInf
from highspy._core import _Highs as Highs  # what wraps it prints a line when it is made

from dgcl.planner.array_types import FloatArray, Int64Array

# Unscaled programs in our unit take half of the pivots. A plan is made on one core.
OPTIONS: dict[str, str | int] = {
    "presolve": "off",
    "simplex_strategy": 4,
    "simplex_scale_strategy": 0,
    "threads": 1,
}


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


@dataclass(frozen=True, eq=False)
class MasterSolution:
    """An optimal solution of the restricted master problem.

    Attributes:
        time: what the combination takes, in the unit of the columns.
        share: (n,) of each column, >= 0; those of a block add up to 1.
        weight: (K, C) >= 0, each stage's adding up to 1: the dual prices.
        column_status, row_status: the basis: of the stages' times, then of the columns; and of the equations.
        pivots: how many it took.
    """

    time: float
    share: FloatArray
    weight: FloatArray
    column_status: list[HighsBasisStatus]
    row_status: list[HighsBasisStatus]
    pivots: int


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
    num_rows, stages = num_stages * num_directions, np.arange(num_stages)
    unit = _best_single_columns(columns, num_blocks)
    assert np.isfinite(unit)
    # Of each stage the time T(k), then of each column its share: the columns of a sparse matrix. Entries are at most 1:
    # else columns with large ones would drown the others in rounding.
    size = np.maximum(columns.times.max(axis=(1, 2)) / unit, 1.0)
    matrix = np.zeros((num_stages + num, num_rows + num_blocks))
    matrix[stages[:, None], np.arange(num_rows).reshape(num_stages, -1)] = -1.0
    matrix[num_stages:, :num_rows] = columns.times.reshape(num, -1) / (unit * size[:, None])
    matrix[num_stages + np.arange(num), num_rows + columns.block] = 1.0 / size
    variable, equation = np.nonzero(matrix)
    highs = Highs()
    highs.setOptionValue("output_flag", False)
    highs.addRows(
        num_rows + num_blocks, np.repeat([-kHighsInf, 1.0], [num_rows, num_blocks]),
        np.repeat([0.0, 1.0], [num_rows, num_blocks]), 0, np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0),
    )  # fmt: skip
    highs.addCols(
        num_stages + num, np.concatenate([np.ones(num_stages), columns.hops * hop_cost / (unit * size)]),
        np.repeat([-kHighsInf, 0.0], [num_stages, num]), np.full(num_stages + num, kHighsInf), variable.shape[0],
        np.searchsorted(variable, np.arange(num_stages + num)).astype(np.int32), equation.astype(np.int32),
        matrix[variable, equation],
    )  # fmt: skip
    for name, value in OPTIONS.items():
        highs.setOptionValue(name, value)
    if last is not None:
        basis = HighsBasis()
        basis.col_status = last.column_status + [HighsBasisStatus.kLower] * (num - last.share.shape[0])
        basis.row_status = last.row_status
        highs.setBasis(basis)
    # HiGHS keeps workers, as many as its first program of a thread asked for, and refuses other numbers.
    Highs.resetGlobalScheduler(True)
    if highs.run() != HighsStatus.kOk or highs.getModelStatus() != HighsModelStatus.kOptimal:
        highs.clearSolver()
        highs.resetOptions()
        highs.setOptionValue("output_flag", False)
        highs.run()
    Highs.resetGlobalScheduler(True)
    solution, basis = highs.getSolution(), highs.getBasis()
    share = np.maximum(np.array(solution.col_value)[num_stages:] / size, 0.0)
    share /= np.bincount(columns.block, weights=share, minlength=num_blocks)[columns.block]
    paid = np.maximum(-np.array(solution.row_dual)[:num_rows], 0.0).reshape(num_stages, -1)
    return MasterSolution(
        float(np.tensordot(share, columns.times, 1).max(axis=1).sum()),
        share,
        paid / paid.sum(axis=1, keepdims=True),
        list(basis.col_status),
        list(basis.row_status),
        int(highs.getInfo().simplex_iteration_count),
    )


def _best_single_columns(columns: Columns, num_blocks: int) -> float:
    """Return the sum over blocks of the least time of one column; the largest time of all where that is 0."""
    best = np.full(num_blocks, np.inf)
    np.minimum.at(best, columns.block, columns.times.max(axis=2).sum(axis=1))
    return float(best.sum() or columns.times.max() or 1.0)

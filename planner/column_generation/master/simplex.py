"""The primal simplex method for the restricted master problem, started from the last basis.

Columns are added to the master problem (restricted_master.py) a few at a time and it is solved again, dozens of times
for a plan. scipy's solvers begin from nothing each time; from the last basis, which stays feasible when columns are
added, a tenth of the pivots are left, and these programs are small and dense enough for an explicit inverse.
HiGHS kept warm through highspy (columns added to its model, presolve off) takes two to six times as long on the same
programs. CPU seconds for all programs of one plan, the best of three rounds in turns::

    machine, relation          programs, largest     here    HiGHS primal    HiGHS dual
    dgx1, web-google / 10      7, 165 x 376         0.020           0.090         0.126
    dgx1, reddit / 10          19, 174 x 632        0.051           0.239         0.313
    summit, wiki-talk / 100    2, 52 x 90           0.001           0.002         0.002
    two dgx1, web-google / 20  2, 248 x 240         0.002           0.006         0.004

The program, with columns j of blocks b(j), rows r of stages k(r) and one more row for every block::

    minimise    sum over k of T(k) + sum over j of cost(j) * x(j)
    such that   sum over j of a(r, j) * x(j) + s(r) - T(k(r)) = small(r)    for every row r
                sum over j of block b: x(j) = 1                             for every block b
                x >= 0, s >= 0, and T free, hence always in the basis

The right side `small`, different in every row, gives every step a positive length, which rules out cycling. The
result is optimal up to `PERTURBATION` and rounding; callers must not need more.

Variables are numbered: j is x(j), -1 - r is s(r), and -1 - R - k is T(k).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgcl.planner.array_types import FloatArray, Int64Array
from dgcl.planner.planner_compiled import compiled

PERTURBATION = 1e-9  # of the right side, relative to a time of about 1
DUAL_TOLERANCE = 1e-9  # reduced costs above minus this count as 0
MIN_PIVOT = 1e-8
MAX_RESIDUAL = 1e-9  # of the equations, by rounding; above, the inverse is not used
MAX_PIVOTS = 20_000


@dataclass(frozen=True, eq=False)
class Basis:
    """The basis where the method ended.

    Attributes:
        names: (M,) int64, the basic variables; M = R + B.
        inverse: (M, M), transposed: ``inverse[c, i]`` is the derivative of the i-th of them by the right side of
            equation c.
    """

    names: Int64Array
    inverse: FloatArray

    def columns(self) -> Int64Array:
        """Return the basic columns."""
        return self.names[self.names >= 0]

    def with_columns(self, kept: Int64Array) -> Basis:
        """Return the same basis over the columns `kept` (sorted; all basic ones among them) only."""
        names = self.names.copy()
        names[names >= 0] = np.searchsorted(kept, names[names >= 0])
        return Basis(names, self.inverse)


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of the method.

    Attributes:
        share: (n,) x.
        price: (M,) the dual of each equation; <= 0 for the first R.
        basis: from which a later call can start.
    """

    share: FloatArray
    price: FloatArray
    basis: Basis


def solve(
    entries: FloatArray,
    cost: FloatArray,
    block: Int64Array,
    num_stages: int,
    num_blocks: int,
    last: Basis | None,
) -> Solution:
    """Solve the program, up to rounding and `MAX_PIVOTS`.

    Where columns differ so much in size that rounding makes every inverse useless, the result is the starting basis,
    one column of each block.

    Args:
        entries: (R, n) a, in a unit in which good solutions take about 1; R is a multiple of `num_stages`, whose rows
            follow each other.
        cost: (n,). block: (n,) in 0..B-1, each at least once.
        last: the basis of an earlier call, whose columns come first here, in its order; None: start from one
            column of each block.
    """
    num_rows, num = entries.shape
    # Columns are scaled to entries of at most 1: unscaled, one with large entries would drown the others in rounding.
    size = np.maximum(entries.max(axis=0, initial=0.0), 1.0)
    matrix = np.zeros((num_rows + num_blocks, num))
    matrix[:num_rows] = entries / size
    matrix[num_rows + block, np.arange(num)] = 1.0 / size
    cost = cost / size
    stage_of = np.repeat(np.arange(num_stages), num_rows // num_stages)
    right = np.ones(num_rows + num_blocks)
    right[:num_rows] = PERTURBATION * (
        0.5 + np.arange(num_rows) * 0.6180339887498949 % 1.0
    )  # evenly, in no order
    starting = _starting_basis(entries, size, block, right, stage_of)
    for start in (starting,) if last is None else (last, starting):
        names, inverse = start.names.copy(), start.inverse.copy()
        pivot_until_best(matrix, cost, stage_of, right, names, inverse, MAX_PIVOTS)
        if _residual(matrix, cost, stage_of, right, names, inverse) <= MAX_RESIDUAL:
            break
    else:
        names, inverse = starting.names, starting.inverse
    value = right @ inverse
    share = np.zeros(num)
    share[names[names >= 0]] = np.maximum(value[names >= 0], 0.0)
    return Solution(share / size, inverse @ _basic_cost(names, cost, num_rows), Basis(names, inverse))


def _starting_basis(
    entries: FloatArray, size: FloatArray, block: Int64Array, right: FloatArray, stage_of: Int64Array
) -> Basis:
    """Return the basis of one column per block, each the one that takes the least time alone."""
    num_rows = stage_of.shape[0]
    stage_ptr = np.flatnonzero(np.diff(stage_of, prepend=-1))
    alone = np.maximum.reduceat(entries, stage_ptr, axis=0).sum(axis=0)
    names, inverse = -1 - np.arange(right.shape[0]), np.eye(right.shape[0])
    for b in range(right.shape[0] - num_rows):
        mine = np.flatnonzero(block == b)
        chosen = mine[np.argmin(alone[mine])]
        names[num_rows + b] = chosen
        inverse[num_rows + b, num_rows + b] = size[chosen]
    times = entries[:, names[num_rows:]]  # (R, B)
    inverse[num_rows:, :num_rows] = -times.T
    over = times.sum(axis=1) - right[:num_rows]
    for k in range(stage_ptr.shape[0]):
        rows = np.flatnonzero(stage_of == k)
        busiest = rows[np.argmax(over[rows])]
        names[busiest] = -1 - num_rows - k
        inverse[:, busiest] *= -1.0
        others = rows[rows != busiest]
        inverse[:, others] += inverse[:, [busiest]]
    return Basis(names, inverse)


def _basic_cost(names: Int64Array, cost: FloatArray, num_rows: int) -> FloatArray:
    """Return the costs of the basic variables."""
    return np.where(names >= 0, cost[np.maximum(names, 0)], np.where(names < -num_rows, 1.0, 0.0))


def _residual(
    matrix: FloatArray,
    cost: FloatArray,
    stage_of: Int64Array,
    right: FloatArray,
    names: Int64Array,
    inverse: FloatArray,
) -> float:
    """Return the largest error of the equations and of the prices."""
    num_rows = stage_of.shape[0]
    value, price = right @ inverse, inverse @ _basic_cost(names, cost, num_rows)
    columns, slacks, times = names >= 0, (names < 0) & (names >= -num_rows), names < -num_rows
    left = matrix[:, names[columns]] @ value[columns]
    left[-1 - names[slacks]] += value[slacks]
    left[:num_rows] -= value[times][np.argsort(-names[times])][stage_of]
    wrong = cost[names[columns]] - price @ matrix[:, names[columns]]
    return float(max(np.abs(left - right).max(), np.abs(wrong).max(), -value[~times].min()))


@compiled(inline=False)
def pivot_until_best(
    matrix: FloatArray,
    cost: FloatArray,
    stage_of: Int64Array,
    right: FloatArray,
    names: Int64Array,
    inverse: FloatArray,
    most: int,
) -> int:
    """Pivot until the basis is optimal; `names` and `inverse` are updated in place. Return the number of pivots.

    The entering variable is chosen by Devex weights: P. M. J. Harris, "Pivot selection methods of the Devex LP code"
    (1973).
    """
    size, num = matrix.shape
    num_rows = stage_of.shape[0]
    value = np.zeros(size)
    reduced = np.zeros(num + num_rows)  # of the columns, then of the slacks
    for j in range(num):
        reduced[j] = cost[j]
    for c in range(size):
        price = 0.0
        for i in range(size):
            value[i] += right[c] * inverse[c, i]
            name = names[i]
            if name >= 0:
                price += cost[name] * inverse[c, i]
            elif name < -num_rows:
                price += inverse[c, i]
        if price != 0.0:
            for j in range(num):
                reduced[j] -= price * matrix[c, j]
        if c < num_rows:
            reduced[num + c] = -price
    weight = np.ones(num + num_rows)
    step, row = np.empty(size), np.empty(num + num_rows)
    for pivots in range(most):
        for i in range(size):
            if names[i] >= 0:
                reduced[names[i]] = 0.0
            elif names[i] >= -num_rows:
                reduced[num - 1 - names[i]] = 0.0
        enter, best = -1, 0.0
        for j in range(num + num_rows):
            if reduced[j] < -DUAL_TOLERANCE and reduced[j] * reduced[j] > best * weight[j]:
                enter, best = j, reduced[j] * reduced[j] / weight[j]
        if enter < 0:
            return pivots
        if enter >= num:
            for i in range(size):
                step[i] = inverse[enter - num, i]
        else:
            step[:] = 0.0
            for c in range(size):
                entry = matrix[c, enter]
                if entry != 0.0:
                    for i in range(size):
                        step[i] += entry * inverse[c, i]
        leave, length = -1, np.inf
        for i in range(size):
            if step[i] > MIN_PIVOT and names[i] >= -num_rows and max(value[i], 0.0) < length * step[i]:
                leave, length = i, max(value[i], 0.0) / step[i]
        if leave < 0:
            return pivots  # only by rounding: the program is bounded
        pivot = step[leave]
        for i in range(size):
            value[i] -= length * step[i]
        value[leave] = length
        step[leave] = 0.0
        row[:] = 0.0
        for c in range(size):
            share = inverse[c, leave] / pivot
            if share != 0.0:
                for i in range(size):
                    inverse[c, i] -= share * step[i]
                inverse[c, leave] = share
                for j in range(num):
                    row[j] += share * matrix[c, j]
                if c < num_rows:
                    row[num + c] = share
        gain, reference = reduced[enter], weight[enter]
        for j in range(num + num_rows):
            reduced[j] -= gain * row[j]
            weight[j] = max(weight[j], row[j] * row[j] * reference)
        left = names[leave]
        if left >= 0:
            weight[left] = max(reference / (pivot * pivot), 1.0)
        else:
            weight[num - 1 - left] = max(reference / (pivot * pivot), 1.0)
        names[leave] = enter if enter < num else num - 1 - enter
    return most

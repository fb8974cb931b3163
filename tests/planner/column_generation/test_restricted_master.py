"""The restricted master problem against programs solved from nothing, by scipy.

Cases                                     What must hold
----------------------------------------  -----------------------------------------------------------------
random columns, many sizes                the time of scipy, to 1e-7; shares >= 0 that add up to 1 per block
equal columns, columns of zeros, ties     the same
columns added step by step                the same after every step as if solved from nothing
columns ten orders of magnitude apart     the same, from nothing, and with the small ones added to the large ones
an unchanged program                      no pivot; one with more columns: fewer than from nothing
prices                                    each stage's add up to 1; with the blocks' duals they prove the time
programs with other numbers of workers    work, and change nothing
a price on hops                           of equal solutions the one that moves less
"""

from dataclasses import replace

import numpy as np
import pytest
from highspy import HighsStatus
from highspy._core import _Highs as Highs
from scipy.optimize import linprog

from dgcl.planner.column_generation.master.restricted_master import Columns, MasterSolution, solve_master

SIZES = [  # columns, stages, directions, blocks
    (1, 1, 1, 1),
    (4, 1, 3, 2),
    (9, 2, 5, 3),
    (40, 3, 12, 4),
    (150, 4, 30, 8),
    (300, 2, 58, 16),
]


def drawn(num: int, stages: int, directions: int, blocks: int, seed: int, share: float = 0.4) -> Columns:
    """Draw columns, some `share` of whose entries are not zero."""
    rng = np.random.default_rng(seed)
    times = rng.random((num, stages, directions)) * (rng.random((num, stages, directions)) < share)
    block = np.concatenate([np.arange(blocks), rng.integers(0, blocks, num - blocks)])
    hops = np.ceil(10.0 * times.sum(axis=(1, 2)))
    return Columns(times, hops, block.astype(np.int64), np.arange(num))


def least_time(columns: Columns, num_blocks: int, hop_cost: float = 0.0) -> float:
    """What scipy finds: the least time plus the price of all hops."""
    num, stages, directions = columns.times.shape
    upper = np.zeros((stages * directions, num + stages))
    upper[:, :num] = columns.times.reshape(num, -1).T
    upper[np.arange(stages * directions), num + np.arange(stages * directions) // directions] = -1.0
    equal = np.zeros((num_blocks, num + stages))
    equal[columns.block, np.arange(num)] = 1.0
    cost = np.concatenate([hop_cost * columns.hops, np.ones(stages)])
    found = linprog(cost, upper, np.zeros(stages * directions), equal, np.ones(num_blocks), method="highs")
    assert found.status == 0
    return float(found.fun)


def check_time(
    solution: MasterSolution,
    columns: Columns,
    num_blocks: int,
    hop_cost: float = 0.0,
    tolerance: float = 1e-7,
) -> None:
    """The shares are valid, the time is what they take, and scipy finds none that is better."""
    assert (solution.share >= 0.0).all()
    np.testing.assert_allclose(np.bincount(columns.block, solution.share, num_blocks), 1.0, rtol=1e-12)
    busy = np.tensordot(solution.share, columns.times, 1)
    assert solution.time == pytest.approx(busy.max(axis=1).sum(), rel=1e-12)
    found = solution.time + hop_cost * (solution.share @ columns.hops)
    assert found == pytest.approx(least_time(columns, num_blocks, hop_cost), rel=tolerance, abs=1e-12)
    assert (solution.weight >= 0.0).all()
    np.testing.assert_allclose(solution.weight.sum(axis=1), 1.0, rtol=1e-12)


def check(solution: MasterSolution, columns: Columns, num_blocks: int, hop_cost: float = 0.0) -> None:
    """As `check_time`; the prices prove that nothing is better, too."""
    check_time(solution, columns, num_blocks, hop_cost)
    paid = hop_cost * columns.hops + np.tensordot(columns.times, solution.weight, 2)
    cheapest = [paid[columns.block == b].min() for b in range(num_blocks)]
    found = solution.time + hop_cost * (solution.share @ columns.hops)
    assert sum(cheapest) == pytest.approx(found, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_best(size: tuple[int, int, int, int], seed: int):
    columns = drawn(*size, seed=seed)
    check(solve_master(columns, size[3], 0.0), columns, size[3])
    check(solve_master(columns, size[3], 1e-4), columns, size[3], 1e-4)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e12])
def test_units_do_not_matter(unit: float):
    columns = drawn(40, 3, 12, 4, seed=5)
    scaled = replace(columns, times=columns.times * unit)
    shares = solve_master(columns, 4, 0.0).share
    np.testing.assert_allclose(solve_master(scaled, 4, 0.0).share, shares, atol=1e-7)


@pytest.mark.parametrize("kind", ["equal", "zeros", "whole numbers", "one direction"])
def test_degenerate_columns(kind: str):
    columns = drawn(60, 2, 10, 5, seed=1)
    times = {
        "equal": np.repeat(columns.times[:1], 60, axis=0),
        "zeros": np.zeros_like(columns.times),
        "whole numbers": np.round(3.0 * columns.times),
        "one direction": columns.times * (np.arange(10) == 3),
    }[kind]
    columns = replace(columns, times=times)
    check(solve_master(columns, 5, 0.0), columns, 5)


@pytest.mark.sample(2, whole=True)
@pytest.mark.parametrize("size", SIZES[2:])
def test_columns_added_step_by_step(size: tuple[int, int, int, int]):
    blocks = size[3]
    columns, solution = drawn(*size, seed=10), None
    for iteration in range(6):
        if solution is not None:
            columns = columns.joined(drawn(*size, seed=11 + iteration))
        solution = solve_master(columns, blocks, 1e-5, solution)
        check(solution, columns, blocks, 1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_columns_far_apart_in_size(seed: int):
    small, large = drawn(60, 3, 12, 5, seed=seed), drawn(60, 3, 12, 5, seed=seed + 50)
    spread = 10.0 ** np.random.default_rng(seed).uniform(0.0, 10.0, 60)
    large = replace(large, times=large.times * spread[:, None, None])
    for first, second in ((large, small), (small, large)):
        both = first.joined(second)
        check_time(solve_master(both, 5, 0.0), both, 5, tolerance=1e-5)  # HiGHS allows itself more here
        solution = solve_master(first, 5, 0.0)
        check_time(solution, first, 5, tolerance=1e-5)
        check_time(solve_master(both, 5, 0.0, solution), both, 5, tolerance=1e-5)


def test_the_last_basis_saves_pivots():
    columns = drawn(300, 3, 30, 8, seed=6)
    solution = solve_master(columns, 8, 0.0)
    more = columns.joined(drawn(16, 3, 30, 8, seed=7))
    assert solve_master(columns, 8, 0.0, solution).pivots == 0
    assert 3 * solve_master(more, 8, 0.0, solution).pivots < solve_master(more, 8, 0.0).pivots


@pytest.mark.parametrize("threads", [0, 8])
def test_programs_with_other_numbers_of_workers(threads: int):
    columns, shares = drawn(150, 4, 30, 8, seed=9), []
    for _ in range(2):
        shares.append(solve_master(columns, 8, 0.0).share)
        other = Highs()
        other.setOptionValue("output_flag", False)
        other.setOptionValue("threads", threads)
        other.addVar(0.0, 1.0)
        assert other.run() == HighsStatus.kOk
    np.testing.assert_array_equal(*shares)


def test_among_equals_the_one_that_moves_less():
    times = np.ones((2, 1, 3))
    columns = Columns(times, np.array([5.0, 4.0]), np.zeros(2, np.int64), np.arange(2))
    np.testing.assert_allclose(solve_master(columns, 1, 1e-6).share, [0.0, 1.0])

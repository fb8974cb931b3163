"""The best fractional plan of a given number of stages: multiplicative weights first, then column generation.

Time is counted in rows per GB/s here: the seconds of a plan divided by row_bytes / 1e9, without latencies.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dgcl.planner.arrays import FloatArray, Int64Array
from dgcl.planner.column_generation.master.multiplicative_weights import answer_value, run_rounds
from dgcl.planner.column_generation.master.restricted_master import Columns, MasterSolution, solve_master
from dgcl.planner.column_generation.pricing.flows import Flows, Routes, empty_flows, link_prices, push
from dgcl.planner.column_generation.pricing.states import StateSpace
from dgcl.planner.column_generation.pricing.tree_program import cheapest_trees, empty_choices

MAX_BLOCKS = 16
STEP = 3.0  # of the first round, relative to the time aimed at; found by trial on five machines
BLENDS = (0.3, 0.8)  # shares of the best prices so far, blended with the program's duals, that are priced
ROUNDS_PER_BLEND, PRICING_STEP = 8, 0.3  # rounds of multiplicative weights from each blend, and their step
MAX_STALLED = 8  # iterations without a gain after which the solution counts as the best
MAX_COLUMNS = 640  # beyond, all but the cheapest half of it are dropped


@dataclass(frozen=True, eq=False)
class Problem:
    """States, what links load, and how owners are divided into blocks of columns."""

    space: StateSpace
    routes: Routes
    block_ptr: Int64Array

    @property
    def num_blocks(self) -> int:
        """Number of blocks B."""
        return int(self.block_ptr.shape[0]) - 1


def make_problem(space: StateSpace, routes: Routes) -> Problem:
    """Divide the owners into at most `MAX_BLOCKS` blocks of neighbours."""
    blocks = min(MAX_BLOCKS, space.world_size)
    return Problem(space, routes, np.linspace(0, space.world_size, blocks + 1).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Fractional:
    """A fractional plan of K stages and what bounds it.

    Attributes:
        time: its time in rows per GB/s.
        bound: no plan of at most K stages of this state space takes less.
        flows: how many rows take each option, fractions allowed.
    """

    num_stages: int
    time: float
    bound: float
    flows: Flows


class StageProgram:
    """The search for the best fractional plan of `num_stages` stages; it can be paused and continued.

    Attributes:
        bound: the best bound so far on plans of at most that many stages.
        solution: of the restricted master problem over the columns so far; None before the first.
    """

    def __init__(self, problem: Problem, num_stages: int) -> None:
        space = problem.space
        self.problem, self.num_stages = problem, num_stages
        self._choices = empty_choices(num_stages, space.world_size, space.num_sets)
        self._placeholder = empty_flows(space, 0)
        self._num_directions = problem.routes.cost.shape[0]
        self._num_links = problem.routes.base.shape[0]
        self._prices: list[FloatArray] = []
        self._columns: Columns | None = None
        self._center: FloatArray | None = None
        self._center_value = -1.0
        self.bound = 0.0
        self.solution: MasterSolution | None = None

    def is_feasible(self) -> bool:
        """Tell whether every row can arrive in this many stages over links with finite factors."""
        self._answer(np.full((self.num_stages, self._num_directions), 1.0 / self._num_directions))
        return answer_value(self._choices, self.problem.space.start) < np.inf

    def sample_columns(self, rounds: int, aim: float, samples: int, deadline: float = np.inf) -> None:
        """Run about `rounds` rounds of multiplicative weights and keep about `samples` answers as columns.

        A quarter of the samples comes from the first eighth of the rounds, where answers differ most, a quarter from
        the rest of the first half, and half from the second half, where answers are best. No round begins after the
        deadline.
        """
        shape = (self.num_stages, self._num_directions)
        score, mean = np.zeros(shape), np.zeros(shape)
        first = 0
        for last, wanted in (
            (rounds // 8, samples // 4),
            (rounds // 2, samples // 4),
            (rounds, samples // 2),
        ):
            every = (last - first) // max(1, wanted) // 2 * 2 + 1  # odd: answers often alternate between two
            while first + every <= last:
                batches = (last - first) // every if deadline == np.inf else 1
                self._run_rounds(score, first, first + batches * every, STEP / aim, every, mean)
                first += batches * every
                if time.perf_counter() > deadline:
                    return
            if last < rounds:
                mean[:] = 0.0
        self._try_center(mean / mean.sum(axis=1, keepdims=True))

    def solve_master_program(self) -> None:
        """Solve the restricted master problem over the columns so far; drop the worst of too many."""
        assert self._columns is not None
        if self._columns.block.shape[0] > MAX_COLUMNS and self.solution is not None:
            kept = self.solution.cheapest(MAX_COLUMNS // 2)
            fresh = np.arange(self.solution.share.shape[0], self._columns.block.shape[0])
            self._columns = self._columns.select(np.concatenate([kept, fresh]))
            self.solution = self.solution.with_columns(kept)
        self.solution = solve_master(
            self._columns, self.problem.num_blocks, float(self.problem.routes.base.max()), self.solution
        )

    def price_columns(self, aim: float) -> None:
        """Solve the pricing problem around blends of the best prices so far and the duals; keep the answers.

        At the duals alone answers oscillate between extremes; blends stabilise them.
        """
        assert self.solution is not None
        center = self.solution.weight if self._center is None else self._center
        for blend in BLENDS:
            weight = blend * center + (1.0 - blend) * self.solution.weight
            self._run_rounds(
                np.log(weight + 1e-7), 0, ROUNDS_PER_BLEND, PRICING_STEP / aim, 1, np.zeros_like(weight)
            )
            self._try_center(weight)

    def solve(
        self,
        floor: float,
        aim: float,
        tolerance: float,
        *,
        steps: int,
        hopeless: float = np.inf,
        progress: float = 0.0,
        deadline: float = np.inf,
    ) -> None:
        """Solve the master and the pricing problem in turn until the solution is good enough, or hopeless.

        Args:
            floor: a bound on plans of any number of stages; reaching (1 + tolerance) * floor is enough.
            aim: a rough idea of a good plan's time.
            tolerance: relative; reaching (1 + tolerance) * `bound` is enough, too.
            hopeless: give up when `bound` shows that no plan of this many stages is below.
            steps: largest number of iterations.
            progress: give up when an iteration takes off less than this share of the distance to the floor.
            deadline: on the clock of time.perf_counter; no iteration begins later.
        """
        if self.solution is None:
            self.solve_master_program()
        assert self.solution is not None
        best, since = self.solution.time, 0
        for _ in range(steps):
            if self.solution.time <= (1.0 + tolerance) * max(floor, self.bound) or self.bound >= hopeless:
                return
            if since >= MAX_STALLED or time.perf_counter() > deadline:
                return
            self.price_columns(aim)
            self.solve_master_program()
            reached = self.solution.time
            since = 0 if reached < best * (1.0 - 0.1 * tolerance) else since + 1
            if progress > 0.0 and reached - floor > (1.0 - progress) * (best - floor):
                return
            best = min(best, reached)

    def result(self) -> Fractional:
        """Return the solution of the master problem as flows."""
        assert self.solution is not None
        assert self._columns is not None
        space = self.problem.space
        flows = empty_flows(space, self.num_stages)
        rows = np.empty((self.num_stages, self._num_links))
        owners = np.repeat(np.arange(self.problem.num_blocks), np.diff(self.problem.block_ptr))
        used = np.flatnonzero(self.solution.share > 1e-9)
        share = self.solution.share[used]
        total = np.bincount(self._columns.block[used], weights=share, minlength=self.problem.num_blocks)
        for answer in np.unique(self._columns.answer[used]):
            mine = self._columns.answer[used] == answer
            part = np.zeros(self.problem.num_blocks)
            part[self._columns.block[used][mine]] = share[mine]
            part /= total
            cheapest_trees(space.family, space.moves, self._prices[answer], self._choices)
            start = space.start * part[owners][:, None]
            push(space.family, space.moves, self._choices, start, 0, space.world_size, rows, True, flows)
        return Fractional(self.num_stages, self.solution.time, self.bound, flows)

    def _answer(self, weight: FloatArray) -> FloatArray:
        """Solve the pricing problem for these weights, into `_choices`; return the link prices."""
        price = np.empty((self.num_stages, self._num_links))
        link_prices(weight, self.problem.routes, price)
        cheapest_trees(self.problem.space.family, self.problem.space.moves, price, self._choices)
        return price

    def _run_rounds(
        self, score: FloatArray, first: int, last: int, step: float, every: int, mean: FloatArray
    ) -> None:
        """Run rounds from `score` and keep every `every`-th answer; `score` and `mean` are updated."""
        space, shape = self.problem.space, (self.num_stages, self._num_directions)
        kept = (last - first) // every
        prices = np.empty((kept, self.num_stages, self._num_links))
        columns = np.empty((kept, self.problem.num_blocks, *shape))
        traffic = np.empty((kept, self.problem.num_blocks))
        run_rounds(
            space.family, space.moves, self._choices, space.start, self.problem.block_ptr, self.problem.routes,
            self._placeholder, score, first, last, step, every, prices, columns, traffic, mean,
        )  # fmt: skip
        self._add(prices, columns, traffic)

    def _add(self, prices: FloatArray, columns: FloatArray, traffic: FloatArray) -> None:
        """Keep answers: (n, K, L) prices with (n, B, K, C) columns and (n, B) hops."""
        num, blocks = traffic.shape
        answer = np.repeat(np.arange(len(self._prices), len(self._prices) + num), blocks)
        times = columns.reshape(num * blocks, self.num_stages, self._num_directions)
        fresh = Columns(times, traffic.reshape(-1), np.tile(np.arange(blocks), num), answer)
        self._prices.extend(prices)
        self._columns = fresh if self._columns is None else self._columns.joined(fresh)

    def _try_center(self, weight: FloatArray) -> None:
        """Take `weight` as the best prices if its bound is the best so far."""
        start = self.problem.space.start
        self._answer(weight)
        value = answer_value(self._choices, start)
        if value > self._center_value:
            self._center, self._center_value = weight, value
        price = np.empty((self.num_stages, self._num_links))
        routes = self.problem.routes
        link_prices(weight, routes._replace(base=np.zeros_like(routes.base)), price)
        cheapest_trees(self.problem.space.family, self.problem.space.moves, price, self._choices)
        self.bound = max(self.bound, answer_value(self._choices, start))

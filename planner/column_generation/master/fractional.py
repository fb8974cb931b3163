"""Finds the best plan of a given number of stages in which fractions of rows may be sent.

An *answer* is the set of cheapest trees at given prices. Multiplicative weights set the prices, but answers of single
rounds oscillate; only their averages converge, slowly. Some are therefore kept as *columns*, one per block of owners,
and a small linear program finds their best combination (restricted_master.py). `StageProgram` says what the rounds do;
the search pauses and continues it. Time is in rows per GB/s: seconds divided by row_bytes / 1e9, without latencies.
Called by `price_bound`, `aggregated`, `planner/column_generation/search/stage_search` and others. Free to change while
its bound is the linear program of all trees (`tests/planner/column_generation/test_price_bound.py`), and plans made
from it are exact on small machines (`tests/planner/column_generation/test_near_optimal.py`).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dgcl.planner.array_types import FloatArray, Int64Array
from dgcl.planner.column_generation.master.restricted_master import Columns, MasterSolution, solve_master
from dgcl.planner.column_generation.pricing.flows import (
    PushBuffer,
    Routes,
    add_busy_times,
    link_prices,
    push,
    push_buffer,
)
from dgcl.planner.column_generation.pricing.states import Moves, StateSpace, SubsetFamily
from dgcl.planner.column_generation.pricing.tree_program import Choices, cheapest_trees, empty_choices
from dgcl.planner.planner_compiled import compiled

MIN_SHARE = 1e-9  # answers with a smaller share are left out
MAX_BLOCKS = 16
STEP = 3.0  # of the first round, relative to the time aimed at; found by trial on five machines
BLENDS = (0.3, 0.8)  # shares of the best prices so far, blended with the program's duals, that are priced
ROUNDS_PER_BLEND, PRICING_STEP = 8, 0.3  # rounds of multiplicative weights from each blend, and their step
MAX_STALLED = 8  # iterations without a gain after which the solution counts as the best


def soft_weights(score: FloatArray) -> FloatArray:
    """Return the softmax of `score` (K, C) in each stage."""
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True), np.float64)


class Pricing:
    """Answers weights of (stage, direction) pairs, K stages and C directions, with the cheapest trees of all rows."""

    def __init__(self, space: StateSpace, routes: Routes, num_stages: int) -> None:
        self._space, self._routes, self._shape = space, routes, (num_stages, routes.cost.shape[0])
        self._choices = empty_choices(num_stages, space)
        self._buffer = push_buffer(num_stages, space.family, routes.base.shape[0])

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
            self._buffer,
            columns,
            hops,
        )
        return columns, hops


@compiled(allocates=False)
def answer_columns(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    start: FloatArray,
    block_ptr: Int64Array,
    routes: Routes,
    buffer: PushBuffer,
    columns: FloatArray,
    hops: FloatArray,
) -> None:
    """Add to `columns` (B, K, C) the busy times that each block's rows cause; set `hops` (B,)."""
    rows = buffer.link_rows
    for b in range(block_ptr.shape[0] - 1):
        push(family, moves, choices, start, block_ptr[b], block_ptr[b + 1], buffer)
        add_busy_times(rows, routes, columns[b])
        hops[b] = 0.0
        for k in range(rows.shape[0]):
            for link in range(rows.shape[1]):
                hops[b] += rows[k, link]


@dataclass(frozen=True, eq=False)
class Problem:
    """States, and what links load.

    Attributes:
        space, routes: these.
        latency_unit: time units of `routes` in a second: rows per GB/s, 1e9 / row_bytes.
    """

    space: StateSpace
    routes: Routes
    latency_unit: float

    @property
    def num_blocks(self) -> int:
        """Number of blocks B of columns."""
        return min(MAX_BLOCKS, self.space.world_size)

    @cached_property
    def block_ptr(self) -> Int64Array:
        """How owners are divided into blocks of neighbours, (B+1,)."""
        return np.linspace(0, self.space.world_size, self.num_blocks + 1).astype(np.int64)


class StageProgram:
    """The search for the best fractional plan of `num_stages` stages; it can be paused and continued.

    The problem is a game. One player chooses for each stage k a price vector w(k, .) >= 0 over connection-directions
    with sum 1; the other answers with the trees that are cheapest when a row over connection-direction c in stage k
    costs w(k, c) / bandwidth(c). The value of the game is the least time of any fractional plan with that many stages.
    Each round answers the current prices exactly (tree_program.py) and then raises the prices of what the answer keeps
    busy: w(k, c) is proportional to exp of the weighted sum of the times that c was busy in stage k (Arora, Hazan and
    Kale, "The multiplicative weights update method", 2012).

    Attributes:
        bound: the best bound so far on plans of at most that many stages.
        solution: of the restricted master problem over the columns so far; None before the first.
    """

    def __init__(self, problem: Problem, num_stages: int) -> None:
        self.problem, self.num_stages = problem, num_stages
        self._pricing = Pricing(problem.space, problem.routes, num_stages)
        self._prices: list[FloatArray] = []
        self._columns: Columns | None = None
        self._center: FloatArray | None = None
        self._center_value = -1.0
        self.bound = 0.0
        self.solution: MasterSolution | None = None

    def is_feasible(self) -> bool:
        """Tell whether every row can arrive in this many stages over links with finite factors."""
        num_directions = self.problem.routes.cost.shape[0]
        value, _ = self._pricing.answer(np.full((self.num_stages, num_directions), 1.0 / num_directions))
        return value < np.inf

    def sample_columns(self, rounds: int, aim: float, samples: int, deadline: float = np.inf) -> None:
        """Run about `rounds` rounds of multiplicative weights and keep about `samples` answers as columns.

        A quarter of the samples comes from the first eighth of the rounds, where answers differ most, a quarter from
        the rest of the first half, and half from the second half, where answers are best. No round begins after the
        deadline.
        """
        score, first = np.zeros((self.num_stages, self.problem.routes.cost.shape[0])), 0
        for last, kept in (
            (rounds // 8, samples // 4),
            (rounds // 2, samples // 4),
            (rounds, samples // 2),
        ):
            every = (last - first) // max(1, kept) // 2 * 2 + 1  # odd: answers often alternate between two
            last = first + (last - first) // every * every
            mean = self._run_rounds(score, first, last, STEP / aim, every, deadline)
            first = last
            if time.process_time() > deadline:
                return
        self._try_center(mean)

    def solve_master_program(self) -> None:
        """Solve the restricted master problem over the columns so far."""
        assert self._columns is not None
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
            self._run_rounds(np.log(weight + 1e-7), 0, ROUNDS_PER_BLEND, PRICING_STEP / aim, 1)
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
            deadline: on the clock of time.process_time; no iteration begins later.
        """
        if self.solution is None:
            self.solve_master_program()
        assert self.solution is not None
        best, since = self.solution.time, 0
        for _ in range(steps):
            if self.solution.time <= (1.0 + tolerance) * max(floor, self.bound) or self.bound >= hopeless:
                return
            if since >= MAX_STALLED or time.process_time() > deadline:
                return
            self.price_columns(aim)
            self.solve_master_program()
            reached = self.solution.time
            since = 0 if reached < best * (1.0 - 0.1 * tolerance) else since + 1
            if progress > 0.0 and reached - floor > (1.0 - progress) * (best - floor):
                return
            best = min(best, reached)

    def answers(self) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield the answers that the solution uses: prices (K, L), and the share of each block (B,) that follows."""
        assert self.solution is not None
        assert self._columns is not None
        used = np.flatnonzero(self.solution.share > MIN_SHARE)
        for answer in np.unique(self._columns.answer[used]):
            mine = used[self._columns.answer[used] == answer]
            share = np.zeros(self.problem.num_blocks)
            share[self._columns.block[mine]] = self.solution.share[mine]
            yield self._prices[answer], share

    def _run_rounds(
        self, score: FloatArray, first: int, last: int, step: float, every: int, deadline: float = np.inf
    ) -> FloatArray:
        """Run rounds of multiplicative weights from `score`, in place; return the mean weight.

        The answer of every `every`-th round is kept. Round t takes a step of step / sqrt(t + 1). No round begins after
        the deadline, once an answer is kept.
        """
        everyone, mean = np.array([0, self.problem.space.world_size]), np.zeros_like(score)
        for t in range(first, last):
            weight = soft_weights(score)
            _, price = self._pricing.answer(weight)
            kept = (t - first) % every == every - 1
            times, hops = self._pricing.columns(self.problem.block_ptr if kept else everyone)
            if kept:
                block = np.arange(self.problem.num_blocks)
                fresh = Columns(times, hops, block, np.full_like(block, len(self._prices)))
                self._prices.append(price)
                self._columns = fresh if self._columns is None else self._columns.joined(fresh)
            score += step / np.sqrt(t + 1.0) * times.sum(axis=0)
            mean += weight
            if kept and time.process_time() > deadline:
                break
        mean /= mean.sum(axis=1, keepdims=True)
        return mean

    def _try_center(self, weight: FloatArray) -> None:
        """Take `weight` as the best prices if its bound is the best so far."""
        routes = self.problem.routes
        value, _ = self._pricing.answer(weight)
        if value > self._center_value:
            self._center, self._center_value = weight, value
        value, _ = self._pricing.answer(weight, routes._replace(base=np.zeros_like(routes.base)))
        self.bound = max(self.bound, value)

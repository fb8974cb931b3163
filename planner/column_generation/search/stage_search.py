"""Searches plans of two and more stages for the fastest, with a proven bound, for ``auto`` and ``optimal``.

It tries numbers of stages in turn, and gives one up when its own bound shows that it cannot be good enough; the comment
below has all steps. On more than two dozen devices it plans them in groups (grouped.py).
Called by `planner/methods/auto` and `planner/methods/optimal`. Free to change while small machines are planned exactly
and eight devices within 1 % of the bound (`tests/planner/column_generation/test_near_optimal.py`), and plans of odd
clusters are never slower than peer-to-peer (`tests/planner/column_generation/test_odd_clusters.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.column_generation.improvement.reparent import reparent
from dgcl.planner.column_generation.improvement.tree_exchange import improve
from dgcl.planner.column_generation.master.fractional import Problem, StageProgram
from dgcl.planner.column_generation.master.price_bound import STEPS
from dgcl.planner.column_generation.pricing.device_groups import (
    MAX_ALL_LINKS,
    grouped_bound,
    least_stages,
    plan_states,
)
from dgcl.planner.column_generation.pricing.flows import Routes, latency_factor
from dgcl.planner.column_generation.rounding.bundles import assign_vertices, make_bundles, whole_forest
from dgcl.planner.column_generation.search.grouped import best_grouped_plan
from dgcl.planner.column_generation.search.incumbent import MIN_GAIN, Incumbent, ProvenBounds
from dgcl.planner.cost import predicted_seconds

if TYPE_CHECKING:
    from dgcl.planner.array_types import FloatArray
    from dgcl.planner.trees import Trees

HOP_SHARE = 2e-4  # share of the plan's time that one hop for every delivery may cost
MATERIAL = 1e-3  # latency of a link, as a share of the plan's time, from which latencies are planned for
ATTEMPTS = 3  # searches with latency factors that follow from the best plan so far
SAME = 0.95  # share of the time before an attempt above which the next one's factors would be nearly the same
REPARENT_ABOVE = 1.01  # bound of groups over the bound of all plans, above which edges are re-parented
FAR = 0.05  # gap above which they are in any case: with few stages, groups cost more than their bound shows
ROUGH_GAP = 0.02  # of a plan of groups, above which the bound is searched longer
POOR = 0.2  # gap of a plan of groups above which any link may be used, up to MAX_WORK (link, set) pairs
MAX_WORK = 20_000_000
POLISH_TREES = 60_000  # plans of more trees are not improved: there a row more or less does not matter
NEAR = 1.002  # times the bound: faster plans are not re-parented
FULL_ROUNDS = 60_000  # (device, split) pairs up to which the full number of rounds is run


# 1. Peer-to-peer, where possible, is the first plan; others are taken only if they are faster.
# 2. Bounds: cuts and distances (bounds/best.py), then the best stage-free prices (incumbent.py).
# 3. For K = 2, 3, 4, ... stages: the best fractional plan (master/fractional.py), in whole trees (rounding/bundles.py),
#    improved (improvement/). A number of stages is given up as soon as its own bound shows that it cannot be good
#    enough.
#    On more than two dozen devices the best plan for devices in groups (grouped.py), in whole rows from the start.
# 4. The bound over all numbers of stages together, with latencies (incumbent.py).
# Times are in seconds. The modules below count rows per GB/s; `unit` is the number of seconds in one.


class StageSearch:
    """Searches plans of two and more stages for an incumbent.

    Attributes:
        incumbent: the best plan and bound so far.
        space: the states.
        grouped: whether there are too many devices to use every link.
        group_bound: bound on plans in which rows cross to each group once, in rows per GB/s.
        may_reparent: whether that bound is so far above the others that edges are re-parented.
        proven: bounds with the latency factors of this attempt.
    """

    proven: ProvenBounds

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent, self.effort = incumbent, incumbent.effort
        self.space = plan_states(incumbent.relation, incumbent.topology)
        exact = self.space.is_exact
        self.grouped = not exact and incumbent.relation.world_size > MAX_ALL_LINKS
        self.group_bound = 0.0 if exact else grouped_bound(self.space)
        self.may_reparent = self.group_bound * incumbent.unit > REPARENT_ABOVE * incumbent.bound.seconds
        self.most = incumbent.relation.world_size - 1
        self.latency = incumbent.arrays.link_latency
        self.least_latency = float(self.latency.min(initial=np.inf)) / incumbent.unit

    def run(self) -> None:
        """Improve the incumbent's bound and plan."""
        incumbent = self.incumbent
        for _ in range(ATTEMPTS):
            before = incumbent.seconds
            self._attempt()
            if self._is_over() or not self._latency_is_material() or incumbent.seconds > SAME * before:
                break

    def _attempt(self) -> None:
        """Bound and plan with the latency factors that follow from the incumbent."""
        self.proven = ProvenBounds(self.incumbent, self.space, 0 if self.grouped else STEPS)
        if self.proven.stage_free.value == 0.0:  # no row leaves its group
            self.proven.search_within_groups()
        if self._is_over():
            return
        problem, least = self._problem(self.proven.factor), max(2, least_stages(self.space))
        if self.grouped:
            self._search_groups(problem, least)
            return
        usual = min(self.most, max(self.effort.usual_stages, least))
        numbers = list(range(least, usual + 1))
        if self.most > usual and self.space.is_exact:
            numbers.append(self.most)
        elif least >= usual:  # ways that are longer than they must be may be less busy
            numbers += [more for more in (least + least // 2, 2 * least) if usual < more <= self.most]
        self._stages(problem, numbers, usual)

    def _is_over(self) -> bool:
        """Tell whether the plan is good enough, or the time over."""
        return self.incumbent.is_good() or self.incumbent.is_late()

    def _latency_is_material(self) -> bool:
        """Tell whether latencies are worth planning for."""
        return float(self.latency.max(initial=0.0)) > MATERIAL * self.incumbent.seconds

    def _problem(self, factor: FloatArray) -> Problem:
        """Return the states with links that count rows by these latency factors."""
        incumbent, arrays = self.incumbent, self.incumbent.arrays
        hop_cost = HOP_SHARE * incumbent.bound.seconds / incumbent.unit / incumbent.relation.deliveries
        base = np.full(arrays.num_links, hop_cost)
        routes = Routes(arrays.link_ptr, arrays.link_directions, 1.0 / arrays.bandwidth, factor, base)
        return Problem(self.space, routes, 1.0 / incumbent.unit)

    # Numbers of stages

    def _stages(self, problem: Problem, numbers: list[int], usual: int) -> None:
        """Try numbers of stages in turn, then continue those that were given up too early."""
        incumbent, slack = self.incumbent, 2.0 * self.effort.tolerance
        left: list[StageProgram] = []
        for num_stages in numbers:
            if num_stages > usual and incumbent.gap() <= self.effort.fair:
                break
            if self._latency_is_material():
                self._try_short_stages(num_stages)
            program = self._program(problem, num_stages)
            if program is None:  # not without links whose latency alone is too long
                self.proven.add(num_stages, np.inf)
                if (
                    num_stages == numbers[-1] < self.most
                ):  # a row enters a group once, and has far to go in it
                    numbers.append(min(num_stages + num_stages // 2, self.most))
                continue
            if not self._pursue(program, last=num_stages >= usual):
                left.append(program)
            if self._is_over():
                return
            if not self.proven.is_near(program, slack):
                self.proven.search_within_groups()
            if incumbent.is_good() or self.proven.is_near(program, slack):
                return  # whole rows make the rest of the gap, not stages
        if self.least_latency == 0.0 and incumbent.gap() <= self.effort.fair:
            return  # without latencies fewer stages are never faster
        for program in sorted(left, key=self._least_time):
            if self._least_time(program) < incumbent.seconds * (1.0 - MIN_GAIN) and not incumbent.is_late():
                self._pursue(program, last=True)

    def _try_short_stages(self, num_stages: int) -> None:
        """Offer a plan made as if every stage took an even share of the incumbent's time.

        Its latency factors are closer to the truth than those that hold for every plan, but prove nothing.
        """
        share = self.incumbent.seconds / num_stages
        if share < np.inf:
            program = self._program(self._problem(latency_factor(self.latency, share)), num_stages)
            if program is not None:
                program.solve(
                    0.0,
                    self.proven.aim,
                    self.effort.tolerance,
                    steps=self.effort.steps,
                    deadline=self.incumbent.deadline,
                )
                self._offer(program)

    def _program(self, problem: Problem, num_stages: int) -> StageProgram | None:
        """Return the search for fractional plans with its first columns; None if some row cannot arrive."""
        program = StageProgram(problem, num_stages)
        if not program.is_feasible():
            return None
        splits = int(np.diff(self.space.family.pair_ptr).sum()) * max(map(len, self.space.groups))
        # Fewer where one is long.
        rounds = max(40, int(self.effort.rounds * min(1.0, FULL_ROUNDS / max(1, splits))))
        program.sample_columns(rounds, self.proven.aim, self.effort.samples, self.incumbent.deadline)
        return program

    def _pursue(self, program: StageProgram, last: bool) -> bool:
        """Solve a number of stages and offer its plan; return False if it was given up for a larger number.

        It is given up if it is not near the floor and does not approach it at a good pace. A number whose own bound
        is above the incumbent is useless.
        """
        incumbent, effort, floor = self.incumbent, self.effort, self.proven.floor
        faster = incumbent.seconds * (1.0 - MIN_GAIN) / incumbent.unit
        useless = faster - program.num_stages * self.least_latency
        hopeless = useless if last else min(useless, (1.0 + effort.tolerance) * floor)
        program.solve(
            floor, self.proven.aim, effort.tolerance, hopeless=hopeless, steps=effort.steps,
            progress=0.0 if last else effort.progress, deadline=incumbent.deadline,
        )  # fmt: skip
        self.proven.add(program.num_stages, program.bound)
        if program.bound >= useless:
            return True
        if not last and not self.proven.is_near(program, 2.0 * effort.tolerance):
            return False
        self._offer(program)
        return True

    def _least_time(self, program: StageProgram) -> float:
        """Return the least time that a plan of this program may still take."""
        return (program.bound + program.num_stages * self.least_latency) * self.incumbent.unit

    # Groups

    def _search_groups(self, problem: Problem, least: int) -> None:
        """Offer the best plan in which rows cross to each group once, re-parented where that helps.

        Where it is far from the bound, or no links are fast enough for one, rows may use any link.
        """
        incumbent = self.incumbent
        self._offer_grouped(problem, least)
        rough = self.effort.good if self.effort.thorough else ROUGH_GAP
        if incumbent.gap() > rough and not incumbent.is_late():
            self.proven.search_longer()  # perhaps the bound is poor, not the plan
            self.proven.search_within_groups()
        if incumbent.gap() > POOR and not incumbent.is_late():
            wider = plan_states(incumbent.relation, incumbent.topology, every_link=True)
            work = incumbent.arrays.num_links * wider.num_sets
            if wider.moves.ptr[-1] > problem.space.moves.ptr[-1] and work <= MAX_WORK:
                self._offer_grouped(replace(problem, space=wider), least)

    def _offer_grouped(self, problem: Problem, least: int) -> None:
        """Offer the best plan of groups over the links of `problem`, if every row can arrive over them."""
        incumbent = self.incumbent
        if incumbent.is_late():
            return
        bundles, floor = make_bundles(problem.space), max(self.proven.floor, self.group_bound)
        enough = (1.0 + self.effort.tolerance) * floor
        descent = best_grouped_plan(
            problem, bundles, least, floor=floor, aim=max(self.proven.aim, self.group_bound), enough=enough,
            thorough=self.effort.thorough, deadline=incumbent.deadline, needed=incumbent.seconds == np.inf,
        )  # fmt: skip
        if descent is not None:
            trees = assign_vertices(descent.best, bundles, problem.space)
            self._polish(trees, problem, descent.num_stages, enough)

    # Whole plans

    def _offer(self, program: StageProgram) -> None:
        """Round the best fractional plan to whole trees, improve them where that pays, and offer them."""
        problem, solution = program.problem, program.solution
        assert solution is not None
        bundles = make_bundles(problem.space)
        trees = assign_vertices(whole_forest(program.answers(), bundles, problem), bundles, problem.space)
        slack = self.effort.tolerance
        enough = max((1.0 + slack) * self.proven.floor, (1.0 + 0.5 * slack) * program.bound)
        if not self.effort.thorough:
            enough = max(enough, (1.0 + 0.5 * slack) * solution.time)
        self._polish(trees, problem, program.num_stages, enough)

    def _polish(self, trees: Trees, problem: Problem, num_stages: int, enough: float) -> None:
        """Offer trees of at most `num_stages` stages, as they are, exchanged and re-parented, each where that pays.

        Trees that take no longer than `enough`, in rows per GB/s, are not improved.
        """
        incumbent, unit = self.incumbent, self.incumbent.unit

        def seconds() -> float:
            return predicted_seconds(trees, incumbent.arrays, incumbent.options.row_bytes)

        incumbent.offer(trees, "prices")
        if trees.num_trees <= POLISH_TREES and not incumbent.is_late() and seconds() > enough * unit:
            trees = improve(
                trees, problem, num_stages, enough=enough, thorough=self.effort.thorough, deadline=incumbent.deadline,
            )  # fmt: skip
            incumbent.offer(trees, "prices")
        near = NEAR * incumbent.bound.seconds
        least_gap = -1.0 if self.may_reparent else np.inf if self.space.is_exact else FAR
        if incumbent.gap() > least_gap and not incumbent.is_late() and seconds() >= near:
            most = min(trees.num_stages + 1, self.most)
            trees = reparent(trees, problem, most, enough=near / unit, deadline=incumbent.deadline)
            incumbent.offer(trees, "prices")

"""The search for a near-optimal plan with its certificate, which `auto` and `optimal` share.

1. Peer-to-peer, where possible, is the first plan; others are taken only if they are faster.
2. Bounds: cuts and distances (bounds/best.py), then the best stage-free prices (dual_bound/price_bound.py).
3. For K = 2, 3, 4, ... stages: the best fractional plan (master/fractional.py), rounded to whole trees
   (rounding/assembly.py) and improved (improvement/exchange.py). A number of stages is given up as soon as its own
   bound shows that it cannot be good enough, and continued if no larger one turns out better. On more than two dozen
   devices the best plan for devices in groups instead (grouped.py), in whole rows from the start.
4. The bound over all numbers of stages together, with latencies (dual_bound/price_bound.py).

Times are in seconds here. The modules below count rows per GB/s; `unit` is the number of seconds in one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dgcl.planner.arrays import FloatArray
from dgcl.planner.column_generation.dual_bound.price_bound import (
    STEPS,
    PriceBound,
    bound_over_stages,
    bound_within_groups,
    excess_factor,
    stage_free_bound,
)
from dgcl.planner.column_generation.improvement.coordinate_descent import assign_vertices, make_bundles
from dgcl.planner.column_generation.improvement.exchange import FEW_TREES, improve
from dgcl.planner.column_generation.improvement.reparent import reparent
from dgcl.planner.column_generation.master.fractional import Problem, StageProgram, make_problem
from dgcl.planner.column_generation.pricing.flows import Routes, latency_factor
from dgcl.planner.column_generation.pricing.groups import (
    MAX_ALL_LINKS,
    grouped_bound,
    is_exact,
    least_stages,
    plan_states,
)
from dgcl.planner.column_generation.rounding.assembly import whole_trees
from dgcl.planner.column_generation.search.grouped import best_grouped_plan
from dgcl.planner.column_generation.search.incumbent import MIN_GAIN, Incumbent
from dgcl.planner.column_generation.search.integer_program import best_whole_plan, is_small
from dgcl.planner.cost import GIGA, predicted_seconds
from dgcl.planner.trees import Trees

HOP_SHARE = 2e-4  # share of the plan's time that one hop for every delivery may cost
POLISH_TREES = 60_000  # plans of more trees are not improved: there a row more or less does not matter
MATERIAL = 1e-3  # latency of a link, as a share of the plan's time, from which latencies are planned for
ATTEMPTS = 3  # searches with latency factors that follow from the best plan so far
REPARENT_ABOVE = (
    0.01  # gap above which edges are re-parented, if the bound of groups is above the bound by as much
)
FAR = 0.05  # gap above which they are in any case: with few stages, groups cost more than their bound shows
ROUGH_STEPS, ROUGH_GAP = 2, 0.02  # with re-parenting: linear programs, and the gap that is good enough
POOR = 0.2  # gap of a plan of groups above which any link may be used, up to MAX_WORK (link, set) pairs
MAX_WORK = 20_000_000
FULL_ROUNDS = 60_000  # (device, split) pairs up to which the full number of rounds is run


class StageSearch:
    """Searches plans of two and more stages for an incumbent.

    Attributes:
        found: the best plan and bound so far.
        unit: seconds in one row per GB/s.
        space: the states.
        exact: whether all devices form one group.
        grouped: whether there are too many devices to use every link.
        group_bound: bound on plans in which rows cross to each group once, in rows per GB/s.
        may_reparent: whether that bound is so far above the others that edges are re-parented.
        staged: bounds on plans of at most so many stages.
    """

    def __init__(self, found: Incumbent) -> None:
        self.found = found
        self.relation, self.topology, self.effort = found.relation, found.topology, found.effort
        self.arrays = found.topology.arrays()
        self.unit = found.options.row_bytes / GIGA
        self.space = plan_states(self.relation, self.topology)
        self.exact = is_exact(self.relation)
        self.grouped = not self.exact and self.relation.world_size > MAX_ALL_LINKS
        self.group_bound = 0.0 if self.exact else grouped_bound(self.space, self.topology)
        self.may_reparent = self.group_bound * self.unit > (1.0 + REPARENT_ABOVE) * found.bound.seconds
        self.staged: dict[int, float] = {}
        self.known_seconds = np.inf

    def run(self) -> None:
        """Improve the incumbent's bound and plan."""
        found, most = self.found, self.relation.world_size - 1
        for _ in range(ATTEMPTS):
            before = found.seconds
            self._attempt()
            if found.is_good() or found.is_late() or not self._latency_is_material():
                break
            if found.seconds > 0.95 * before:  # the factors would be nearly the same again
                break
        if is_small(self.relation, self.arrays) and not (found.is_good() or found.is_late()):
            scale = found.seconds / self.unit
            trees = best_whole_plan(self.relation, self.arrays, most, 1.0 / self.unit, scale, found.deadline)
            if trees is not None:
                found.offer(trees, "prices")

    def _attempt(self) -> None:
        """Bound and plan with the latency factors that follow from the incumbent."""
        found = self.found
        factor = excess_factor(self.topology, found.seconds)
        self.staged.clear()
        self.known_seconds = found.seconds
        self.stage_free = self._bound(factor, steps=0 if self.grouped else STEPS)
        self._bounded_within_groups = self.exact  # then all devices are nodes already
        self._raise_bound()
        if self.stage_free.value == 0.0:  # no row leaves its group
            self._bound_within_groups(factor)
        if not (found.is_good() or found.is_late()):
            self._stages(factor)

    def _bound(self, factor: FloatArray, steps: int) -> PriceBound:
        """Return the stage-free bound from prices."""
        found = self.found
        return stage_free_bound(
            self.relation, self.topology, self.space, factor, found.bound.seconds / self.unit, self._cuts(),
            0.2 * self.effort.tolerance, found.deadline, steps,
        )  # fmt: skip

    def _bound_within_groups(self, factor: FloatArray) -> None:
        """Raise the bound, once, by those inside single groups, where bounds between groups are not enough."""
        if not self._bounded_within_groups:
            self._bounded_within_groups = True
            self.stage_free = bound_within_groups(
                self.relation, self.topology, self.space, factor, self.stage_free,
                self.found.bound.seconds / self.unit, 0.2 * self.effort.tolerance, self.found.deadline,
            )  # fmt: skip
            self._raise_bound()

    def _latency_is_material(self) -> bool:
        """Tell whether latencies are worth planning for."""
        return float(self.arrays.link_latency.max(initial=0.0)) > MATERIAL * self.found.seconds

    def _problem(self, factor: FloatArray) -> Problem:
        """Return the states with links that count rows by these latency factors."""
        hop_cost = HOP_SHARE * self.found.bound.seconds / self.unit / self.relation.deliveries
        routes = Routes(
            self.arrays.link_ptr,
            self.arrays.link_directions,
            1.0 / self.arrays.bandwidth,
            factor,
            np.full(self.arrays.link_src.shape[0], hop_cost),
        )
        return make_problem(self.space, routes)

    def _stages(self, factor: FloatArray) -> None:
        """Try numbers of stages in turn, then continue those that were given up too early."""
        found, most, problem = self.found, self.relation.world_size - 1, self._problem(factor)
        least = max(2, least_stages(self.space))
        if self.grouped:
            self._search_groups(problem, least, factor)
            return
        usual = min(most, max(self.effort.usual_stages, least))
        numbers = list(range(least, usual + 1))
        if most > usual and self.exact:
            numbers.append(most)
        elif least >= usual:  # ways that are longer than they must be may be less busy
            numbers += [more for more in (least + least // 2, 2 * least) if usual < more <= most]
        if self.may_reparent and not self.effort.thorough:
            self._rough_stages(problem, numbers)
            return
        left: list[StageProgram] = []
        for num_stages in numbers:
            if num_stages > usual and found.gap() <= self.effort.fair:
                break
            if self._latency_is_material():
                self._try_short_stages(num_stages)
            program = StageProgram(problem, num_stages)
            if not program.is_feasible():  # not without links whose latency alone is too long
                self.staged[num_stages] = np.inf
                if num_stages == numbers[-1] < most:  # a row enters a group once, and has far to go in it
                    numbers.append(min(num_stages + num_stages // 2, most))
                continue
            program.sample_columns(self._rounds(), self._aim(), self.effort.samples, found.deadline)
            if not self._pursue(program, last=num_stages >= usual):
                left.append(program)
            if found.is_good() or found.is_late():
                return
            if not self._is_near(program, 2.0 * self.effort.tolerance):
                self._bound_within_groups(factor)
            if found.is_good() or self._is_near(program, 2.0 * self.effort.tolerance):
                return  # whole rows make the rest of the gap, not stages
        if self._least_latency() == 0.0 and found.gap() <= self.effort.fair:
            return  # without latencies fewer stages are never faster
        for program in sorted(left, key=self._least_time):
            if self._least_time(program) < found.seconds * (1.0 - MIN_GAIN) and not found.is_late():
                self._pursue(program, last=True)

    def _rough_stages(self, problem: Problem, numbers: list[int]) -> None:
        """Try numbers of stages with a rough fractional plan each, where re-parenting does the rest.

        Exact linear programs would take long, and do not cover rows that go on from one group to another.
        """
        found = self.found
        for num_stages in numbers:
            program = StageProgram(problem, num_stages)
            if not program.is_feasible():
                continue
            program.sample_columns(self._rounds(), self._aim(), self.effort.samples, found.deadline)
            program.solve(
                self._floor(), self._aim(), self.effort.tolerance, hopeless=np.inf, steps=ROUGH_STEPS,
                progress=0.0, deadline=found.deadline,
            )  # fmt: skip
            self._offer(program)
            if found.gap() <= max(self.effort.tolerance, ROUGH_GAP) or found.is_late():
                return

    def _try_short_stages(self, num_stages: int) -> None:
        """Offer a plan made as if every stage took an even share of the incumbent's time.

        Its latency factors are closer to the truth than those that hold for every plan, but prove nothing.
        """
        found = self.found
        share = found.seconds / num_stages
        if share == np.inf:
            return
        program = StageProgram(self._problem(latency_factor(self.arrays.link_latency, share)), num_stages)
        if program.is_feasible():
            program.sample_columns(self._rounds(), self._aim(), self.effort.samples, found.deadline)
            program.solve(
                0.0, self._aim(), self.effort.tolerance, hopeless=np.inf, steps=self.effort.steps, progress=0.0,
                deadline=found.deadline,
            )  # fmt: skip
            self._offer(program)

    def _pursue(self, program: StageProgram, last: bool) -> bool:
        """Solve a number of stages and offer its plan; return False if it was given up for a larger number.

        It is given up if it is not near the floor and does not approach it at a good pace. A number whose own bound
        is above the incumbent is useless.
        """
        found, floor = self.found, self._floor()
        useless = found.seconds * (1.0 - MIN_GAIN) / self.unit - program.num_stages * self._least_latency()
        hopeless = useless if last else min(useless, (1.0 + self.effort.tolerance) * floor)
        for number, tolerance in enumerate(self.effort.tolerances):
            final = number == len(self.effort.tolerances) - 1
            program.solve(
                floor, self._aim(), tolerance, hopeless=hopeless, steps=self.effort.steps,
                progress=0.0 if last else self.effort.progress, deadline=found.deadline,
            )  # fmt: skip
            if not final and self._is_near(program, 2.0 * tolerance):
                self._offer(program, coarse=True)
                if found.is_good():
                    break
        self.staged[program.num_stages] = program.bound
        self._raise_bound()
        if program.bound >= useless:
            return True
        if not last and not self._is_near(program, 2.0 * self.effort.tolerance):
            return False
        self._offer(program)
        return True

    def _offer(self, program: StageProgram, coarse: bool = False) -> None:
        """Round the best fractional plan to whole trees, improve them where that pays, and offer them.

        Many trees of a `coarse` solution, which a finer one will follow, are improved only a little.
        """
        problem, fractional = program.problem, program.result()
        trees = whole_trees(fractional.flows, problem.space, self.relation, self.arrays)
        slack = self.effort.tolerance
        enough = max((1.0 + slack) * self._floor(), (1.0 + 0.5 * slack) * program.bound)
        if not self.effort.thorough:
            enough = max(enough, (1.0 + 0.5 * slack) * fractional.time)
        self._polish_and_offer(trees, problem, program.num_stages, enough, coarse)

    def _search_groups(self, problem: Problem, least: int, factor: FloatArray) -> None:
        """Offer the best plan in which rows cross to each group once, re-parented where that helps.

        Where it is far from the bound, or no links are fast enough for one, rows may use any link.
        """
        found = self.found
        self._offer_grouped(problem, least)
        wanted = self.effort.good if self.effort.thorough else ROUGH_GAP
        if found.gap() > wanted and not found.is_late():  # perhaps the bound is poor, not the plan
            self.stage_free = max(self.stage_free, self._bound(factor, STEPS), key=lambda bound: bound.value)
            self._raise_bound()
            self._bound_within_groups(factor)
        if found.gap() > POOR and not found.is_late():
            wider = plan_states(self.relation, self.topology, every_link=True)
            work = self.arrays.num_links * wider.num_sets
            if wider.moves.ptr[-1] > problem.space.moves.ptr[-1] and work <= MAX_WORK:
                self._offer_grouped(replace(problem, space=wider), least)

    def _offer_grouped(self, problem: Problem, least: int) -> None:
        """Offer the best plan of groups over the links of `problem`, if every row can arrive over them."""
        found, slack = self.found, self.effort.tolerance
        if found.is_late():
            return
        bundles, floor = make_bundles(problem.space), max(self._floor(), self.group_bound)
        best = best_grouped_plan(
            problem, bundles, self.arrays, least, floor=floor, aim=max(self._aim(), self.group_bound),
            enough=(1.0 + slack) * floor, latency_unit=1.0 / self.unit, thorough=self.effort.thorough,
            deadline=found.deadline, needed=found.seconds == np.inf,
        )  # fmt: skip
        if best is not None:
            trees = assign_vertices(best.forest(), bundles, problem.space, self.relation, self.arrays)
            self._polish_and_offer(trees, problem, best.num_stages, (1.0 + slack) * floor)

    def _polish_and_offer(
        self, trees: Trees, problem: Problem, num_stages: int, enough: float, coarse: bool = False
    ) -> None:
        """Offer whole trees, improved where that pays, and re-parented."""
        found, relation = self.found, self.relation
        found.offer(trees, "prices")
        small = trees.num_trees <= POLISH_TREES and not found.is_late()
        if small and predicted_seconds(trees, self.arrays, found.options.row_bytes) > enough * self.unit:
            polished = improve(
                trees, problem, relation, self.arrays, num_stages,
                enough=enough, latency_unit=1.0 / self.unit,
                thorough=self.effort.thorough and not (coarse and trees.num_trees > FEW_TREES),
                deadline=found.deadline,
            )  # fmt: skip
            found.offer(polished, "prices")
            trees = polished
        self._reparent(trees, problem)

    def _reparent(self, trees: Trees, problem: Problem) -> None:
        """Offer the trees with rows that go on from one group to another."""
        found = self.found
        wanted = self.may_reparent or (not self.exact and found.gap() > FAR)
        near = (1.0 + REPARENT_ABOVE) * found.bound.seconds
        if (
            not wanted
            or found.is_late()
            or predicted_seconds(trees, self.arrays, found.options.row_bytes) < near
        ):
            return
        reparented = reparent(
            trees, problem, self.relation, self.arrays, min(trees.num_stages + 1, self.relation.world_size - 1),
            enough=near / self.unit, latency_unit=1.0 / self.unit, deadline=found.deadline,
        )  # fmt: skip
        found.offer(reparented, "prices")

    def _is_near(self, program: StageProgram, slack: float) -> bool:
        """Tell whether a program's solution is within a fraction of the bound on any number of stages."""
        assert program.solution is not None
        return program.solution.time <= (1.0 + slack) * self._floor()

    def _least_time(self, program: StageProgram) -> float:
        """Return the least time that a plan of this program may still take."""
        return program.bound * self.unit + program.num_stages * self._least_latency() * self.unit

    def _least_latency(self) -> float:
        """Return the smallest latency of a link, in rows per GB/s."""
        return float(self.arrays.link_latency.min(initial=np.inf)) / self.unit

    def _floor(self) -> float:
        """Return the bound on any number of stages, in rows per GB/s, less the smallest latency of each stage."""
        return max(self.stage_free.value, self._cuts())

    def _cuts(self) -> float:
        """Return the incumbent's bound in rows per GB/s; 0 where latencies are part of it."""
        return 0.0 if self.arrays.link_latency.any() else self.found.bound.seconds / self.unit

    def _aim(self) -> float:
        """Return a rough idea of a good plan's time, in rows per GB/s, > 0."""
        return (
            self.stage_free.value
            if 0.0 < self.stage_free.value < np.inf
            else self.found.bound.seconds / self.unit
        )

    def _raise_bound(self) -> None:
        """Raise the incumbent's bound to what is proven so far."""
        self.found.raise_bound(
            bound_over_stages(
                self.stage_free,
                self.staged if self.exact else {},
                self.found.direct_seconds,
                self.known_seconds,
                self.topology,
                self.relation.world_size,
                self.found.options.row_bytes,
            )
        )

    def _rounds(self) -> int:
        """Return the number of rounds: fewer where one takes long."""
        space = self.space
        splits = int(np.diff(space.family.pair_ptr).sum()) * max(len(group) for group in space.groups)
        return max(40, int(self.effort.rounds * min(1.0, FULL_ROUNDS / max(1, splits))))

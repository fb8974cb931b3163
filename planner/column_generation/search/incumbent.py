"""Keeps the best plan and the best lower bound of a search, and its limits of work and time.

Peer-to-peer comes first, where every pair that needs rows has a link; a plan with more stages must be faster by
`MIN_GAIN`. `ProvenBounds` raises the bound from prices, for each number of stages and for all; how much more rows count
over links of high latency follows from the time of the best plan so far. `Effort` says how much a search may do.
Called by `stage_search`, `planner/methods/auto` and `planner/methods/optimal`. Free to change while the optimum is
never below the bound (`tests/planner/column_generation/test_price_bound.py`), and a time limit returns a plan no slower
than peer-to-peer (`tests/planner/column_generation/test_near_optimal.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.bounds.best import best_bound
from dgcl.planner.bounds.stages import StageTimes, stage_times
from dgcl.planner.column_generation.master.price_bound import (
    STEPS,
    PriceBound,
    bound_over_stages,
    bound_within_groups,
    excess_factor,
    price_bound,
    stage_free_nodes,
)
from dgcl.planner.cost import GIGA, direct_seconds, predicted_seconds
from dgcl.planner.direct_trees import direct_trees
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.trees import Bound, Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import StageProgram
    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.relation import Relation
    from dgcl.topology import Topology

MANY_DEVICES = 64  # above, column generation takes minutes, and finds nothing better than plans by machines
# After the search a plan is ordered, proved, priced and described, with its links: seconds for each of them, which
# matter on more than MANY_DEVICES.
AFTER_LINK, AFTER_DELIVERY = 4e-6, 1e-7
MIN_GAIN = 2e-4  # relative; a plan with more stages must be faster by this much


@dataclass(frozen=True)
class Effort:
    """How much work a search may do.

    Attributes:
        tolerance: relative distance from the bound to which fractional plans are solved and whole ones polished.
        enough: relative distance between plan and bound at which the search ends; None: `tolerance`.
        rounds, samples: of multiplicative weights, and answers kept of them.
        steps: largest number of linear programs for each number of stages.
        progress: share of the distance to the bound that a step must take off while a larger number of stages is
            still to be tried.
        usual_stages: numbers of stages tried as a matter of course; world_size - 1 only while the gap is
            above `fair`.
        fair: see `usual_stages`.
        thorough: whether to improve whole plans as long as that helps.
    """

    tolerance: float
    enough: float | None = None
    rounds: int = 100
    samples: int = 16
    steps: int = 12
    progress: float = 0.1
    usual_stages: int = 4
    fair: float = 0.01
    thorough: bool = False

    @property
    def good(self) -> float:
        """Relative distance between plan and bound at which the search ends."""
        return self.tolerance if self.enough is None else self.enough


class Incumbent:
    """The best plan and the best bound so far."""

    def __init__(self, relation: Relation, topology: Topology, options: PlanOptions, effort: Effort) -> None:
        started = time.process_time()
        self.relation, self.topology, self.options, self.effort = relation, topology, options, effort
        self.arrays, self.unit = topology.arrays(), options.row_bytes / GIGA  # seconds in one row per GB/s
        self.stage_times: StageTimes | None = None
        if relation.num_classes and len({device.machine for device in topology.devices}) > 1:
            self.stage_times = stage_times(relation, topology, options.row_bytes)
            cuts, own = self.stage_times.cuts, self.stage_times.bound()
            self.bound = best_bound(relation, topology, options.row_bytes, own, cuts=cuts)
        else:
            self.bound = best_bound(relation, topology, options.row_bytes)
        limit = np.inf if options.time_limit is None else 0.9 * options.time_limit
        if relation.world_size > MANY_DEVICES:
            links, deliveries = self.arrays.num_links, int(relation.num_dests().sum())
            limit -= AFTER_LINK * links + AFTER_DELIVERY * deliveries
        self.deadline = started + limit
        self.direct_seconds = direct_seconds(relation, topology, options.row_bytes)
        self.seconds = np.inf
        self._trees: Trees | None = None
        self.offered: list[Trees] = []  # of several machines, not slower than peer-to-peer; copies share it
        if self.direct_seconds is not None:
            self.seconds = self.direct_seconds  # its trees are made only if nothing is faster
            if relation.world_size <= 2:
                self.raise_bound(Bound(self.direct_seconds, "one stage is all that 2 ranks may use"))

    def offer(self, trees: Trees, made_by: str) -> None:
        """Take `trees` if they are faster, noticeably so if they have more stages."""
        trees = replace(trees, made_by=made_by)
        seconds = predicted_seconds(trees, self.arrays, self.options.row_bytes)
        if self.stage_times is not None and seconds <= (self.direct_seconds or np.inf):
            self.offered.append(trees)
        more = self.seconds < np.inf and trees.num_stages > (self._trees.num_stages if self._trees else 1)
        if seconds < self.seconds * (1.0 - MIN_GAIN if more else 1.0):
            self._trees, self.seconds = trees, seconds

    def raise_bound(self, bound: Bound) -> None:
        """Take `bound` if it is better."""
        if bound.seconds > self.bound.seconds:
            self.bound = bound

    def gap(self) -> float:
        """Return how far the plan is above the bound, relatively."""
        return self.seconds / self.bound.seconds - 1.0 if self.bound.seconds > 0 else 0.0

    def is_good(self) -> bool:
        """Tell whether the gap is one at which the search ends."""
        return self.gap() <= self.effort.good

    def is_late(self) -> bool:
        """Tell whether the time limit is over and a plan has been found."""
        return self.seconds < np.inf and time.process_time() > self.deadline

    def trees(self) -> Trees:
        """Return the best plan with the best bound."""
        if self._trees is None:
            assert self.direct_seconds is not None
            return replace(direct_trees(self.relation), made_by="direct", bound=self.bound)
        return replace(self._trees, bound=self.bound)


class ProvenBounds:
    """Bounds on any number of stages, and on each; the incumbent's bound is raised by all of them.

    Args:
        incumbent: the one, whose time decides the latency factors.
        space: the states.
        steps: linear programs of the first bound.

    Attributes:
        factor: (L,) the latency factors of links.
        stage_free: the bound on plans of any number of stages, from prices.
    """

    def __init__(self, incumbent: Incumbent, space: StateSpace, steps: int) -> None:
        self._incumbent, self._space, self._known = incumbent, space, incumbent.seconds
        self._within = space.is_exact  # then all devices are nodes already
        self._staged: dict[int, float] = {}
        self.factor = excess_factor(incumbent.topology, incumbent.seconds)
        self.stage_free = self._from_prices(steps)
        self._raise_bound()

    @property
    def floor(self) -> float:
        """The bound on any number of stages, less the smallest latency of each stage."""
        return max(self.stage_free.value, self._cuts)

    @property
    def aim(self) -> float:
        """A rough idea of a good plan's time, > 0."""
        value = self.stage_free.value
        return value if 0.0 < value < float("inf") else self._incumbent.bound.seconds / self._incumbent.unit

    def is_near(self, program: StageProgram, slack: float) -> bool:
        """Tell whether a program's solution is within a fraction of the bound on any number of stages."""
        assert program.solution is not None
        return program.solution.time <= (1.0 + slack) * self.floor

    def add(self, num_stages: int, bound: float) -> None:
        """Take a bound on plans of at most so many stages."""
        self._staged[num_stages] = bound
        self._raise_bound()

    def search_longer(self) -> None:
        """Raise the bound by linear programs, where the first was made without."""
        self.stage_free = max(self.stage_free, self._from_prices(STEPS), key=lambda bound: bound.value)
        self._raise_bound()

    def search_within_groups(self) -> None:
        """Raise the bound, once, by those inside single groups, where bounds between groups are not enough."""
        if not self._within:
            self._within, incumbent = True, self._incumbent
            self.stage_free = bound_within_groups(
                self._space, self.factor, self.stage_free, incumbent.bound.seconds / incumbent.unit,
                0.2 * incumbent.effort.tolerance, incumbent.deadline,
            )  # fmt: skip
            self._raise_bound()

    @property
    def _cuts(self) -> float:
        """The incumbent's bound; 0 where latencies are part of it."""
        incumbent = self._incumbent
        return 0.0 if incumbent.arrays.link_latency.any() else incumbent.bound.seconds / incumbent.unit

    def _from_prices(self, steps: int) -> PriceBound:
        incumbent = self._incumbent
        return price_bound(
            incumbent.relation, incumbent.arrays, stage_free_nodes(self._space), factor=self.factor,
            aim=incumbent.bound.seconds / incumbent.unit, known=self._cuts,
            tolerance=0.2 * incumbent.effort.tolerance, deadline=incumbent.deadline, steps=steps,
        )  # fmt: skip

    def _raise_bound(self) -> None:
        incumbent = self._incumbent
        incumbent.raise_bound(
            bound_over_stages(
                self.stage_free, self._staged if self._space.is_exact else {}, incumbent.direct_seconds,
                self._known, incumbent.topology, incumbent.options.row_bytes,
            )
        )  # fmt: skip

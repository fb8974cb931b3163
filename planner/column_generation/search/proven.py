"""Bounds that the search proves, with the latency factors that follow from one plan's time; in rows per GB/s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.column_generation.dual_bound.price_bound import (
    STEPS,
    PriceBound,
    bound_over_stages,
    bound_within_groups,
    excess_factor,
    stage_free_bound,
)
from dgcl.planner.column_generation.pricing.groups import is_exact

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import StageProgram
    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.column_generation.search.incumbent import Incumbent


class ProvenBounds:
    """Bounds on any number of stages, and on each; the incumbent's bound is raised by all of them.

    Args:
        found: the incumbent, whose time decides the latency factors.
        space: the states.
        steps: linear programs of the first bound.

    Attributes:
        factor: (L,) the latency factors of links.
        stage_free: the bound on plans of any number of stages, from prices.
    """

    def __init__(self, found: Incumbent, space: StateSpace, steps: int) -> None:
        self._found, self._space, self._known = found, space, found.seconds
        self._exact = self._within = is_exact(found.relation)  # then all devices are nodes already
        self._staged: dict[int, float] = {}
        self.factor = excess_factor(found.topology, found.seconds)
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
        return value if 0.0 < value < float("inf") else self._found.bound.seconds / self._found.unit

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
            self._within, found = True, self._found
            self.stage_free = bound_within_groups(
                found.relation, found.topology, self._space, self.factor, self.stage_free,
                found.bound.seconds / found.unit, 0.2 * found.effort.tolerance, found.deadline,
            )  # fmt: skip
            self._raise_bound()

    @property
    def _cuts(self) -> float:
        """The incumbent's bound; 0 where latencies are part of it."""
        found = self._found
        return 0.0 if found.arrays.link_latency.any() else found.bound.seconds / found.unit

    def _from_prices(self, steps: int) -> PriceBound:
        found = self._found
        return stage_free_bound(
            found.relation, found.topology, self._space, self.factor, found.bound.seconds / found.unit, self._cuts,
            0.2 * found.effort.tolerance, found.deadline, steps,
        )  # fmt: skip

    def _raise_bound(self) -> None:
        found = self._found
        found.raise_bound(
            bound_over_stages(
                self.stage_free, self._staged if self._exact else {}, found.direct_seconds, self._known, found.topology,
                found.relation.world_size, found.options.row_bytes,
            )
        )  # fmt: skip

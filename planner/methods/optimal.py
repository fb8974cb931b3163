"""The tightest certificate and the best plan, at several times the effort of `auto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.plan import PlanOptions, Trees
from dgcl.planner.prices.effort import Effort
from dgcl.planner.prices.search import search
from dgcl.planner.relation import Relation

if TYPE_CHECKING:
    from dgcl.topology import Topology


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return a plan found by the same search as `auto`'s, carried to a tenth of `options.gap`.

    Columns are added until the linear program over all fractional plans is solved, for up to world_size - 1
    stages, and the plan is polished towards its value.

    Raises:
        ValueError: a pair that needs rows cannot be reached even through relays.
    """
    tolerance = 0.1 * options.gap
    effort = Effort(
        tolerance, rounds=400, steps=100, progress=0.05, usual_stages=6, fair=tolerance, thorough=True
    )
    return search(relation, topology, options, effort)

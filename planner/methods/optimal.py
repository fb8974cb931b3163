"""A plan within the gap that was asked for, where `auto` ends a little above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.column_generation.pricing.groups import ALL_LINKS
from dgcl.planner.column_generation.search.effort import Effort
from dgcl.planner.column_generation.search.stage_search import StageSearch
from dgcl.planner.methods.auto import searched
from dgcl.planner.options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology

# Of price updates; each makes other mixtures, and which of them round best is chance.
ROUNDS = (100, 300, 400, 200)
FINER = 0.1  # share of the gap to which the fractional plan is solved: whole rows need the rest


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return a plan within `options.gap` of the proven bound, at several times the effort of `auto` if need be.

    First comes all that `auto` does, so the plan is never slower than `auto`'s (without a time limit). While it is
    not within the gap, columns are added until the linear program over all fractional plans is all but solved, for
    up to world_size - 1 stages; several mixtures are made whole plans; and these are polished as long as that
    helps. Up to four times, from other prices, then the best is returned with the gap that it has. On more than
    24 devices, where `auto` sweeps over groups instead, there are more sweeps, once.

    Raises:
        ValueError: a pair that needs rows cannot be reached even through relays.
    """
    found = searched(relation, topology, options)
    if relation.world_size > 2:
        for rounds in ROUNDS if relation.world_size <= ALL_LINKS else ROUNDS[:1]:
            if found.gap() <= options.gap or found.is_late():
                break
            found.effort = Effort(
                FINER * options.gap, enough=options.gap, rounds=rounds, steps=100, progress=0.05, usual_stages=6,
                fair=options.gap, thorough=True,
            )  # fmt: skip
            StageSearch(found).run()
    return found.trees()

"""The planning method "optimal": improves the plan of "auto" until the gap is reached, at several times its effort.

The gap (``options.gap``) is how far above the proven lower bound a plan may be, relatively.
Called by `registry`, by name. Free to change while its plans are never slower than those of "auto", and their bounds
never lower (`tests/planner/methods/test_optimal.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.column_generation.pricing.device_groups import MAX_ALL_LINKS
from dgcl.planner.column_generation.search.incumbent import Effort
from dgcl.planner.column_generation.search.stage_search import StageSearch
from dgcl.planner.methods.auto import fastest, searched
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology

# Of price updates. Each number gives other solutions of the restricted master problem; which rounds best is chance.
ROUNDS = (100, 300, 400, 200)
FINER = 0.1  # share of the gap to which the fractional plan is solved: whole rows need the rest


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return a plan within ``options.gap`` of the proven bound, at several times the effort of ``auto`` if need be.

    It starts from ``auto``'s plan, so it is never slower than that (without a time limit). While it is not within the
    gap: columns are added until the linear program over all fractional plans is almost solved, for up to world_size - 1
    stages; its solution is rounded to a whole plan; and this is improved as long as that helps. This is
    repeated up to four times, from other prices; the best plan is returned with its gap. On more than ``ALL_LINKS``
    devices, where ``auto`` does coordinate descent over groups instead, there are more rounds of it, once.

    Raises:
        ValueError: a pair that needs rows cannot be reached even through relays.
    """
    best = searched(relation, topology, options)
    if relation.world_size > 2:
        for rounds in ROUNDS if relation.world_size <= MAX_ALL_LINKS else ROUNDS[:1]:
            if best.gap() <= options.gap or best.is_late():
                break
            best.effort = Effort(
                FINER * options.gap, enough=options.gap, rounds=rounds, steps=100, progress=0.05, usual_stages=6,
                fair=options.gap, thorough=True,
            )  # fmt: skip
            StageSearch(best).run()
    return fastest(best)

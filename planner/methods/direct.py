"""The planning method "direct": every owner sends each row straight to each rank that needs it, in one stage.

It is the baseline of comparisons. It has no relays, so every pair of ranks that needs rows must have a link.
Called by `registry` (by name) and `dgcl/cli/warmup`. Free to change while a pair without a link is refused by name,
and plans deliver every row at the stated cost (`tests/planner/methods/test_make_plan.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.direct_trees import direct_trees
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.reach import require_links
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return one star per class, in stage 0.

    Raises:
        ValueError: a pair that needs rows has no link; the message names it.
    """
    del options  # nothing to choose
    require_links(relation.pair_rows(), topology)
    return direct_trees(relation)

"""Peer to peer: every owner sends every row straight to each rank that needs it, all in one stage.

Called by `dgcl/cli/warmup`. Free to change while plans deliver every row, and repeat
(`tests/planner/methods/`).
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

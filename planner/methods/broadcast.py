"""The staged broadcast of 1D-partitioned training: one owner after the other. A baseline.

In stage k rank k sends its rows to every rank that needs them. (CAGNET's 1D algorithm sends all rows to all ranks; a
relation that says so gives exactly that.) A plan has at most world_size - 1 stages, so the last two owners share the
last one, which can only favour this baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.methods import direct
from dgcl.planner.options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return one star per class, in the stage of its owner.

    Raises:
        ValueError: a pair that needs rows has no link; the message names it.
    """
    stars = direct.plan(relation, topology, options)
    stage = np.minimum(stars.edge_src, max(0, relation.world_size - 2))
    return Trees(stars.tree_class, stars.tree_count, stars.edge_ptr, stars.edge_src, stars.edge_dst, stage)

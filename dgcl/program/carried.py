"""What of a plan is carried out: everything but relays that serve nobody.

The plan format allows a tree to enter a rank that neither needs the row nor passes it on. Such a plan
delivers, and ``dgcl check`` accepts it with what it costs. Nobody would miss these rows, though, and in the
fold that rank would have nothing to send back: so they are left out of the programs, which then move less
than the plan states. Plans of dgcl's own planners have none.
"""

from __future__ import annotations

import numpy as np

from dgcl.planner.plan import Plan, Trees
from dgcl.planner.relation import Relation


def relay_edges(relation: Relation, trees: Trees) -> np.ndarray:
    """``(E,)`` bool: the edges whose head does not need the row."""
    head = trees.edge_dst.astype(np.int64)
    words = relation.dests[trees.tree_class[trees.edge_tree()], head // 64]
    return ((words >> (head % 64).astype(np.uint64)) & np.uint64(1)) == 0


def carried_trees(plan: Plan) -> Trees:
    """The plan's trees without edges to relays that serve nobody; the same object where there are none."""
    from dgcl.program.tables import parent_edges

    trees = plan.trees
    while True:
        idle = relay_edges(plan.relation, trees)
        parent = parent_edges(trees.edge_ptr, trees.edge_src, trees.edge_dst)
        idle[parent[parent >= 0]] = False
        if not idle.any():
            return trees
        left = np.bincount(trees.edge_tree()[~idle], minlength=trees.num_trees)
        trees = Trees(
            trees.tree_class,
            trees.tree_count,
            np.concatenate([[0], np.cumsum(left)]),
            trees.edge_src[~idle],
            trees.edge_dst[~idle],
            trees.edge_stage[~idle],
        )

"""Finds the relays of a plan (ranks that get rows they do not need), and removes idle ones.

An *idle* relay neither needs the row nor passes it on. The plan format allows it: such a plan delivers, and ``dgcl
check`` accepts it at its stated cost. Programs and folds leave idle relays out, because in a fold they would have
nothing to send back; the programs then move less than the plan states. Plans of dgcl's own planners have none.
Called by `fold`, `planner/verify/check_plan`, `dgcl/program/compile`, `dgcl/program/contribution_programs` and
`dgcl/program/window_programs`. Free to change while exactly the idle relays go, whole chains of them, too
(`tests/planner/test_fold.py`, `tests/dgcl/program/test_compile.py`).
"""

import numpy as np

from dgcl.planner.array_types import BoolArray, pointers
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees, tree_chunks


def relay_edges(relation: Relation, trees: Trees) -> BoolArray:
    """Return which edges enter a rank that does not need the row, ``(E,)`` bool."""
    relays = np.empty(trees.num_edges, np.bool_)
    for first, last in tree_chunks(trees):
        ptr = trees.edge_ptr[first : last + 1]
        head = trees.edge_dst[ptr[0] : ptr[-1]]
        words = relation.dests[np.repeat(trees.tree_class[first:last], np.diff(ptr)), head >> 6]
        relays[ptr[0] : ptr[-1]] = (words >> (head & 63).astype(np.uint64)) & np.uint64(1) == 0
    return relays


def without_idle_relays(plan: Plan) -> Trees:
    """Return the plan's trees without edges to idle relays; the same object where there are none."""
    trees = plan.trees
    idle = relay_edges(plan.relation, trees)
    if idle.any():
        from dgcl.planner.tree_kernels import spare_senders

        sender = np.full(plan.world_size, -1)
        spare_senders(trees.edge_ptr, trees.edge_src, trees.edge_dst, idle, sender)
    if not idle.any():
        return trees
    left = np.bincount(trees.edge_tree()[~idle], minlength=trees.num_trees)
    return Trees(
        trees.tree_class,
        trees.tree_count,
        pointers(left),
        trees.edge_src[~idle],
        trees.edge_dst[~idle],
        trees.edge_stage[~idle],
    )

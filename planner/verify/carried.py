"""What of a plan is carried out: everything but relays that serve nobody.

The plan format allows a tree to enter a rank that neither needs the row nor passes it on. Such a plan
delivers, and ``dgcl check`` accepts it with what it costs. Nobody would miss these rows, though, and in the
fold that rank would have nothing to send back: so they are left out of the programs, which then move less
than the plan states, and of the fold. Plans of dgcl's own planners have none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dgcl.planner.plan import Plan, Trees, tree_chunks
from dgcl.planner.relation import Relation

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


def relay_edges(relation: Relation, trees: Trees) -> BoolArray:
    """``(E,)`` bool: the edges whose head does not need the row."""
    head = trees.edge_dst.astype(np.int64)
    words = relation.dests[trees.tree_class[trees.edge_tree()], head // 64]
    return ((words >> (head % 64).astype(np.uint64)) & np.uint64(1)) == 0


def carried_trees(plan: Plan) -> Trees:
    """The plan's trees without edges to relays that serve nobody; the same object where there are none."""
    trees = plan.trees
    while True:
        idle = relay_edges(plan.relation, trees)
        if idle.any():
            idle &= ~_passed_on(trees, plan.world_size)
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


def _passed_on(trees: Trees, world_size: int) -> BoolArray:
    """``(E,)`` bool: the edges whose head is a sender in the same tree."""
    found = np.zeros(trees.num_edges, np.bool_)
    for first, last in tree_chunks(trees):
        edges = slice(int(trees.edge_ptr[first]), int(trees.edge_ptr[last]))
        cell = np.repeat(np.arange(last - first), np.diff(trees.edge_ptr[first : last + 1])) * world_size
        sends = np.zeros((last - first) * world_size, np.bool_)
        sends[cell + trees.edge_src[edges]] = True
        found[edges] = sends[cell + trees.edge_dst[edges]]
    return found

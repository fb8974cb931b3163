"""Compiles a program that sends each rank's contributions to a sum to the owner one by one, not added.

A fold (sums back to the owners) adds what it meets on its way, so it cannot find a maximum. Here every contributor's
row reaches the owner by itself, along the path that the fold's tree has for it::

    item (v, r)      owned by r, a contributor to v; wanted by the owner of v
    expand           contributors' rows to the owner of v        its fold: a row of each back to its contributor

Called by `dgcl/aggregation/contribution_exchange`. Free to change while each contribution reaches the owner of its row
once, and each row is known by its (v, r) (`tests/dgcl/program/test_contributions.py`).
"""

import numpy as np

from dgcl.planner.array_types import Int64Array
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation, mask_words
from dgcl.planner.relays import relay_edges, without_idle_relays
from dgcl.planner.trees import Trees
from dgcl.program.compile import Frame, compile_program
from dgcl.program.rank_program import Program

# So an expand moves what a fold without sums on its way would, and nothing in its fold is added to anything.
# Items are numbered by (contributor, place of the row): each rank finds the rows behind them in its own tables
# and the plan.


def contribution_program(plan: Plan, rank: int) -> Program:
    """A rank's program for the contributions to the fold of ``plan``.

    Its owned rows are the rows to which it contributes, in the order of their places; its halo rows are what others
    contribute to its own (:func:`contribution_rows`).
    """
    turned, relation = contribution_items(plan)
    num_owned = np.bincount(relation.source, relation.count, relation.world_size).astype(np.int64)
    frame = Frame.of(relation, turned, num_owned)
    owned = frame.places_of(rank)  # items are numbered as they take places, and all of them are wanted
    return compile_program(frame, rank, owned, owned - owned[:1], frame.places_through(rank))[0]


def contribution_items(plan: Plan) -> tuple[Trees, Relation]:
    """The trees that bring the items, and their classes: paths of the plan's trees, from a destination to the root."""
    relation, trees = plan.relation, without_idle_relays(plan)
    parent = trees.parents(plan.world_size)
    tree_of_edge = trees.edge_tree()
    by_place = np.empty(trees.num_trees, np.int64)  # of rows, trees take consecutive places, class by class
    by_place[np.argsort(trees.tree_class, kind="stable")] = np.arange(trees.num_trees)

    last = np.flatnonzero(~relay_edges(relation, trees))  # the edge that enters each destination
    last = last[np.lexsort((by_place[tree_of_edge[last]], trees.edge_dst[last]))]
    tree = tree_of_edge[last]
    contributor, owner = trees.edge_dst[last], relation.source[trees.tree_class[tree]]
    pairs, pair = np.unique(contributor.astype(np.int64) * plan.world_size + owner, return_inverse=True)
    sources, receivers = pairs // plan.world_size, pairs % plan.world_size
    dests = np.zeros((len(pairs), mask_words(plan.world_size)), np.uint64)
    dests[np.arange(len(pairs)), receivers // 64] = np.uint64(1) << (receivers % 64).astype(np.uint64)
    counts = np.zeros(len(pairs), np.int64)
    np.add.at(counts, pair, trees.tree_count[tree])

    hops, path, edge = [], np.arange(len(last)), last
    while len(edge):
        hops.append((path, edge))
        path, edge = path[parent[edge] >= 0], parent[edge][parent[edge] >= 0]
    paths, edges = (np.concatenate([hop[i] for hop in hops] or [last]) for i in (0, 1))
    order = np.argsort(paths, kind="stable")
    paths, edges = paths[order], edges[order]
    turned = Trees(
        pair.astype(np.int32),
        trees.tree_count[tree],
        np.searchsorted(paths, np.arange(len(last) + 1)),
        trees.edge_dst[edges],
        trees.edge_src[edges],
        trees.num_stages - 1 - trees.edge_stage[edges],
    )
    return turned, Relation(plan.world_size, sources.astype(np.int32), dests, counts)


def contribution_rows(program: Program, folded: Program, plan: Plan) -> tuple[Int64Array, Int64Array]:
    """What the rows of a rank's program of contributions stand for in the fold that they are contributions to.

    Args:
        program: Its program of contributions.
        folded: That of the fold.
        plan: The plan of the fold.

    Returns:
        ``(num_owned,)`` the halo row of the fold, from 0, behind each owned row; ``(num_halo,)`` the owned row of the
        fold to which each halo row is a contribution.

    Raises:
        ValueError: The places are not those of the plan's rows.
    """
    relation, places = plan.relation, folded.places[: folded.num_local].astype(np.int64)
    mine = np.flatnonzero(places[: folded.num_owned] >= 0)
    mine = mine[np.argsort(places[mine])]
    first, end = np.searchsorted(relation.source, [folded.rank, folded.rank + 1])
    classes = np.searchsorted(np.cumsum(relation.count), places[mine], side="right")
    if len(mine) and not first <= classes[0] <= classes[-1] < end:
        raise ValueError(f"places of rank {folded.rank} are not those of the plan's rows")
    _, contributed = np.nonzero(relation.dest_matrix(first, end)[classes - first].T)
    if len(contributed) != program.num_halo or folded.num_halo != program.num_owned:
        raise ValueError(f"places of rank {folded.rank} are not those of the plan's rows")
    rows = np.empty(program.num_halo, np.int64)
    rows[np.argsort(program.halo_ids)] = mine[contributed]
    return np.argsort(places[folded.num_owned :]), rows

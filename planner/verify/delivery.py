"""Proves that trees deliver a relation: each row to each of its destinations, once, over links that exist.

Nothing here trusts the code that made the trees. Every plan passes it: those just made (``methods/registry.py``) and
those read from files (``check_plan.py``). `verify_trees` says what is checked and why that is enough; faults are found
in ``delivery_kernels.py`` and described here.
Called by `check_plan`, `planner/fold` and `planner/methods/registry`. Free to change while trees, however damaged,
pass exactly where a literal reading of the rules agrees, and faults are named (`tests/planner/verify/test_check.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.planning_errors import PlanError
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology


def verify_trees(relation: Relation, trees: Trees, topology: Topology) -> None:
    """Prove that ``trees`` deliver ``relation`` over the links of ``topology``.

    For each tree it is checked that

    1. every edge is a link of the topology, and its stage is below ``max(1, world_size - 1)``;
    2. no rank is entered twice, and the root (the owner of the class) never;
    3. the sender of every edge is the root, or is entered by an edge listed before it and of a smaller stage;
    4. every destination of the class is entered.

    By (3) and induction over the list, every sender holds the row when its stage comes. So every destination gets the
    row by (4), and exactly once by (2). Stages rise along every path, so no cycle of waits is possible. The counts of
    the trees of a class add up to the size of the class, and its vertices are assigned to them in order, so this holds
    for every vertex.

    One pass over the edges. Shapes and pointers were checked when ``relation`` and ``trees`` were made.

    Raises:
        PlanError: The proof fails; names the tree, its class and the edge.
    """
    world = relation.world_size
    if topology.num_devices != world:
        raise PlanError(f"the topology has {topology.num_devices} devices but the relation has {world} ranks")
    _check_counts(relation, trees)
    if trees.num_trees == 0:
        return
    from dgcl.planner.verify.delivery_kernels import FINE, first_fault

    fault, tree, edge = first_fault(
        relation.source, relation.dests, relation.num_dests(), trees.tree_class, trees.edge_ptr, trees.edge_src,
        trees.edge_dst, trees.edge_stage, topology.arrays().link_of, max(1, world - 1), np.full(world, -1),
        np.empty(world, np.int32),
    )  # fmt: skip
    if fault != FINE:
        raise PlanError(_describe_fault(fault, tree, edge, relation, trees, topology))


def _check_counts(relation: Relation, trees: Trees) -> None:
    """Raise PlanError unless the trees of each class serve exactly its vertices."""
    num = relation.num_classes
    bad = np.flatnonzero((trees.tree_class < 0) | (trees.tree_class >= num))
    if bad.size:
        t = int(bad[0])
        raise PlanError(f"tree {t} serves class {trees.tree_class[t]}: there are {num} classes")
    total = np.zeros(num, np.int64)
    np.add.at(total, trees.tree_class, trees.tree_count)
    # A sum that has wrapped round to the right number is 2**64 or more too large, which rounding does not hide.
    rounded = np.bincount(trees.tree_class, trees.tree_count, num)
    wrong = np.flatnonzero((total != relation.count) | (rounded >= 2.0**63))
    if wrong.size:
        c = int(wrong[0])
        exact = sum(trees.tree_count[trees.tree_class == c].tolist())
        raise PlanError(f"class {c} has {relation.count[c]} vertices but its trees take {exact}")


def _describe_fault(fault: int, t: int, e: int, relation: Relation, trees: Trees, topology: Topology) -> str:
    """Return the error message for what ``first_fault`` found."""
    from dgcl.planner.verify import delivery_kernels as kernels

    c = int(trees.tree_class[t])
    begin, end = int(trees.edge_ptr[t]), int(trees.edge_ptr[t + 1])
    entered = trees.edge_dst[begin:end].tolist()
    if fault == kernels.LEFT_OUT:
        left = [d for d in relation.dest_ranks(c) if d not in entered]
        return f"tree {t} of class {c} never delivers to rank {left[0]} ({len(left)} left out)"
    sender, receiver, stage = int(trees.edge_src[e]), int(trees.edge_dst[e]), int(trees.edge_stage[e])
    world = relation.world_size
    if fault == kernels.NO_SENDER:
        what = f"the sender is no rank (world size {world})"
    elif fault == kernels.NO_RECEIVER:
        what = f"the receiver is no rank (world size {world})"
    elif fault == kernels.NO_LINK:
        what = f"topology {topology.name!r} has no such link"
    elif fault == kernels.LATE:
        what = f"stages must be < {max(1, world - 1)} at world size {world}"
    elif fault == kernels.OWNER:
        what = "enters the owner of the class, which has the row"
    elif fault == kernels.TWICE:
        what = f"rank {receiver} is entered twice in this tree"
    elif fault == kernels.TOO_SOON:
        fed = int(trees.edge_stage[begin + entered.index(sender)])
        what = f"its sender gets the row in stage {fed}, not earlier"
    elif sender in entered:
        what = "edges must be listed parents first"
    else:
        what = f"rank {sender} sends a row that it never receives"
    return f"tree {t} of class {c}, edge {e} (rank {sender} -> rank {receiver}, stage {stage}): {what}"

"""The planning method "spst", the greedy of the DGCL paper: shortest-path spanning trees, one after the other.

These are Algorithms 1 and 2 of DGCL (Cai et al., EuroSys 2021) with the cost model of its section 5.1: each tree is
grown at the costs that earlier trees leave. It is the baseline that ``auto`` is compared with; ``auto`` asks it too
where there is little to plan. `plan` says what differs from the paper.
Called by `registry` (by name) and `auto`. Free to change while an edge's stage is its depth, all leaves are
destinations, and of the ways to a rank the cheapest is taken, of equal ones the shortest
(`tests/planner/methods/test_spst.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array, Int64Array, pointers
from dgcl.planner.cost import GIGA, predicted_seconds
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.reach import require_routes, require_same_size
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology

PIECES = 16384  # aimed at over all classes; every class has at least one


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return SPST trees with strict stages (stage = depth), at most world_size - 1 of them.

    A tree starts as its root. Repeatedly, the destination that is cheapest to reach from the tree is joined to it by
    its cheapest path. An edge at depth k costs what it adds to the time of stage k, given all traffic planned so far.
    The stage of an edge is its depth in the tree (strict stages), so the edges of a path lie in different stages and
    its cost is exactly the sum of theirs. A path may run through relays, which do not need the row.

    Differences from the paper:

    - Pieces of classes are planned instead of single vertices. All classes are cut into pieces of about equal size.
      The pieces of each class are spread evenly over the whole sequence, so that early and late costs fall on every
      class.
    - Costs are computed when a path needs them, not kept in a table.
    - The paper's links have no latency. Where they do, the first piece to use a stage pays for all that follow, and at
      that cost no stage but the first would ever be used. So there are two sets of trees, grown with latencies and
      without, and what is faster with them is the plan.
    - Ties, which the paper does not mention, are frequent: most edges cost nothing while another connection is the
      stage's slowest. Of two paths that slow the plan down equally, the one with less time on its own links wins; then
      the shorter one; then the lower rank of the last relay, then of the destination.

    Raises:
        ValueError: a pair that needs rows cannot be reached even through relays; the message names it.
    """
    require_same_size(relation.world_size, topology)
    require_routes(relation.pair_rows(), topology)
    from dgcl.planner.methods.spst_kernel import grow_trees

    piece_class, piece_rows = pieces(relation)
    arrays = topology.arrays()

    def grown(latency: FloatArray) -> Trees:
        world, stages = relation.world_size, max(1, relation.world_size - 1)
        parent, depth = np.full((2, piece_class.shape[0], world), -1, np.int32)
        rise, own = np.empty((2, stages + 1, world))
        grow_trees(
            relation.source[piece_class],
            relation.dest_matrix()[piece_class],
            piece_rows.astype(np.float64) * options.row_bytes,
            arrays.link_of,
            latency,
            arrays.link_ptr,
            arrays.link_directions,
            1.0 / (arrays.bandwidth * GIGA),
            parent,
            depth,
            np.zeros((stages, arrays.num_directions)),
            np.zeros(stages),
            np.empty(world, np.bool_),
            rise,
            own,
            np.empty((stages + 1, world), np.int64),
        )
        return strict_trees(piece_class, piece_rows, parent, depth)

    results = [grown(arrays.link_latency)]
    if arrays.link_latency.any():
        none = np.zeros_like(arrays.link_latency)
        none.flags.writeable = False  # as the topology's: the kernel is compiled for read-only arrays alone
        results.append(grown(none))
    return min(results, key=lambda trees: predicted_seconds(trees, arrays, options.row_bytes))


def pieces(relation: Relation, aim: int = PIECES) -> tuple[Int64Array, Int64Array]:
    """Cut classes into pieces of about equal size, and spread those of each class over the whole sequence.

    Returns:
        (N,) class and (N,) rows of each piece, in the order in which they are planned. N is about ``aim``,
        or the number of classes if that is more.
    """
    size = max(1, -(-relation.num_vertices // aim))
    parts = -(-relation.count // size)
    of_class = np.repeat(np.arange(relation.num_classes), parts)
    index = np.arange(of_class.shape[0]) - np.repeat(np.cumsum(parts) - parts, parts)
    rows = relation.count[of_class] // parts[of_class] + (index < relation.count[of_class] % parts[of_class])
    when = (2 * index + 1) / (2 * parts[of_class])  # the middle of the piece's share of its class
    order = np.argsort(when, kind="stable")
    return of_class[order], rows[order]


def strict_trees(
    piece_class: Int64Array, piece_rows: Int64Array, parent: Int32Array, depth: Int32Array
) -> Trees:
    """Make trees of parent tables, one tree for all pieces of a class with the same parents.

    Args:
        piece_class, piece_rows: (N,) class and size of each piece.
        parent: (N, P) rank that each rank receives from, -1 for the root and for ranks outside the tree.
        depth: (N, P) of each rank in the tree.
    """
    key = np.ascontiguousarray(np.column_stack([piece_class.astype(">i4"), parent.astype(">i4")]))
    rows_as_bytes = key.view(np.dtype((np.void, key.shape[1] * 4))).reshape(-1)
    _, first, group = np.unique(rows_as_bytes, return_index=True, return_inverse=True)
    count = np.zeros(first.shape[0], np.int64)
    np.add.at(count, group.reshape(-1), piece_rows)
    parent, depth = parent[first], depth[first]
    tree, dst = np.nonzero(parent >= 0)
    order = np.lexsort((dst, depth[tree, dst], tree))
    tree, dst = tree[order], dst[order]
    return Trees(
        piece_class[first].astype(np.int32),
        count,
        pointers(np.bincount(tree, minlength=first.shape[0])),
        parent[tree, dst],
        dst.astype(np.int32),
        depth[tree, dst] - 1,
    )

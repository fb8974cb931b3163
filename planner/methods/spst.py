"""SPST, the greedy of the paper: shortest-path spanning trees at the prices that earlier trees left behind.

This is Algorithms 1 and 2 of DGCL (Cai et al., EuroSys 2021) with the cost model of its section 5.1, and
the baseline that `auto` is compared with. A tree starts as its root. Again and again the destination that
is cheapest to reach from the tree is joined to it by its cheapest path, where an edge at depth k costs what
it adds to the time of stage k given all traffic planned so far. The stage of an edge is its depth in the
tree (strict stages), so a path's edges lie in different stages and its cost is exactly the sum of their
costs; relays come in where a path runs through ranks that do not need the row themselves.

Where this differs from the paper's text:

- Portions of classes are planned instead of single vertices. All classes are cut into portions of about
  equal size and dealt in turn, each class evenly over the whole run, so that early and late prices fall on
  every class alike.
- Costs are computed when a path looks at them, not kept in a table.
- Ties, on which the paper is silent and which are frequent (most edges cost nothing while another
  connection is the stage's slowest): of two paths that slow the plan down equally, the one with less time
  on its own links wins; then the shorter one; then the lower rank of the last relay, then of the
  destination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import Int64Array
from dgcl.planner.cost import GIGA
from dgcl.planner.options import PlanOptions
from dgcl.planner.reach import require_routes, require_same_size
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology

PORTIONS = 16384  # aimed at over all classes; every class has at least one


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return SPST trees with strict stages (stage = depth), at most world_size - 1 of them.

    Raises:
        ValueError: a pair that needs rows cannot be reached even through relays; the message names it.
    """
    require_same_size(relation.world_size, topology)
    require_routes(relation.pair_rows(), topology)
    from dgcl.planner.methods.spst_kernel import grow_trees

    portion_class, portion_rows = portions(relation)
    arrays = topology.arrays()
    parent = np.empty((portion_class.shape[0], relation.world_size), np.int32)
    parent[:] = grow_trees(
        relation.source[portion_class],
        relation.dest_matrix()[portion_class],
        portion_rows.astype(np.float64) * options.row_bytes,
        arrays.link_of,
        arrays.link_latency,
        arrays.link_ptr,
        arrays.link_directions,
        1.0 / (arrays.bandwidth * GIGA),
    )
    return strict_trees(relation, portion_class, portion_rows, parent)


def portions(relation: Relation, aim: int = PORTIONS) -> tuple[Int64Array, Int64Array]:
    """Cut classes into portions of about equal size, dealt so that each class is spread over the whole
    sequence.

    Returns:
        (N,) class and (N,) rows of each portion, in the order in which they are planned. N is about `aim`,
        or the number of classes if that is more.
    """
    size = max(1, -(-relation.num_vertices // aim))
    parts = -(-relation.count // size)
    of_class = np.repeat(np.arange(relation.num_classes), parts)
    index = np.arange(of_class.shape[0]) - np.repeat(np.cumsum(parts) - parts, parts)
    rows = relation.count[of_class] // parts[of_class] + (index < relation.count[of_class] % parts[of_class])
    when = (2 * index + 1) / (2 * parts[of_class])  # the middle of the portion's share of its class
    order = np.argsort(when, kind="stable")
    return of_class[order], rows[order]


def strict_trees(
    relation: Relation,
    portion_class: Int64Array,
    portion_rows: Int64Array,
    parent: np.ndarray[tuple[int, int], np.dtype[np.int32]],
) -> Trees:
    """Make trees of parent tables, one tree for all portions of a class that travel alike.

    Args:
        relation: what the portions are of.
        portion_class, portion_rows: (N,) class and size of each portion.
        parent: (N, P) rank that each rank receives from, -1 for the root and for ranks outside the tree.
    """
    key = np.ascontiguousarray(np.column_stack([portion_class.astype(">i4"), parent.astype(">i4")]))
    rows_as_bytes = key.view(np.dtype((np.void, key.shape[1] * 4))).reshape(-1)
    _, first, group = np.unique(rows_as_bytes, return_index=True, return_inverse=True)
    count = np.zeros(first.shape[0], np.int64)
    np.add.at(count, group.reshape(-1), portion_rows)
    parent = parent[first]
    source = relation.source[portion_class[first]]

    tree, dst = np.nonzero(parent >= 0)
    src = parent[tree, dst]
    depth = np.full(parent.shape, -1, np.int32)
    depth[np.arange(source.shape[0]), source] = 0
    for k in range(relation.world_size - 1):
        reached = (depth[tree, src] == k) & (depth[tree, dst] < 0)
        depth[tree[reached], dst[reached]] = k + 1
    stage = depth[tree, dst] - 1
    order = np.lexsort((dst, stage, tree))
    sizes = np.bincount(tree, minlength=first.shape[0])
    return Trees(
        portion_class[first].astype(np.int32),
        count,
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        src[order],
        dst[order].astype(np.int32),
        stage[order],
    )

"""Proof, on symbols, that trees deliver a relation; nothing here trusts the code that made the trees.

For each tree it is checked that

1. every edge is a link of the topology, and its stage is below max(1, world_size - 1);
2. no rank is entered twice, and the root (the class's owner) never;
3. the sender of every edge is the root, or is entered by an edge listed before it and of a smaller stage;
4. every destination of the class is entered.

By (3) and induction over the list every sender holds the row when its stage comes, so by (4) every
destination gets it and by (2) gets it exactly once; stages rise along every path, so nobody waits in a
circle. Since the counts of the trees of a class add up to its size, and vertices are dealt to them in
order, this holds for every vertex.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import Int64Array
from dgcl.planner.errors import PlanError
from dgcl.planner.plan import Trees
from dgcl.planner.relation import Relation

if TYPE_CHECKING:
    from dgcl.topology import Topology

_CELLS = 1 << 18  # table cells per chunk of trees: 2 MB, which stay in a cache


def verify_trees(relation: Relation, trees: Trees, topology: Topology) -> None:
    """Prove that `trees` deliver `relation` over the links of `topology` (see the module's text).

    O(edges) time; memory is bounded by working through the trees in chunks.

    Raises:
        PlanError: naming the tree, its class and the edge that break the proof.
    """
    world = relation.world_size
    if topology.num_devices != world:
        raise PlanError(f"the topology has {topology.num_devices} devices but the relation has {world} ranks")
    _check_counts(relation, trees)
    _check_edges(trees, topology, world)
    step = max(1, _CELLS // world)
    num_dests = relation.num_dests()
    for first in range(0, trees.num_trees, step):
        _check_delivery(relation, num_dests, trees, first, min(trees.num_trees, first + step))


def _check_counts(relation: Relation, trees: Trees) -> None:
    num = relation.num_classes
    bad = np.flatnonzero((trees.tree_class < 0) | (trees.tree_class >= num))
    if bad.size:
        t = int(bad[0])
        raise PlanError(f"tree {t} serves class {trees.tree_class[t]}: there are {num} classes")
    # Counts are below 2**62 each: halves are summed apart so that no sum of them can wrap around.
    low, high = np.zeros(num, np.int64), np.zeros(num, np.int64)
    np.add.at(low, trees.tree_class, trees.tree_count & 0x7FFF_FFFF)
    np.add.at(high, trees.tree_class, trees.tree_count >> 31)
    high += low >> 31
    low &= 0x7FFF_FFFF
    wrong = np.flatnonzero((high != relation.count >> 31) | (low != relation.count & 0x7FFF_FFFF))
    if wrong.size:
        c = int(wrong[0])
        total = (int(high[c]) << 31) + int(low[c])
        raise PlanError(f"class {c} has {relation.count[c]} vertices but its trees take {total}")


def _check_edges(trees: Trees, topology: Topology, world: int) -> None:
    for name, ranks in (("sender", trees.edge_src), ("receiver", trees.edge_dst)):
        bad = np.flatnonzero((ranks < 0) | (ranks >= world))
        if bad.size:
            raise PlanError(f"{_edge(trees, int(bad[0]))}: the {name} is no rank (world size {world})")
    bad = np.flatnonzero(topology.arrays().link_of[trees.edge_src, trees.edge_dst] < 0)
    if bad.size:
        raise PlanError(f"{_edge(trees, int(bad[0]))}: topology {topology.name!r} has no such link")
    limit = max(1, world - 1)
    bad = np.flatnonzero(trees.edge_stage >= limit)
    if bad.size:
        raise PlanError(f"{_edge(trees, int(bad[0]))}: stages must be < {limit} at world size {world}")


def _check_delivery(relation: Relation, num_dests: Int64Array, trees: Trees, first: int, last: int) -> None:
    """Check points 2 to 4 for the trees ``first:last`` on a table of which edge enters which rank of which
    tree.
    """
    world = relation.world_size
    begin, end = int(trees.edge_ptr[first]), int(trees.edge_ptr[last])
    sizes = np.diff(trees.edge_ptr[first : last + 1])
    tree = np.repeat(np.arange(last - first), sizes)
    src, dst = trees.edge_src[begin:end], trees.edge_dst[begin:end]
    stage = trees.edge_stage[begin:end]
    edge = np.arange(end - begin)
    root = relation.source[trees.tree_class[first:last]]

    bad = np.flatnonzero(dst == root[tree])
    if bad.size:
        raise PlanError(
            f"{_edge(trees, begin + int(bad[0]))}: enters the owner of the class, which has the row"
        )
    entered = np.full((last - first) * world, -1, np.int64)
    entered[tree * world + dst] = edge
    bad = np.flatnonzero(entered[tree * world + dst] != edge)
    if bad.size:
        e = begin + int(bad[0])
        raise PlanError(f"{_edge(trees, e)}: rank {trees.edge_dst[e]} is entered twice in this tree")

    inner = np.flatnonzero(src != root[tree])
    parent = entered[tree[inner] * world + src[inner]]
    bad = np.flatnonzero(parent < 0)
    if bad.size:
        e = begin + int(inner[bad[0]])
        raise PlanError(f"{_edge(trees, e)}: rank {trees.edge_src[e]} sends a row that it never receives")
    bad = np.flatnonzero(parent >= inner)
    if bad.size:
        raise PlanError(f"{_edge(trees, begin + int(inner[bad[0]]))}: edges must be listed parents first")
    bad = np.flatnonzero(stage[parent] >= stage[inner])
    if bad.size:
        e, p = begin + int(inner[bad[0]]), begin + int(parent[bad[0]])
        raise PlanError(
            f"{_edge(trees, e)}: its sender gets the row in stage {trees.edge_stage[p]}, not earlier"
        )

    classes = trees.tree_class[first:last]
    words = relation.dests[classes[tree], dst >> 6]
    wanted = ((words >> (dst & 63).astype(np.uint64)) & np.uint64(1)).astype(np.int64)
    served = np.bincount(tree, weights=wanted, minlength=last - first).astype(np.int64)
    bad = np.flatnonzero(served != num_dests[classes])
    if bad.size:
        t = int(bad[0])
        got = set(dst[tree == t].tolist())
        c = int(classes[t])
        left = [d for d in relation.dest_ranks(c) if d not in got]
        raise PlanError(
            f"tree {first + t} of class {c} never delivers to rank {left[0]} ({len(left)} left out)"
        )


def _edge(trees: Trees, e: int) -> str:
    t = int(np.searchsorted(trees.edge_ptr, e, side="right")) - 1
    return (
        f"tree {t} of class {trees.tree_class[t]}, edge {e} (rank {trees.edge_src[e]} -> rank"
        f" {trees.edge_dst[e]}, stage {trees.edge_stage[e]})"
    )

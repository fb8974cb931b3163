"""Peer to peer: every owner sends every row straight to each rank that needs it, all in one stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.plan import PlanOptions, Trees
from dgcl.planner.reach import require_links
from dgcl.planner.relation import Relation

if TYPE_CHECKING:
    from dgcl.topology import Topology


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return one star per class, in stage 0.

    Raises:
        ValueError: a pair that needs rows has no link; the message names it.
    """
    del options  # nothing to choose
    require_links(relation.pair_rows(), topology, "peer-to-peer is not possible")
    return stars(relation)


def stars(relation: Relation) -> Trees:
    """Return, for each class, one tree of edges from its owner to its destinations in stage 0."""
    num = relation.num_classes
    dest = np.empty(int(relation.num_dests().sum()), np.int32)
    sizes = relation.num_dests()
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    chunk = max(1, (1 << 18) // max(64, relation.world_size))  # keeps what is unpacked in a cache
    for start in range(0, num, chunk):
        stop = min(num, start + chunk)
        dest[ptr[start] : ptr[stop]] = np.nonzero(relation.dest_matrix(start, stop))[1]
    return Trees(
        np.arange(num, dtype=np.int32),
        relation.count,
        ptr,
        np.repeat(relation.source, sizes),
        dest,
        np.zeros(dest.shape[0], np.int32),
    )

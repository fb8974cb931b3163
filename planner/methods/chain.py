"""Chains: every row passes from one rank that needs it to the next, in rank order. A baseline.

This is the chain transfer of NeuGraph (Ma et al., ATC 2019), with which the DGCL paper's Swap baseline loads rows. No
owner sends a row twice and no rank relays rows that it does not need, but a row that all ranks need takes
world_size - 1 stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.options import PlanOptions
from dgcl.planner.reach import require_links
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return one chain per class, from its owner through its destinations; hop k is in stage k.

    Raises:
        ValueError: two ranks that follow each other on a chain have no link; the message names them.
    """
    del options  # nothing to choose
    world = relation.world_size
    sizes = relation.num_dests()
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    dst = np.empty(int(ptr[-1]), np.int64)
    chunk = max(1, (1 << 24) // max(64, world))  # keeps the unpacked masks near 16 MB
    for start in range(0, relation.num_classes, chunk):
        dests = relation.dest_matrix(start, start + chunk)
        source = relation.source[start : start + chunk].astype(np.int64)
        # Column a of the rotated matrix: whether the rank a places after the owner needs the row.
        rotated = np.take_along_axis(dests, (source[:, None] + np.arange(world)) % world, axis=1)
        classes, ahead = np.nonzero(rotated)
        dst[ptr[start] : ptr[start] + len(ahead)] = (source[classes] + ahead) % world
    src = np.empty_like(dst)
    src[1:] = dst[:-1]
    src[ptr[:-1]] = relation.source
    passed = np.zeros((world, world), np.int64)
    passed[src, dst] = 1
    require_links(passed, topology, "a chain is not possible")
    return Trees(
        np.arange(relation.num_classes, dtype=np.int32),
        relation.count,
        ptr,
        src.astype(np.int32),
        dst.astype(np.int32),
        (np.arange(len(dst)) - np.repeat(ptr[:-1], sizes)).astype(np.int32),
    )

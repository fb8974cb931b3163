"""The textbook ring: every row travels from rank to rank, up to the last that needs it. A baseline.

Hop k of every row runs in stage k, so a ring takes up to world_size - 1 stages, each over all links of the ring at
once. Ranks in between relay rows that they do not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import Int64Array
from dgcl.planner.options import PlanOptions
from dgcl.planner.reach import require_links
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return one chain per class, along the ring 0, 1, ..., world_size - 1, 0.

    Raises:
        ValueError: a pair of neighbours that rows must pass has no link; the message names it.
    """
    del options  # nothing to choose
    world = relation.world_size
    hops = farthest(relation)
    ptr = np.concatenate([[0], np.cumsum(hops)])
    stage = np.arange(int(ptr[-1])) - np.repeat(ptr[:-1], hops)
    src = (np.repeat(relation.source, hops) + stage) % world
    dst = (src + 1) % world
    passed = np.zeros((world, world), np.int64)
    passed[src, dst] = 1
    require_links(passed, topology, "a ring is not possible")
    return Trees(
        np.arange(relation.num_classes, dtype=np.int32),
        relation.count,
        ptr.astype(np.int64),
        src.astype(np.int32),
        dst.astype(np.int32),
        stage.astype(np.int32),
    )


def farthest(relation: Relation) -> Int64Array:
    """Return the number of hops from each class's source to its last destination on the ring, (C,) int64."""
    world = relation.world_size
    hops = np.zeros(relation.num_classes, np.int64)
    chunk = max(1, (1 << 18) // max(64, world))  # keeps what is unpacked in a cache
    for start in range(0, relation.num_classes, chunk):
        wanted = relation.dest_matrix(start, start + chunk)
        ahead = (np.arange(world) - relation.source[start : start + chunk, None]) % world
        hops[start : start + chunk] = np.where(wanted, ahead, 0).max(axis=1)
    return hops

"""Peer-to-peer trees: one edge from the owner to each destination, all in stage 0.

Called by `planner/column_generation/search/incumbent`, `planner/methods/auto` and `planner/methods/direct`.
Free to change while files, costs and proofs of plans keep their meaning (`tests/planner/`).
"""

import numpy as np

from dgcl.planner.array_types import pointers
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees


def direct_trees(relation: Relation) -> Trees:
    """Return, for each class, one tree of edges from its owner to its destinations in stage 0."""
    num, sizes = relation.num_classes, relation.num_dests()
    ptr = pointers(sizes)
    dest = np.empty(ptr[-1], np.int32)
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

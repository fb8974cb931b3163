"""Makes the trees of peer-to-peer: each owner sends each row straight to every destination, in stage 0.

There is one tree for a class, with an edge for each destination. It does not ask whether the links exist (`reach`
does).
Called by `planner/methods/direct`, `planner/methods/auto` and `planner/column_generation/search/incumbent`. Free to
change while the trees deliver every row in one stage (`tests/planner/methods/test_make_plan.py`).
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

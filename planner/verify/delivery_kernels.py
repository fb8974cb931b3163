"""Compiled pass over all trees that finds the first one for which the proof of delivery fails.

`first_fault` lists the faults; `delivery` says why their absence is a proof. Imported on first use.
Called by `delivery`. Free to change while a fault in any tree is found, each kind told from the others, and good trees
pass (`tests/planner/verify/test_check.py`).
"""

import numpy as np

from dgcl.planner.array_types import Int32Array, Int64Array, MaskArray
from dgcl.planner.planner_compiled import compiled

FINE = 0
NO_SENDER, NO_RECEIVER, NO_LINK, LATE, OWNER, TWICE, UNFED, TOO_SOON, LEFT_OUT = range(1, 10)


@compiled(allocates=False)
def first_fault(
    root: Int32Array,
    dests: MaskArray,
    num_dests: Int64Array,
    tree_class: Int32Array,
    edge_ptr: Int64Array,
    edge_src: Int32Array,
    edge_dst: Int32Array,
    edge_stage: Int32Array,
    link_of: Int32Array,
    stage_limit: int,
    fed_in: Int64Array,
    fed_at: Int32Array,
) -> tuple[int, int, int]:
    """Return the first fault, its tree and its edge; ``(FINE, 0, 0)`` if there is none.

    Args:
        root, dests, num_dests: Owner (C,), destinations (C, words) and their number (C,) of each class.
        tree_class, edge_ptr, edge_src, edge_dst, edge_stage: The trees; their classes are in range.
        link_of: (P, P), negative where there is no link.
        stage_limit: Stages must be below.
        fed_in, fed_at: (P,) scratch: the last tree that entered a rank, -1 at first, and in which stage.

    Faults of an edge: NO_SENDER, NO_RECEIVER: it is no rank. NO_LINK: the topology has no such link. LATE: the stage
    is not below the limit. OWNER: it enters the owner. TWICE: it enters a rank for the second time. UNFED: no edge
    before it enters its sender. TOO_SOON: its stage is not after that of the edge that enters its sender. Fault of a
    tree: LEFT_OUT: it misses destinations; the edge returned is the one behind its last.
    """
    world = link_of.shape[0]
    for t in range(tree_class.shape[0]):
        c = tree_class[t]
        owner = root[c]
        served = 0
        for e in range(edge_ptr[t], edge_ptr[t + 1]):
            src, dst, stage = edge_src[e], edge_dst[e], edge_stage[e]
            if src < 0 or src >= world:
                return NO_SENDER, t, e
            if dst < 0 or dst >= world:
                return NO_RECEIVER, t, e
            if link_of[src, dst] < 0:
                return NO_LINK, t, e
            if stage >= stage_limit:
                return LATE, t, e
            if dst == owner:
                return OWNER, t, e
            if fed_in[dst] == t:
                return TWICE, t, e
            if src != owner:
                if fed_in[src] != t:
                    return UNFED, t, e
                if fed_at[src] >= stage:
                    return TOO_SOON, t, e
            fed_in[dst] = t
            fed_at[dst] = stage
            served += (dests[c, dst >> 6] >> np.uint64(dst & 63)) & np.uint64(1) != np.uint64(0)
        if served != num_dests[c]:
            return LEFT_OUT, t, edge_ptr[t + 1]
    return FINE, 0, 0

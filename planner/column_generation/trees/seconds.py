"""The seconds of a plan as planner/cost.py defines them, with compiled sums of the rows over each link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array
from dgcl.planner.compiled import compiled
from dgcl.planner.cost import link_seconds
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology.arrays import TopologyArrays


def trees_seconds(trees: Trees, arrays: TopologyArrays, row_bytes: int) -> float:
    """Return the seconds of a plan; bit for bit `cost.predicted_seconds`, without its check that links exist."""
    rows = np.zeros((trees.num_stages, arrays.link_src.shape[0]))
    _add_rows(
        trees.tree_count,
        trees.edge_ptr,
        trees.edge_src,
        trees.edge_dst,
        trees.edge_stage,
        arrays.link_of,
        rows,
    )
    return float(sum(link_seconds(rows, arrays, row_bytes).max(axis=1, initial=0.0).tolist()))


@compiled
def _add_rows(
    count: Int64Array,
    edge_ptr: Int64Array,
    src: Int32Array,
    dst: Int32Array,
    stage: Int32Array,
    link_of: Int32Array,
    rows: FloatArray,
) -> None:
    """Add what each tree's edges carry to `rows` (K, L), exactly below 2**53."""
    for t in range(count.shape[0]):
        for e in range(edge_ptr[t], edge_ptr[t + 1]):
            rows[stage[e], link_of[src[e], dst[e]]] += count[t]

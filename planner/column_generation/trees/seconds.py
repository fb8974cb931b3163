"""The seconds of a plan as planner/cost.py defines them, with compiled sums of the rows over each link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.cost import link_seconds
from dgcl.planner.tree_kernels import add_link_rows
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology.arrays import TopologyArrays


def trees_seconds(trees: Trees, arrays: TopologyArrays, row_bytes: int) -> float:
    """Return the seconds of a plan; bit for bit `cost.predicted_seconds`, for edges that have links."""
    rows = np.zeros((trees.num_stages, arrays.link_src.shape[0]))
    add_link_rows(
        trees.tree_count,
        trees.edge_ptr,
        trees.edge_src,
        trees.edge_dst,
        trees.edge_stage,
        arrays.link_of,
        rows,
    )
    return float(sum(link_seconds(rows, arrays, row_bytes).max(axis=1, initial=0.0).tolist()))

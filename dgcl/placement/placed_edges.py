"""Selects the edges that a rank sums, given the summing rank of every edge.

The result is CSR by head, of only those heads that have such edges; ``order`` has their places in the user's list.
Called by `placement_strategy` and `dgcl/prepare/local_edges`. Free to change while each edge is in exactly one rank's
result, with its own ends and place (`tests/dgcl/prepare/test_placements.py`).
"""

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.relation.local_graph import RankEdges


def edges_summed_by(graph: Graph, summed_by: NDArray[np.int32], rank: int) -> RankEdges:
    """The edges that a rank sums; ``summed_by``: ``(E,)``, in the order of ``graph.indices``."""
    mine = np.flatnonzero(summed_by == rank)
    degrees = np.diff(np.searchsorted(mine, graph.indptr))
    heads = np.flatnonzero(degrees)
    order = mine if graph.edge_ids is None else graph.edge_ids[mine]
    return RankEdges(graph.num_nodes, heads, degrees[heads], graph.indptr[heads], graph.indices[mine], order)

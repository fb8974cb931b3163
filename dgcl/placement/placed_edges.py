"""The edges that each rank sums, where ranks other than their heads' owners sum some.

Called by `placement_strategy` and `dgcl/prepare/local_edges`. Free to change while each edge is summed once
(`tests/dgcl/placement/`).
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

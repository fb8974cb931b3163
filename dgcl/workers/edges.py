"""The edges that each rank sums, where ranks other than their heads' owners sum some."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.relation.local_graph import RankEdges

__all__ = ["edges_of_worker"]


def edges_of_worker(graph: Graph, worker: NDArray[np.int32], rank: int) -> RankEdges:
    """The edges whose worker a rank is; ``worker``: ``(E,)``, in the order of ``graph.indices``."""
    mine = np.flatnonzero(worker == rank)
    heads, degrees = np.unique(np.searchsorted(graph.indptr, mine, side="right") - 1, return_counts=True)
    order = mine if graph.edge_ids is None else graph.edge_ids[mine]
    return RankEdges(graph.num_nodes, heads, degrees, graph.indptr[heads], graph.indices[mine], order)

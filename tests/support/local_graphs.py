"""Local graphs of hand-made rows."""

import numpy as np

from dgcl.graph import Graph
from dgcl.relation.local_graph import LocalGraph, build_local_graph, edges_into


def local_graph_of(graph: Graph, owned_ids: np.ndarray, halo_ids: np.ndarray) -> LocalGraph:
    """The local graph of a rank that sums all in-edges of its vertices."""
    degrees = (graph.in_degrees(), graph.out_degrees())
    owned, halo, none = (
        (ids, np.stack([*(each[ids] for each in degrees), ids]))
        for ids in (owned_ids, halo_ids, owned_ids[:0])
    )
    return build_local_graph(edges_into(graph, owned_ids), owned, halo, none, graph.num_nodes)

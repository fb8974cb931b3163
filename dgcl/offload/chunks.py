"""Chunks: the vertices of a rank in groups of about as many in-edges, and the edges of each group."""

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.partition import partition_graph
from dgcl.relation.local_graph import LocalGraph, edge_places

_log = logging.getLogger("dgcl")


#: Ways to divide a rank's vertices: few edges between chunks, ascending ids.
CHUNK_BY = ("metis", "range")

#: Of each rank: to order chunks takes time that grows with the square of their number, and each has exchanges.
MOST_CHUNKS = 1024


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some of a rank's vertices with all their in-edges.

    Attributes:
        rows: (c,) int64, the rows of ``local.owned_ids`` that are in it, ascending.
        local: Their in-edges; its halo rows are all other vertices that these read, ascending by global id, of
            whichever rank.
        edges: (E_c,) int64, the place of each edge among the rank's edges.
    """

    rows: NDArray[np.int64]
    local: LocalGraph
    edges: NDArray[np.int64]

    @property
    def reads(self) -> NDArray[np.int64]:
        """Global ids of what it reads: its own vertices, then the others."""
        return self.local.local_ids

    @property
    def size(self) -> tuple[int, int]:
        """(vertices, in-edges)."""
        return len(self.rows), len(self.edges)


def chunk_rows(
    local: LocalGraph, num_chunks: int, chunk_by: str = "metis", seed: int = 0
) -> list[NDArray[np.int64]]:
    """Divide a rank's vertices into chunks, each with about as many in-edges and vertices together.

    Args:
        local: The rank's edges.
        num_chunks: How many chunks; those that are more than there are vertices are empty.
        chunk_by: One of :data:`CHUNK_BY`. Ids that were permuted at random have no locality left for "range".
        seed: For "metis".

    Returns:
        Of each chunk the rows of ``local.owned_ids``, ascending.
    """
    n = local.num_owned
    weights = np.diff(local.indptr) + 1
    part = None
    if chunk_by == "metis" and 1 < num_chunks < n:
        try:
            part = partition_graph(_owned_graph(local), num_chunks, seed=seed, vertex_weights=weights)
        except MemoryError as error:
            _log.warning("chunks are ranges of ids, as by chunk_by='range', which load more rows: %s", error)
    if part is None:
        middles = 2 * np.cumsum(weights) - weights  # twice the middle, so that it is a whole number
        part = middles * num_chunks // max(1, 2 * int(weights.sum()))
    return np.split(np.argsort(part, kind="stable"), np.cumsum(np.bincount(part, minlength=num_chunks))[:-1])


def cut_chunk(local: LocalGraph, rows: NDArray[np.int64]) -> Chunk:
    """The chunk of these rows.

    Args:
        local: The rank's edges, with all in-edges of its vertices.
        rows: Rows of ``local.owned_ids``, ascending.
    """
    first = local.indptr[rows]
    indptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(local.indptr[rows + 1] - first, out=indptr[1:])
    edges = edge_places(first, indptr)
    sources = local.indices[edges]
    is_read = np.zeros(local.num_local, bool)
    is_read[sources] = True
    is_read[rows] = False
    others = np.flatnonzero(is_read)
    others = others[np.argsort(local.local_ids[others])]
    every = np.concatenate([rows, others])
    row_of = np.empty(local.num_local, np.int32)
    row_of[every] = np.arange(len(every), dtype=np.int32)
    graph = LocalGraph(
        owned_ids=local.owned_ids[rows],
        halo_ids=local.local_ids[others],
        indptr=indptr,
        indices=row_of[sources],
        edge_first=local.edge_first[rows],
        edge_order=local.edge_ids[edges],
        in_degrees=local.in_degrees[every],
        out_degrees=local.out_degrees[every],
        num_nodes_global=local.num_nodes_global,
    )
    return Chunk(rows, graph, edges)


def _owned_graph(local: LocalGraph) -> Graph:
    """The edges between the rank's own vertices."""
    inside = local.indices < local.num_owned
    before = np.zeros(len(inside) + 1, np.int64)
    np.cumsum(inside, out=before[1:])
    return Graph(local.num_owned, before[local.indptr], local.indices[inside])

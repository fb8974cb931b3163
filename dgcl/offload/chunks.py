"""Divides a rank's vertices into chunks with about as many in-edges each, and cuts out a chunk's edges.

Balanced are vertices and in-edges together. "metis" leaves few edges between chunks; "range" takes ascending ids, as
"metis" does with a warning where memory is short. A chunk has all in-edges of its vertices; a rank has at most 1024.
Called by `arranging`, `chunk_graphs`, `rehearsal` and `dgcl/advisor/weighing`. Free to change while each vertex is in
one chunk with all its in-edges, chunks are balanced, and those of METIS read far fewer rows than random ones
(`tests/dgcl/offload/test_counts.py`).
"""

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.offload.residency import Ids
from dgcl.partition import partition_graph
from dgcl.partition.levels import partition_levels
from dgcl.partition.metis import cut_by_metis
from dgcl.partition.streaming import graph_of_clusters
from dgcl.relation.local_graph import LocalGraph, edge_places

_log = logging.getLogger("dgcl")


#: Ways to divide a rank's vertices: few edges between chunks, ascending ids.
CHUNK_BY = ("metis", "range")

#: Of each rank: to order chunks takes time that grows with the square of their number, and each has exchanges.
MOST_CHUNKS = 1024

#: Parts of METIS's one cut for each chunk of the first number that is tried, and how uneven joined ones may be.
_FINER, _TOLERANCE = 6, 0.03


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


class Chunking:
    """Divides a rank's vertices into chunks, each with about as many in-edges and vertices together.

    Args:
        local: The rank's edges.
        chunk_by: One of :data:`CHUNK_BY`. Ids that were permuted at random have no locality left for "range".
    """

    def __init__(self, local: LocalGraph, chunk_by: str = "metis") -> None:
        self._local, self._by_metis = local, chunk_by == "metis"
        self._weights = np.diff(local.indptr) + 1
        self._fine = np.zeros(local.num_owned, np.int64)
        self._num_fine = 1
        self._labels: dict[int, NDArray[Any]] = {}  # by number: what was tried is what is used

    def rows(self, num_chunks: int, one_of_many: bool = False) -> list[Ids]:
        """Of each chunk the rows of ``local.owned_ids``, ascending.

        Args:
            num_chunks: How many chunks; those that are more than there are vertices are empty.
            one_of_many: Other numbers are tried, too: METIS cuts once, into more parts than chunks, and those are
                joined. 4 % more rows were read at most, 12 % more by the largest chunk (three graphs, 4 to 34 chunks).
        """
        if num_chunks not in self._labels:
            joins = one_of_many and self._by_metis and 1 < num_chunks < self._local.num_owned / _FINER
            self._labels[num_chunks] = (self._joined if joins else self._parts)(num_chunks)
        part = self._labels[num_chunks]
        sizes = np.bincount(part, minlength=num_chunks)
        return np.split(np.argsort(part, kind="stable"), np.cumsum(sizes)[:-1])

    def _parts(self, num_parts: int) -> NDArray[Any]:
        if self._by_metis and 1 < num_parts < self._local.num_owned:
            try:
                graph = _owned_graph(self._local)
                return partition_graph(graph, num_parts, vertex_weights=self._weights)
            except MemoryError as error:
                _log.warning(
                    "chunks are ranges of ids, as by chunk_by='range', which load more rows: %s", error
                )
        middles = (
            2 * np.cumsum(self._weights) - self._weights
        )  # twice the middle, so that it is a whole number
        return middles * num_parts // max(1, 2 * int(self._weights.sum()))

    def _joined(self, num_chunks: int) -> NDArray[Any]:
        """The chunk of each vertex, by few edges between chunks of whole fine parts."""
        if self._num_fine < num_chunks * _FINER / 2:
            self._num_fine = num_chunks * _FINER
            self._fine = self._parts(self._num_fine)
        try:
            graph = graph_of_clusters([_owned_graph(self._local)], self._fine)
            weights = np.bincount(self._fine, self._weights).astype(np.int64)
            cut = partial(cut_by_metis, seed=0)
            levels = [np.arange(num_chunks)]
            return partition_levels(replace(graph, weights=weights), levels, _TOLERANCE, cut)[self._fine]
        except MemoryError:
            return self._parts(num_chunks)


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

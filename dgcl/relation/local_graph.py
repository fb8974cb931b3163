"""The part of the graph that one rank computes on: the in-edges of its own vertices, in local ids.

Local ids number the rows that :func:`dgcl.graph_allgather` returns: first the owned vertices in ascending
global id, then the halo vertices in the order that the plan delivers them. Every edge of the graph is on
exactly one rank, the one that owns its head, so summing over a rank's in-edges needs no further exchange.

A vertex has only some of its out-edges here, and a halo vertex has none of its in-edges. A layer that asks
for a degree means the degree in the whole graph, so the degrees of the whole graph travel along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph

__all__ = ["LocalGraph", "build_local_graphs", "edge_places", "local_graph_bytes"]

MAX_LOCAL_ROWS = np.iinfo(np.int32).max
"""Local source ids are int32, as the frameworks' fastest kernels want them; global ids are int64."""


@dataclass(frozen=True, eq=False)
class LocalGraph:
    """The in-edges of one rank's vertices in local ids, with what layers must know of the whole graph.

    With n = ``num_owned`` and L = ``num_local`` = n + ``num_halo`` and E = ``num_edges`` (of this rank):

    Attributes:
        owned_ids: (n,) int64, global ids of the owned vertices, ascending, or as the rank gave them.
        halo_ids: (num_halo,) int64, global ids of the halo rows in the order in which they are delivered.
        indptr: (n + 1,) int64; the in-edges of owned vertex i are ``indptr[i]:indptr[i + 1]``.
        indices: (E,) int32, the local id in [0, L) of each edge's source.
        edge_first: (n,) int64, the place in the whole CSR of each owned vertex's first in-edge; on a grid of all heads.
        edge_order: (E,) int64, the position of each edge in the user's edge order; None: it is the order of
            the whole CSR. See ``edge_ids``.
        in_degrees: (L,) int64, in-degree in the whole graph of each local row.
        out_degrees: (L,) int64, out-degree in the whole graph of each local row.
        num_nodes_global: vertices of the whole graph.
        num_replicas: how many owned rows, the last ones, are replicas of vertices that a rank of another machine
            owns (:mod:`dgcl.replication`); those K hops away have none of their in-edges here. ``owned_ids``
            ascends within the core rows and within the replicas.
        partial_ids: (m,) int64, vertices of other ranks for which this one sums some in-edges (:mod:`dgcl.workers`), in
            the order in which the plan takes partial sums. They follow the owned vertices in ``indptr``, which then has
            n + m + 1 entries; an owned vertex has those in-edges here that this rank sums. Empty otherwise.
        partial_in_degrees: (m,) int64, in-degree in the whole graph of each of them.
        first_edge: Number of this rank's first edge, where each rank gave its own; -1: edges are those of one graph.
    """

    owned_ids: NDArray[np.int64]
    halo_ids: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    edge_first: NDArray[np.int64]
    edge_order: NDArray[np.int64] | None
    in_degrees: NDArray[np.int64]
    out_degrees: NDArray[np.int64]
    num_nodes_global: int
    num_replicas: int = 0
    partial_ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    partial_in_degrees: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    first_edge: int = -1

    @property
    def num_owned(self) -> int:
        """Vertices that this rank owns, replicas included: the rows of a layer's output."""
        return len(self.owned_ids)

    @property
    def num_core(self) -> int:
        """Owned rows that are no replicas: the first ones. Every vertex is a core row of exactly one rank."""
        return len(self.owned_ids) - self.num_replicas

    @property
    def num_halo(self) -> int:
        """Vertices of other ranks that this rank's edges read."""
        return len(self.halo_ids)

    @property
    def num_local(self) -> int:
        """Rows of a layer's input after the exchange: owned, then halo."""
        return len(self.owned_ids) + len(self.halo_ids)

    @property
    def num_edges(self) -> int:
        """Edges that this rank sums: those whose head it owns, where no partial sums travel."""
        return len(self.indices)

    @property
    def num_heads(self) -> int:
        """Rows that this rank's edges add to: owned vertices, then those of ``partial_ids``."""
        return len(self.indptr) - 1

    @cached_property
    def local_ids(self) -> NDArray[np.int64]:
        """(L,) int64: the global id of each local row, owned then halo."""
        return np.concatenate([self.owned_ids, self.halo_ids])

    @cached_property
    def edge_ids(self) -> NDArray[np.int64]:
        """(E,) int64: the position of each edge in the user's edge order; made when first asked for."""
        if self.edge_order is not None:
            return self.edge_order
        return edge_places(self.edge_first, self.indptr)

    @cached_property
    def heads(self) -> NDArray[np.int32]:
        """(E,) int32: the row in [0, num_heads) of each edge's head; with ``indices``, the edges as pairs."""
        return np.repeat(np.arange(self.num_heads, dtype=np.int32), np.diff(self.indptr))


def local_graph_bytes(num_owned: Any, num_halo: Any, num_edges: Any, edge_order: bool) -> Any:
    """Bytes of the arrays of a local graph, or of many, given arrays; ``edge_order``: where it is not None."""
    return (
        8 * (3 * num_owned + 1 + num_halo)
        + 16 * (num_owned + num_halo)
        + (12 if edge_order else 4) * num_edges
    )


def build_local_graphs(
    graph: Graph, rows: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> Iterator[LocalGraph]:
    """The local graphs of ranks, one at a time.

    What costs time or memory in proportion to the whole graph is done once for all ranks, and each graph can
    be sent away before the next is built.

    Args:
        graph: the whole graph.
        rows: of each rank ``(owned_ids, halo_ids)``: ascending global ids of the vertices that it owns, and those of
            the rows that it receives, in the order in which they arrive. These must cover every source of the owned
            vertices' in-edges that is not owned; they may hold more.

    Raises:
        ValueError: A source is neither owned nor in the halo.
    """
    from dgcl.relation.local_graph_kernels import take_rows

    in_degrees, out_degrees = graph.in_degrees(), graph.out_degrees()
    local_of = np.full(graph.num_nodes, -1, np.int32)  # vertex -> local row; -1 again between ranks
    for owned_ids, halo_ids in rows:
        local_ids = np.concatenate([owned_ids, halo_ids])
        local_of[local_ids] = np.arange(len(local_ids), dtype=np.int32)
        first = graph.indptr[owned_ids]
        indptr = np.zeros(len(owned_ids) + 1, np.int64)
        np.cumsum(graph.indptr[owned_ids + 1] - first, out=indptr[1:])
        indices = np.empty(indptr[-1], np.int32)
        if not take_rows(graph.indptr, graph.indices, owned_ids, local_of, indices):
            missing = graph.indices[edge_places(first, indptr)[indices < 0]].min()
            raise ValueError(
                f"halo_ids must hold every source of the owned vertices' in-edges: vertex {missing} is missing"
            )
        local_of[local_ids] = -1
        yield LocalGraph(
            owned_ids=owned_ids,
            halo_ids=halo_ids,
            indptr=indptr,
            indices=indices,
            edge_first=first,
            edge_order=None if graph.edge_ids is None else graph.edge_ids[edge_places(first, indptr)],
            in_degrees=in_degrees[local_ids],
            out_degrees=out_degrees[local_ids],
            num_nodes_global=graph.num_nodes,
        )


def edge_places(first: NDArray[np.int64], indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """(E,) places in the whole CSR of the edges of rows that begin there at ``first``, row by row."""
    places = np.arange(indptr[-1], dtype=np.int64)
    places += np.repeat(first - indptr[:-1], np.diff(indptr))
    return places

"""The part of the graph that one rank computes on: the in-edges of its own vertices, in local ids.

Local ids number the rows that :func:`dgcl.graph_allgather` returns: the owned vertices in ascending global id, then
the halo (vertices of other ranks that edges here read) in the order of delivery. Every edge is on one rank, the owner
of its head, so sums over in-edges need no further exchange. Out-edges, and in-edges of the halo, may be elsewhere:
degrees are those of the whole graph, and travel along.
Called by `dgcl/prepare/share`, `dgcl/communicator`, `dgcl/aggregation/aggregating`, `dgcl/offload/arranging`,
`dgcl/frameworks/pyg` and others. Free to change while ranks hold every in-edge once, in the user's order, with degrees
of the whole graph (`tests/dgcl/relation/test_local_graph.py`).
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.planner.array_types import Int32Array, Int64Array

# A vertex has only some of its out-edges here, and a halo vertex has none of its in-edges. A layer that asks for a
# degree means the degree in the whole graph.


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
        partial_ids: (m,) int64, vertices of other ranks for which this one sums some in-edges (:mod:`dgcl.placement`),
            in the order in which the plan takes partial sums. They follow the owned vertices in ``indptr``, which then
            has n + m + 1 entries; an owned vertex has those in-edges here that this rank sums. Empty otherwise.
        partial_in_degrees: (m,) int64, in-degree in the whole graph of each of them.
        first_edges: (P + 1,) where the numbers of the edges that each rank gave begin; None: they are one graph's.
        num_edges: Edges that this rank sums: those whose head it owns, where no partial sums travel.
    """

    owned_ids: Int64Array
    halo_ids: Int64Array
    indptr: Int64Array
    indices: Int32Array
    edge_first: Int64Array
    edge_order: Int64Array | None
    in_degrees: Int64Array
    out_degrees: Int64Array
    num_nodes_global: int
    partial_ids: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    partial_in_degrees: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    first_edges: Int64Array | None = None
    num_edges: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "num_edges", len(self.indices)
        )  # a compiler reads it, and no lengths of arrays

    @property
    def num_owned(self) -> int:
        """Vertices that this rank owns: the rows of a layer's output."""
        return len(self.owned_ids)

    @property
    def num_halo(self) -> int:
        """Vertices of other ranks that this rank's edges read."""
        return len(self.halo_ids)

    @property
    def num_local(self) -> int:
        """Rows of a layer's input after the exchange: owned, then halo."""
        return len(self.owned_ids) + len(self.halo_ids)

    @property
    def num_heads(self) -> int:
        """Rows that this rank's edges add to: owned vertices, then those of ``partial_ids``."""
        return len(self.indptr) - 1

    @cached_property
    def local_ids(self) -> Int64Array:
        """(L,) int64: the global id of each local row, owned then halo."""
        return np.concatenate([self.owned_ids, self.halo_ids])

    @cached_property
    def edge_ids(self) -> Int64Array:
        """(E,) int64: the position of each edge in the user's edge order; made when first asked for."""
        if self.edge_order is not None:
            return self.edge_order
        return edge_places(self.edge_first, self.indptr)

    @cached_property
    def heads(self) -> Int32Array:
        """(E,) int32: the row in [0, num_heads) of each edge's head; with ``indices``, the edges as pairs."""
        return np.repeat(np.arange(self.num_heads, dtype=np.int32), np.diff(self.indptr))


def local_graph_bytes(num_owned: Any, num_halo: Any, num_edges: Any, edge_order: bool) -> Any:
    """Bytes of the arrays of a local graph, or of many, given arrays; ``edge_order``: where it is not None."""
    return (
        8 * (3 * num_owned + 1 + num_halo)
        + 16 * (num_owned + num_halo)
        + (12 if edge_order else 4) * num_edges
    )


@dataclass(frozen=True, eq=False)
class RankEdges:
    """The edges that a rank sums, head by head, by ids of vertices.

    Attributes:
        num_vertices: Ids are below that.
        heads: (H,) each head once.
        degrees: (H,) how many of these edges it has.
        first: (H,) the place of the first of them in the whole CSR; without ``order`` the others follow there.
        sources: (E,) of its edges, then of those of the next head.
        order: (E,) as :attr:`LocalGraph.edge_order`.
        slices, slice: Rows are items ``id * slices + slice`` (:mod:`dgcl.grid`).
    """

    num_vertices: int
    heads: Int64Array
    degrees: Int64Array
    first: Int64Array
    sources: NDArray[Any]
    order: Int64Array | None
    slices: int = 1
    slice: int = 0


def edges_into(graph: Graph, heads: Int64Array) -> RankEdges:
    """The in-edges of some vertices."""
    first = graph.indptr[heads]
    degrees = graph.indptr[heads + 1] - first
    places = edge_places(first, pointer(degrees))
    order = None if graph.edge_ids is None else graph.edge_ids[places]
    return RankEdges(graph.num_nodes, heads, degrees, first, graph.indices[places], order)


Ids = Int64Array
#: Of some rows of a rank their ids, and (3, n) what is known of each: in-degree, out-degree, the id that users see.
Rows = tuple[Ids, Ids]


class NumberedEdges(NamedTuple):
    """The edges that a rank sums, by its local rows: as of the fields of a :class:`LocalGraph`."""

    indptr: Int64Array
    indices: Int32Array
    edge_first: Int64Array
    edge_order: Int64Array | None


def number_edges(edges: RankEdges, owned: Ids, halo: Ids, partial: Ids) -> NumberedEdges:
    """Find the local rows of edges. Time: linear in them; memory: 4 bytes for each vertex of the whole graph.

    Args:
        edges: What a rank sums.
        owned, halo, partial: Ids of its rows: those that it owns, those that it receives, in the order in which they
            arrive, and those of others to which it contributes. A head is owned or partial, a source owned or in the
            halo.

    Raises:
        ValueError: There is no row of a head or of a source.
    """
    from dgcl.relation.relation_kernels import gather

    row_of = np.full(edges.num_vertices, -1, np.int32)

    def number(ids: Ids, first: int) -> None:
        rows = np.arange(first, first + len(ids), dtype=np.int32)
        if edges.slices > 1:
            here = ids % edges.slices == edges.slice
            ids, rows = ids[here] // edges.slices, rows[here]
        row_of[ids] = rows

    num_owned, num_rows = len(owned), len(owned) + len(partial)
    number(owned, 0)
    number(partial, num_owned)
    heads = row_of[edges.heads]
    row_of[partial // edges.slices] = -1
    number(halo, num_owned)
    indices, order = gather(row_of, edges.sources), edges.order
    for ids, rows in ((edges.heads, heads), (edges.sources, indices)):
        if len(rows) and rows.min() < 0:
            raise ValueError(f"a rank sums an edge of vertex {ids[np.argmin(rows)]}, of which it has no row")
    if (np.diff(heads) < 0).any():
        by_row = np.argsort(heads)
        starts = pointer(edges.degrees)[:-1]
        places = edge_places(starts[by_row], pointer(edges.degrees[by_row]))
        indices, order = indices[places], None if order is None else order[places]
    degrees, first = np.zeros((2, num_rows), np.int64)
    degrees[heads], first[heads] = edges.degrees, edges.first
    return NumberedEdges(pointer(degrees), indices, first, order)


def build_local_graph(
    edges: RankEdges | NumberedEdges, owned: Rows, halo: Rows, partial: Rows, num_nodes: int, **more: Any
) -> LocalGraph:
    """The local graph of a rank; arguments and errors of :func:`number_edges`, and fields of the local graph."""
    ids, known = zip(owned, halo, partial, strict=True)
    numbered = edges if isinstance(edges, NumberedEdges) else number_edges(edges, *ids)
    in_degrees, out_degrees, names = np.concatenate(known[:2], axis=1, dtype=np.int64)
    num_owned, contributed = len(ids[0]), known[2].astype(np.int64)
    return LocalGraph(
        names[:num_owned],
        names[num_owned:],
        *numbered,
        in_degrees,
        out_degrees,
        num_nodes,
        partial_ids=contributed[2],
        partial_in_degrees=contributed[0],
        **more,
    )


def edge_places(first: Int64Array, indptr: Int64Array) -> Int64Array:
    """(E,) places in the whole CSR of the edges of rows that begin there at ``first``, row by row."""
    places = np.arange(indptr[-1], dtype=np.int64)
    places += np.repeat(first - indptr[:-1], np.diff(indptr))
    return places


def pointer(counts: Int64Array) -> Int64Array:
    """(n + 1,) where each of some counts begins in all of them together, and the end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

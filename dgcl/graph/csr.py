"""The graph, once inside: one checked CSR of in-edges with stable edge ids.

An edge u->v means that v reads u. Multi-edges and self loops are kept. Whatever the user holds becomes this
through :func:`as_graph`; nothing behind this module looks at a user's graph object again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.id_arrays import as_num_nodes

__all__ = ["Graph", "as_graph"]


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed multigraph as CSR of in-edges. The arrays may share memory with the user's; treat them as
    read-only.

    Attributes:
        num_nodes: N >= 1; vertices are 0..N-1.
        indptr: (N + 1,) int64; the in-edges of v are at positions ``indptr[v]:indptr[v + 1]``.
        indices: (E,) int32, or int64 when N >= 2**31: the source of each in-edge. Within v in the user's edge
            order.
        edge_ids: (E,) int64, the place of each edge in the user's edge order (see :func:`as_graph`); None
            means that the two orders are the same: ``edge_ids[k] = k``.

    Raises:
        ValueError, TypeError: the arrays do not say what is written above.
    """

    num_nodes: int
    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    edge_ids: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_nodes", as_num_nodes(self.num_nodes))
        wanted = index_dtype(self.num_nodes)
        _require(self.indptr, "indptr", np.dtype(np.int64), self.num_nodes + 1, "num_nodes + 1")
        num_edges = int(self.indptr[-1])
        if self.indptr[0] != 0 or (self.indptr[1:] < self.indptr[:-1]).any():
            raise ValueError(
                "indptr must start at 0 and never fall; as_graph builds it from any kind of graph"
            )
        _require(self.indices, "indices", wanted, num_edges, "indptr[-1]")
        if num_edges and (self.indices.min() < 0 or self.indices.max() >= self.num_nodes):
            raise ValueError(
                f"indices must be 0..{self.num_nodes - 1} (got {self.indices.min()}..{self.indices.max()})"
            )
        if self.edge_ids is not None:
            _require(self.edge_ids, "edge_ids", np.dtype(np.int64), num_edges, "one per edge")
            if num_edges and (self.edge_ids.min() != 0 or self.edge_ids.max() != num_edges - 1):
                raise ValueError(f"edge_ids must be a permutation of 0..{num_edges - 1}")

    @property
    def num_edges(self) -> int:
        """Number of edges E."""
        return len(self.indices)

    def in_degrees(self) -> NDArray[np.int64]:
        """Return the number of in-edges of each vertex, (N,) int64."""
        return np.diff(self.indptr)

    def out_degrees(self) -> NDArray[np.int64]:
        """Return the number of out-edges of each vertex, (N,) int64."""
        from dgcl.graph.csr_kernels import count_sources

        return count_sources(self.indices, self.num_nodes)

    def edges(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return (sources, destinations) of all edges in the user's edge order, each (E,)."""
        heads = np.repeat(np.arange(self.num_nodes, dtype=self.indices.dtype), self.in_degrees())
        if self.edge_ids is None:
            return self.indices.copy(), heads
        sources, destinations = np.empty_like(self.indices), np.empty_like(heads)
        sources[self.edge_ids] = self.indices
        destinations[self.edge_ids] = heads
        return sources, destinations


def as_graph(obj: Any, num_nodes: int | None = None) -> Graph:
    """Turn what the user holds into a :class:`Graph`.

    What may be given, and its edge order (which ``edge_ids`` counts, and edge weights are given in):

    - :class:`Graph`: unchanged.
    - DGLGraph, homogeneous: DGL's edge ids, also where only CSR or CSC is stored.
    - PyG ``Data``: the columns of ``edge_index``; with ``adj_t`` instead, its stored entries.
    - edge_index of shape (2, E), tensor, array or two lists: the columns.
    - networkx ``Graph``, ``DiGraph``, ``MultiGraph``, ``MultiDiGraph``: ``G.to_directed().edges()``. An
      undirected edge counts in both directions, a self loop once, parallel edges by key.
    - scipy or torch sparse matrix A, where A[u, v] is the edge u->v: the stored entries (``A.data``). An
      explicit zero is an edge, and so is each duplicate. The scipy formats lil, dok and dia: the entries of
      ``A.tocoo()``;
      bsr: the same without the zeros that fill its blocks.
    - tuple (indptr, indices), the CSR of out-neighbours: the positions in ``indices``.
    - path (str or PathLike): see :func:`dgcl.graph.files.read_graph`.

    networkx vertices: where the nodes are exactly the integers 0..n-1, a node is its own id, in whatever
    order it was added; otherwise ids count ``G.nodes()`` in order (:func:`dgcl.graph.sources.networkx_nodes`
    lists nodes by id).

    Args:
        obj: one of the above.
        num_nodes: the number of vertices, for an edge_index whose last vertices may have no edge (default:
            the largest id plus one). Where `obj` itself says how many vertices it has, it must say the same.

    Raises:
        TypeError: `obj` is none of the above, or its ids are not integers.
        ValueError: an id is out of range (the message names the edge), shapes do not fit, or there is no
            vertex. A graph without edges is fine, where the number of vertices is known.
    """
    count = None if num_nodes is None else as_num_nodes(num_nodes)
    if isinstance(obj, Graph):
        if count is not None and count != obj.num_nodes:
            raise ValueError(
                f"num_nodes is {count}, but the graph has {obj.num_nodes} vertices; leave num_nodes out"
            )
        return obj
    if isinstance(obj, (str, os.PathLike)):
        from dgcl.graph.files import read_graph

        return read_graph(obj, num_nodes=count).graph
    from dgcl.graph.sources import graph_from_object

    return graph_from_object(obj, count)


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """Return the dtype in which ids of `num_nodes` vertices are stored: int32 as long as they fit."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)


def _require(array: Any, name: str, dtype: np.dtype[Any], length: int, meaning: str) -> None:
    """Raise unless `array` is a vector of this dtype and length."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        got = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{name} must be a numpy array of {dtype} (got {got}); as_graph converts")
    if array.shape != (length,):
        raise ValueError(f"{name} must have shape ({length},): {meaning} (got {array.shape})")

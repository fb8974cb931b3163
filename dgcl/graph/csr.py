"""The library's own graph: one checked CSR of in-edges with stable edge ids.

An edge u->v means that v reads u. Multi-edges and self loops are kept. Whatever the user holds becomes this through
:func:`dgcl.graph.as_graph`; nothing after that looks at a user's graph object again.
Called by users, `build_csr`, `dgcl/partition/partitioners`, `dgcl/relation/demand`, `dgcl/program/strategy` and
others. Free to change while arrays that are no such CSR are refused by name, and ids are as wide as the number of
vertices needs (`tests/dgcl/graph/test_csr.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.id_arrays import any_outside, as_num_nodes


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed multigraph as CSR of in-edges.

    The arrays may share memory with the user's; treat them as read-only.

    Attributes:
        num_nodes: N >= 1; vertices are 0..N-1.
        indptr: (N + 1,) int64; the in-edges of v are at positions ``indptr[v]:indptr[v + 1]``.
        indices: (E,) int32, or int64 when N >= 2**31: the source of each in-edge. Within v in the user's edge
            order.
        edge_ids: (E,) int64, the place of each edge in the user's edge order (see :func:`dgcl.graph.as_graph`); None
            means that the two orders are the same: ``edge_ids[k] = k``.

    Raises:
        ValueError, TypeError: the arrays are not as described above.
    """

    num_nodes: int
    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    edge_ids: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_nodes", as_num_nodes(self.num_nodes))
        expected = index_dtype(self.num_nodes)
        _require(self.indptr, "indptr", np.dtype(np.int64), self.num_nodes + 1, "num_nodes + 1")
        num_edges = int(self.indptr[-1])
        if self.indptr[0] != 0 or (self.indptr[1:] < self.indptr[:-1]).any():
            raise ValueError(
                "indptr must start at 0 and never fall; as_graph builds it from any kind of graph"
            )
        _require(self.indices, "indices", expected, num_edges, "indptr[-1]")
        if any_outside(self.indices, self.num_nodes):
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


def require_graph(graph: Any) -> None:
    """Raise TypeError for what a user holds, and :func:`dgcl.graph.as_graph` has not converted yet."""
    if not isinstance(graph, Graph):
        raise TypeError(
            f"graph must be a dgcl.graph.Graph (got {type(graph).__name__}); dgcl.graph.as_graph(graph) makes one"
        )


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

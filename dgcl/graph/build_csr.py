"""Builds the CSR of in-edges from edge lists or CSR arrays, and checks every vertex id.

Memory at the peak, for E edges of N vertices: the result (4 E + 8 N bytes, and 8 E for edge ids unless the edges came
grouped by destination), and 8 N for places. CSR of out-neighbours takes 4 E more, for sources.
Called by `sources`, `graph_files`, `graph_npz`, `dgcl/partition/streaming`, `dgcl/prepare/local_edges` and others.
Free to change while edges of one destination stay in the user's order, edge ids are their places in it, and a bad id
is named with its edge (`tests/dgcl/graph/test_csr.py`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.csr import Graph, index_dtype
from dgcl.graph.id_arrays import any_outside, as_ids, as_num_nodes

MAX_GUESSED_NODES_PER_EDGE = 64
MIN_GUESSED_NODES = 1 << 24


def graph_from_edges(
    src: Any, dst: Any, num_nodes: int | None = None, *, name: str = "edges", edge_ids: bool = True
) -> Graph:
    """Build a graph from the edges ``src[e] -> dst[e]``; edge ids are the positions e.

    Args:
        src: (E,) integers, array, tensor or list.
        dst: (E,) integers.
        num_nodes: number of vertices; None: the largest id plus one.
        name: what to call the edges in messages.
        edge_ids: False: none are made, where nothing is asked by them (8 of 16 bytes for each edge).

    Raises:
        TypeError: not integers.
        ValueError: lengths differ, an id is out of range, or the number of vertices is not known.
    """
    src, dst = as_ids(src, f"{name}: sources"), as_ids(dst, f"{name}: destinations")
    if len(src) != len(dst):
        raise ValueError(f"{name} must have as many sources as destinations (got {len(src)} and {len(dst)})")
    num_nodes = guess_num_nodes(src, dst, name) if num_nodes is None else as_num_nodes(num_nodes)

    from dgcl.graph import csr_kernels

    indptr = np.zeros(num_nodes + 1, np.int64)
    bad, ascending = csr_kernels.count_ids(dst, num_nodes, indptr)
    if bad < 0:
        bad = first_outside(src, num_nodes)
    if bad >= 0:
        u, v = int(src[bad]), int(dst[bad])
        outside = v if 0 <= u < num_nodes else u
        way_out = "ids start at 0" if outside < 0 else f"num_nodes would have to be at least {outside + 1}"
        raise ValueError(
            f"{name}: edge {bad} is {u} -> {v}, but the graph has {num_nodes} vertices, 0..{num_nodes - 1}, and "
            f"{outside} is none of them; {way_out}"
        )
    np.cumsum(indptr, out=indptr)
    if ascending:
        return Graph(num_nodes, indptr, src.astype(index_dtype(num_nodes), copy=False))
    indices, ids = np.empty(len(src), index_dtype(num_nodes)), np.empty(len(src) if edge_ids else 0, np.int64)
    csr_kernels.group_edges(indptr, dst, src, indices, ids)
    return Graph(num_nodes, indptr, indices, ids if edge_ids else None)


def graph_from_csr(
    indptr: Any,
    indices: Any,
    num_nodes: int | None = None,
    *,
    name: str = "CSR",
    by_head: bool = False,
    edge_ids: bool = True,
) -> Graph:
    """Build a graph from CSR of out-neighbours: the edges u -> ``indices[indptr[u]:indptr[u + 1]]``.

    Edge ids are the positions in `indices`.

    Args:
        indptr: (N + 1,) integers.
        indices: (E,) integers, in any order within a row, repeated or not.
        num_nodes: N, if it is to be checked.
        name: what to call the arrays in messages.
        by_head: of in-neighbours instead (CSC): the edges ``indices[indptr[v]:indptr[v + 1]]`` -> v. Nothing is sorted.
        edge_ids: As of :func:`graph_from_edges`.

    Raises:
        TypeError: not integers.
        ValueError: `indptr` is no row pointer for `indices`, or an id is out of range.
    """
    ptr, ids = _check_csr(indptr, indices, num_nodes, name)
    del indptr, indices  # whoever gave them up has their memory back where these are copies
    count = len(ptr) - 1
    own = np.repeat(np.arange(count, dtype=index_dtype(count)), np.diff(ptr))
    src, dst = (ids, own) if by_head else (own, ids)
    return graph_from_edges(src, dst, count, name=name, edge_ids=edge_ids)


def _check_csr(
    indptr: Any, indices: Any, num_nodes: int | None, name: str
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """(indptr, indices) as integer vectors of which the first is a row pointer into the second."""
    ptr, ids = as_ids(indptr, f"{name}: indptr"), as_ids(indices, f"{name}: indices")
    if len(ptr) < 2:
        raise ValueError(
            f"{name}: indptr must have num_nodes + 1 >= 2 entries: a graph needs a vertex (got {len(ptr)})"
        )
    if ptr[0] != 0:
        raise ValueError(
            f"{name}: indptr must start at 0 (got {ptr[0]}); (sources, destinations) go in as a (2, E) array"
        )
    falls = np.flatnonzero(ptr[1:] < ptr[:-1])
    if len(falls):
        u = int(falls[0])
        hint = "; did int32 overflow?" if ptr[u + 1] < 0 else ""
        raise ValueError(
            f"{name}: indptr must never fall (got {ptr[u]} at {u} and {ptr[u + 1]} at {u + 1}{hint})"
        )
    if ptr[-1] != len(ids):
        raise ValueError(f"{name}: indptr must end at the number of indices, {len(ids)} (got {ptr[-1]})")
    if num_nodes is not None and as_num_nodes(num_nodes) != len(ptr) - 1:
        raise ValueError(
            f"{name}: indptr is for {len(ptr) - 1} vertices, but num_nodes is {num_nodes}; leave num_nodes out"
        )
    return ptr.astype(np.int64, copy=False), ids


def guess_num_nodes(
    src: NDArray[Any], dst: NDArray[Any], name: str, way_out: str = "number the vertices 0..n-1"
) -> int:
    """Return the largest id plus one, unless that cannot be meant.

    Raises:
        ValueError: there are no edges, or the ids leave by far the most vertices without any.
    """
    if len(src) == 0:
        raise ValueError(
            f"{name}: there is no edge to tell the number of vertices; give"
            " dgcl.graph.as_graph(edge_index, num_nodes=n)"
        )
    guess = max(int(src.max()), int(dst.max()), 0) + 1
    if guess > max(MIN_GUESSED_NODES, MAX_GUESSED_NODES_PER_EDGE * len(src)):
        raise ValueError(
            f"{name}: the largest id is {guess - 1}, which would make {guess} vertices of {len(src)} edges; "
            f"{way_out}, or pass num_nodes (--num-nodes)"
        )
    return guess


def is_symmetric(src: NDArray[Any], dst: NDArray[Any], num_nodes: int) -> bool:
    """Tell whether each edge has its opposite, as often."""
    there, back = (np.sort(u.astype(np.int64) * num_nodes + v) for u, v in ((src, dst), (dst, src)))
    return bool((there == back).all())


def first_outside(ids: NDArray[Any], num_nodes: int) -> int:
    """The position of the first id that is negative or not below ``num_nodes``, or -1."""
    return int(np.argmax((ids < 0) | (ids >= num_nodes))) if any_outside(ids, num_nodes) else -1

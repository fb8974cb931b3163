"""Graphs in files: npz with features, labels and masks; text edge lists; Matrix Market.

>>> from dgcl.graph.files import read_graph
>>> read_graph("cora.npz").graph.num_nodes  # doctest: +SKIP
2708
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from dgcl.graph.build import graph_from_edges, guess_num_nodes
from dgcl.graph.csr import Graph
from dgcl.graph.edge_text import MARKET_BANNER, TextEdges, open_text, read_edge_list, read_matrix_market
from dgcl.graph.graph_file import GraphFile
from dgcl.graph.id_arrays import as_num_nodes
from dgcl.graph.npz import read_npz_graph, write_npz_graph
from dgcl.topology.checks import check_flag, check_path, shown

__all__ = ["GraphFile", "read_graph", "save_graph"]

ZIP_MAGIC = b"PK"
NPY_MAGIC = b"\x93NUMPY"


def read_graph(
    path: str | os.PathLike[str],
    *,
    num_nodes: int | None = None,
    compact: bool = False,
    undirected: bool | None = None,
) -> GraphFile:
    """Read a graph file; its first bytes say of which kind it is.

    - npz: ``num_nodes``, ``directed``, CSR of out-neighbours ``indptr`` and ``indices``; optionally features
      (CSR ``feat_indptr``, ``feat_indices``, ``feat_data``, ``feat_shape``, or dense ``features``),
      ``labels``, ``train_mask``, ``val_mask``, ``test_mask``. Where ``directed`` is false both directions are
      stored. Edge ids are positions in ``indices``.
    - Text edge list, SNAP style, also gzipped: a line ``u v`` is the edge u->v; ``#`` begins a comment. Ids
      are used as they are: the vertices are 0..largest id, and those that no line names have no edges.
      Further columns are not read. Edge ids count the edges' lines.
    - Matrix Market, coordinate format, also gzipped: entry (u, v), from 1, is the edge u-1 -> v-1. Edge ids
      count the entries.

    Where one line or entry stands for both directions (a symmetric Matrix Market file, or `undirected`), the
    edges as they are written come first, then in the same order those of the other direction, but for self
    loops.

    Args:
        path: the file.
        num_nodes: number of vertices of a text edge list, whose last vertices may have no edge. Other files
            state it.
        compact: for a text edge list: number the ids that occur 0..n-1 in ascending order, and return them as
            ``node_ids``.
        undirected: for a text edge list: whether each line stands for both directions; None: what the file's
            header says (SNAP's ``# Undirected graph``, KONECT's ``% sym``), else not.

    Raises:
        ValueError: the file is not what it should be; the message names the file and the line or array.
        OSError: the file cannot be read.
    """
    name = check_path(path, "path")
    num_nodes = None if num_nodes is None else as_num_nodes(num_nodes)
    check_flag(compact, "compact")
    check_flag(bool(undirected) if undirected is None else undirected, "undirected")
    kind = _kind(path)
    if kind != "edge list" and (compact or undirected):
        raise ValueError(f"{name}: compact and undirected are for text edge lists (this is {kind})")
    if kind == "npz":
        result = read_npz_graph(path)
    elif kind == "Matrix Market":
        result = GraphFile(_graph_of(name, read_matrix_market(path)))
    else:
        result = _edge_list(path, num_nodes, compact, undirected)
    if num_nodes is not None and result.graph.num_nodes != num_nodes:
        raise ValueError(
            f"{name}: has {result.graph.num_nodes} vertices, but num_nodes is {num_nodes}; leave num_nodes out"
        )
    return result


def save_graph(
    path: str | os.PathLike[str],
    graph: Graph,
    *,
    features: Any = None,
    labels: Any = None,
    masks: dict[str, Any] | None = None,
) -> None:
    """Write an npz file that :func:`read_graph` reads.

    Edges are stored by source, and edges of one source in the graph's edge order: that is what edge ids count
    when the file is read.

    Args:
        path: the file, written at exactly this path.
        graph: N vertices.
        features: (N, F) array or scipy sparse matrix.
        labels: (N,) or (N, ...).
        masks: by name, "train", "val" or "test": (N,) bool.

    Raises:
        ValueError: lengths differ from N, or an unknown mask.
        OSError: the file cannot be written.
    """
    if not (masks is None or isinstance(masks, Mapping)):
        raise TypeError(f"masks must be a dict of arrays by name (got {shown(masks)})")
    write_npz_graph(path, graph, features=features, labels=labels, masks={} if masks is None else dict(masks))


def _kind(path: str | os.PathLike[str]) -> str:
    """Tell npz, Matrix Market and edge list apart by a file's first bytes."""
    name = os.fspath(path)
    with open_text(path) as file:
        head = file.read(len(MARKET_BANNER))
    if head.startswith(ZIP_MAGIC):
        return "npz"
    if head.startswith(NPY_MAGIC):
        raise ValueError(
            f"{name}: one array (npy) is no graph file; pass the array itself, np.load({name!r})"
        )
    if name.endswith(".npz"):
        raise ValueError(
            f"{name}: not an npz archive, though it is called so; write it with np.savez, or call it what it is"
        )
    if head.lower() == MARKET_BANNER or name.endswith((".mtx", ".mtx.gz")):
        return "Matrix Market"
    return "edge list"


def _edge_list(
    path: str | os.PathLike[str], num_nodes: int | None, compact: bool, undirected: bool | None
) -> GraphFile:
    name = os.fspath(path)
    edges = read_edge_list(path, None if compact else num_nodes)
    undirected = edges.symmetric if undirected is None else undirected
    node_ids = None
    if len(edges.src) == 0 and num_nodes is None:
        raise ValueError(
            f"{name}: has no edges, which leaves the number of vertices open; an npz file says it"
            " (dgcl.graph.save_graph)"
        )
    if compact:
        node_ids, (src, dst) = np.unique(np.stack([edges.src, edges.dst]), return_inverse=True)
        edges = TextEdges(src, dst, len(node_ids), undirected)
    else:
        if num_nodes is None:
            num_nodes = guess_num_nodes(
                edges.src, edges.dst, name, "pass compact=True to number the ids that occur"
            )
        edges = TextEdges(edges.src, edges.dst, num_nodes, undirected)
    return GraphFile(
        _graph_of(name, edges),
        node_ids=None if node_ids is None else node_ids.astype(np.int64),
        undirected=undirected,
    )


def _graph_of(name: str, edges: TextEdges) -> Graph:
    """The graph of text edges, with the other direction after the written one."""
    src, dst = edges.src, edges.dst
    if edges.symmetric:
        between = src != dst
        src, dst = np.concatenate([src, dst[between]]), np.concatenate([dst, src[between]])
    return graph_from_edges(src, dst, edges.num_nodes, name=name)

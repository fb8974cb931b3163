"""Reads graph files of any kind, told by content: npz with features, text edge lists, METIS, Matrix Market.

>>> from dgcl.graph.graph_files import read_graph
>>> read_graph("cora.npz").graph.num_nodes  # doctest: +SKIP
2708

Called by users, `convert` and `dgcl/cli/problem`. Free to change while each kind is told from the others, files of
other makers are refused with the line that converts them (`tests/dgcl/graph/test_files.py`), and text gives its edges
(`tests/dgcl/graph/test_edge_text.py`, `tests/dgcl/graph/test_metis_text.py`).
"""

import os
import re
from contextlib import suppress
from dataclasses import replace

import numpy as np

from dgcl.graph.build_csr import graph_from_edges, guess_num_nodes
from dgcl.graph.csr import Graph
from dgcl.graph.edge_text import MARKET_BANNER, TextEdges, open_text, read_edge_list, read_matrix_market
from dgcl.graph.graph_file import GraphFile
from dgcl.graph.graph_npz import read_npz_graph, save_graph
from dgcl.graph.id_arrays import as_num_nodes
from dgcl.graph.metis_text import NotMetisError, read_metis
from dgcl.topology.checks import check_choice, check_flag, check_path

__all__ = ["GraphFile", "read_graph", "save_graph"]

#: Kinds of files.
FORMATS = ("edges", "metis", "mtx", "npz")
#: How files of others begin, and what makes a graph of one that is called {0}.
_OTHERS = {
    rb"\x93NUMPY": "one array (npy) is no graph file; pass the array itself, np.load({0})",
    rb"PK.{28}\S*/data\.pkl|\x80\x02\x8a\nl\xfc\x9cF": "torch.save wrote it, and opening it runs what it holds; if you"
    " trust it: dgcl.graph.as_graph(torch.load({0}, weights_only=False))",
    rb"\x80[\x02-\x05]": "it is a pickle, and opening it runs what it holds; if you trust it:"
    " dgcl.graph.as_graph(pickle.load(open({0}, 'rb')))",
    rb"\x3f\xa1\xb4\x46\xf0\x4f\x2e\xdd": "DGL wrote it; dgcl.graph.as_graph(dgl.load_graphs({0})[0][0])",
    rb"\x28\xb5\x2f\xfd": "it is compressed by Zstandard; unpack it: zstd -d {0}",
    rb".{257}ustar": "it is an archive; unpack it: tar -xf {0}",
}


def read_graph(
    path: str | os.PathLike[str],
    *,
    num_nodes: int | None = None,
    compact: bool = False,
    undirected: bool | None = None,
    format: str | None = None,
    edge_ids: bool = True,
) -> GraphFile:
    """Read a graph file; what it begins with says of which kind it is.

    - npz: ``num_nodes``, ``directed``, CSR of out-neighbours ``indptr`` and ``indices``; optionally features
      (CSR ``feat_indptr``, ``feat_indices``, ``feat_data``, ``feat_shape``, or dense ``features``),
      ``labels``, ``train_mask``, ``val_mask``, ``test_mask``. Where ``directed`` is false both directions are
      stored. Edge ids are positions in ``indices``.
      So are scipy's (``scipy.sparse.save_npz``): entry (u, v) is the edge u->v.
    - Text edge list, SNAP style: a line ``u v`` is the edge u->v; ``#`` begins a comment. Ids
      are used as they are: the vertices are 0..largest id, and those that no line names have no edges.
      Further columns are not read. Edge ids count the edges' lines. A first line ``n m`` (or ``n n m``) above m edges
      of n vertices is no edge; where ids are 1..n there, vertex v is the file's v + 1 (``node_ids``).
    - METIS: a first line ``n m [fmt [ncon]]`` and n lines with the neighbours of one vertex each, from 1; weights are
      not read. It is METIS if all lines agree with the first one. Edge ids count the neighbours.
    - Matrix Market, coordinate format: entry (u, v), from 1, is the edge u-1 -> v-1. Edge ids
      count the entries.

    Text may be compressed: gzip, bzip2, xz.

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
        format: "edges" (each line is one), "metis", "mtx" or "npz", where you know better.
        edge_ids: False: edges are numbered in the order of their destinations instead; reading npz takes half the
            memory.

    Warns:
        UserWarning: A comment of a text edge list announces other numbers of vertices or edges.

    Raises:
        ValueError: the file is not what it should be; the message names the file and the line or array.
        OSError: the file cannot be read.
    """
    name = check_path(path, "path")
    num_nodes = None if num_nodes is None else as_num_nodes(num_nodes)
    check_flag(compact, "compact")
    check_flag(edge_ids, "edge_ids")
    if undirected is not None:
        check_flag(undirected, "undirected")
    kind, graph = _kind(path) if format is None else (check_choice(format, "format", FORMATS), None)
    if kind != "edges" and (compact or undirected):
        raise ValueError(
            f"{name}: compact and undirected are for text edge lists (this is {kind}); format='edges' reads one"
        )
    if kind == "npz":
        result = read_npz_graph(path, edge_ids=edge_ids)
    elif kind == "mtx":
        result = GraphFile(_graph_of(name, read_matrix_market(path)))
    elif kind == "metis":
        result = GraphFile(graph or read_metis(path))
    else:
        result = _edge_list(path, num_nodes, compact, undirected, counts=format is None)
    if num_nodes is not None and result.graph.num_nodes != num_nodes:
        raise ValueError(
            f"{name}: has {result.graph.num_nodes} vertices, but num_nodes is {num_nodes}; leave num_nodes out"
        )
    return result if edge_ids else replace(result, graph=replace(result.graph, edge_ids=None))


def _kind(path: str | os.PathLike[str]) -> tuple[str, Graph | None]:
    """Tell the kinds of files apart by what is in them; a METIS graph has been read then."""
    name = os.fspath(path)
    with open_text(path) as file:
        head = file.read(512)  # as far as tar's own mark
    for begin, way_out in _OTHERS.items():
        if re.match(begin, head, re.DOTALL):
            raise ValueError(f"{name}: {way_out.format(repr(name))}")
    if head.startswith(b"PK"):
        return "npz", None
    if name.endswith(".npz"):
        raise ValueError(
            f"{name}: not an npz archive, though it is called so; write it with np.savez, or call it what it is"
        )
    if head.lower().startswith(MARKET_BANNER) or re.search(r"\.mtx(\.\w+)?$", name):
        return "mtx", None
    with suppress(NotMetisError):
        return "metis", read_metis(path)
    return "edges", None


def _edge_list(
    path: str | os.PathLike[str], num_nodes: int | None, compact: bool, undirected: bool | None, counts: bool
) -> GraphFile:
    name = os.fspath(path)
    edges = read_edge_list(path, None if compact else num_nodes, counts=counts)
    undirected = edges.symmetric if undirected is None else undirected
    if len(edges.src) == 0 and num_nodes is None:
        raise ValueError(
            f"{name}: has no edges, which leaves the number of vertices open; pass num_nodes (--num-nodes)"
        )
    node_ids = None
    if compact:
        node_ids, (src, dst) = np.unique(np.stack([edges.src, edges.dst]), return_inverse=True)
        node_ids = node_ids.astype(np.int64) + edges.first_id
        edges = replace(edges, src=src, dst=dst, num_nodes=len(node_ids))
    elif edges.num_nodes is None:
        guess = guess_num_nodes(
            edges.src, edges.dst, name, "pass compact=True (--compact) to number the ids that occur"
        )
        edges = replace(edges, num_nodes=guess)
    elif edges.first_id:
        node_ids = np.arange(1, edges.num_nodes + 1)
    graph = _graph_of(name, replace(edges, symmetric=undirected))
    return GraphFile(graph, node_ids=node_ids, undirected=undirected)


def _graph_of(name: str, edges: TextEdges) -> Graph:
    """The graph of text edges, with the other direction after the written one."""
    src, dst = edges.src, edges.dst
    if edges.symmetric:
        between = src != dst
        src, dst = np.concatenate([src, dst[between]]), np.concatenate([dst, src[between]])
    return graph_from_edges(src, dst, edges.num_nodes, name=name)

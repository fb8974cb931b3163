"""Converts what users hold (objects of other libraries, arrays, file paths) to a :class:`~dgcl.graph.Graph`.

`as_graph` lists what is taken, and the edge order of each kind.
Called by users, `dgcl/prepare/shares`, `dgcl/distributed/dispatch`, `dgcl/advisor/choice`, `dgcl/bench/problems` and
others. Free to change while each kind has its documented edge order (`tests/dgcl/graph/test_sources.py`), and what is
no graph, or no file, is refused by name (`tests/dgcl/graph/test_csr.py`, `tests/dgcl/test_messages.py`).
"""

import os
from typing import Any

from dgcl.graph.csr import Graph
from dgcl.graph.graph_files import read_graph
from dgcl.graph.id_arrays import as_num_nodes
from dgcl.graph.sources import graph_from_object


def as_graph(obj: Any, num_nodes: int | None = None) -> Graph:
    """Turn what the user holds into a :class:`~dgcl.graph.Graph`.

    What may be given, and its edge order (which ``edge_ids`` counts, and edge weights are given in):

    - :class:`~dgcl.graph.Graph`: unchanged.
    - DGLGraph: DGL's edge ids, also where only CSR or CSC is stored.
    - PyG ``Data``: the columns of ``edge_index``; with ``adj_t`` instead, its stored entries.
    - ``HeteroData``, or a DGLGraph of several types: types of vertices are numbered through in the order of
      ``node_types`` (``ntypes``), types of edges in that of ``edge_types`` (``canonical_etypes``).
    - edge_index of shape (2, E), tensor, array or two lists: the columns.
    - networkx ``Graph``, ``DiGraph``, ``MultiGraph``, ``MultiDiGraph``: ``G.to_directed().edges()``. An
      undirected edge counts in both directions, a self loop once, parallel edges by key.
    - scipy or torch sparse matrix A, where A[u, v] is the edge u->v: the stored entries (``A.data``). An
      explicit zero is an edge, and so is each duplicate. The scipy formats lil, dok and dia: the entries of
      ``A.tocoo()``; bsr: the same without the zeros that fill its blocks.
    - tuple (indptr, indices), the CSR of out-neighbours: the positions in ``indices``.
    - path (str or PathLike): see :func:`dgcl.graph.graph_files.read_graph`.

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
        OSError: the file is missing, or cannot be read.
    """
    count = None if num_nodes is None else as_num_nodes(num_nodes)
    if isinstance(obj, Graph):
        if count is not None and count != obj.num_nodes:
            raise ValueError(
                f"num_nodes is {count}, but the graph has {obj.num_nodes} vertices; leave num_nodes out"
            )
        return obj
    if isinstance(obj, (str, os.PathLike)):
        return _from_path(obj, count)
    return graph_from_object(obj, count)


def _from_path(path: str | os.PathLike[str], num_nodes: int | None) -> Graph:
    """A graph file; system errors keep their kind and name the argument."""
    name = os.fspath(path)
    try:
        return read_graph(path, num_nodes=num_nodes).graph
    except FileNotFoundError:
        where = "" if os.path.isabs(name) else f" in {os.getcwd()}"
        raise FileNotFoundError(f"graph: there is no file {name!r}{where}") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"graph: {name!r} is a folder; name a graph file") from None
    except OSError as error:
        raise type(error)(f"graph: {name!r} cannot be read: {error.strerror or error}") from None

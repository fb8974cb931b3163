"""Reads graphs of DGL, PyG, networkx, scipy and torch, without importing any of these.

An object can only be a DGL graph if dgl is loaded already, so its module is looked up, never imported. The table of
edge orders is in :func:`dgcl.graph.as_graph`.
Called by users, `convert` and `graph_npz`. Free to change while vertices, edges and edge order are those documented
for each library and format (`tests/dgcl/graph/test_sources.py`).
"""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.build_csr import graph_from_csr, graph_from_edges
from dgcl.graph.csr import Graph
from dgcl.graph.id_arrays import as_ids, is_a, is_tensor
from dgcl.graph.typed import TypedGraph, graph_of_types

ACCEPTED = (
    "a DGLGraph, PyG Data or HeteroData, an edge_index of shape (2, E), a networkx graph, a scipy or torch "
    "sparse matrix, CSR arrays (indptr, indices), or a file's path"
)


def graph_from_object(obj: Any, num_nodes: int | None) -> Graph:
    """Build a :class:`Graph` from anything but a Graph or a path; see :func:`dgcl.graph.as_graph`."""
    if is_a(obj, "dgl", "DGLGraph"):
        return _from_dgl(obj, num_nodes)
    if is_a(obj, "torch_geometric.data", "HeteroData"):
        return _from_hetero(obj)
    if is_a(obj, "torch_geometric.data", "Data"):
        return _from_pyg(obj, num_nodes)
    if is_a(obj, "networkx", "Graph"):
        return _from_networkx(obj, num_nodes)
    if is_a(obj, "scipy.sparse", "sparray") or is_a(obj, "scipy.sparse", "spmatrix"):
        return _from_scipy(obj, num_nodes)
    if is_tensor(obj) and str(obj.layout) != "torch.strided":
        return _from_torch_sparse(obj, num_nodes)
    if isinstance(obj, tuple):
        if len(obj) != 2:
            raise ValueError(f"a graph given as a tuple must be (indptr, indices) (got {len(obj)} items)")
        return graph_from_csr(obj[0], obj[1], num_nodes, name="graph (indptr, indices)")
    if isinstance(obj, np.ma.MaskedArray):
        raise TypeError("edge_index must not be a masked array; select its columns: edge_index.data[:, kept]")
    if is_tensor(obj) or isinstance(obj, (np.ndarray, list)):
        return _from_edge_index(obj, num_nodes)
    raise TypeError(f"graph must be {ACCEPTED} (got {type(obj).__module__}.{type(obj).__qualname__})")


def networkx_nodes(graph: Any) -> list[Any]:
    """Return a networkx graph's nodes in the order of the ids that :func:`dgcl.graph.as_graph` gives them.

    That is 0..n-1 where the nodes are exactly these integers, and ``G.nodes()`` in order otherwise.
    """
    if not hasattr(graph, "nodes"):
        raise TypeError(f"graph must be a networkx graph (got {type(graph).__name__})")
    nodes = list(graph.nodes())
    plain = all(isinstance(node, (int, np.integer)) and not isinstance(node, bool) for node in nodes)
    if plain and set(nodes) == set(range(len(nodes))):
        return list(range(len(nodes)))
    return nodes


def _require_count(name: str, own: int, num_nodes: int | None) -> int:
    """The number of vertices that a source states itself."""
    if own < 1:
        raise ValueError(f"{name} has no vertices; a graph needs at least one")
    if num_nodes is not None and num_nodes != own:
        raise ValueError(f"{name} has {own} vertices, but num_nodes is {num_nodes}; leave num_nodes out")
    return own


def _from_edge_index(edge_index: Any, num_nodes: int | None, name: str = "edge_index") -> Graph:
    """A (2, E) tensor or array; also two lists."""
    if isinstance(edge_index, list) and len(edge_index) == 2 and all(is_tensor(row) for row in edge_index):
        return graph_from_edges(edge_index[0], edge_index[1], num_nodes, name=name)
    if is_a(edge_index, "torch_geometric", "EdgeIndex"):
        sizes = [size for size in edge_index.sparse_size() if size is not None]
        num_nodes = _require_count(name, max(sizes), num_nodes) if sizes else num_nodes
    ids = as_ids(edge_index, name, ndim=2)
    if ids.shape[0] != 2:
        hint = (
            "transpose it"
            if ids.shape[1] == 2
            else "for an adjacency matrix pass scipy.sparse.csr_array(matrix)"
        )
        raise ValueError(
            f"{name} must have shape (2, E), sources then destinations (got {ids.shape}; {hint})"
        )
    return graph_from_edges(ids[0], ids[1], num_nodes, name=name)


def _from_dgl(graph: Any, num_nodes: int | None) -> Graph:
    """Types in the order of `graph.ntypes` and of `graph.canonical_etypes`."""
    if graph.is_block:
        raise TypeError("graph must be the whole graph (got a DGL block)")
    if not graph.is_homogeneous:
        nodes = {
            name: _require_count(f"vertices of {name!r}", graph.num_nodes(name), None)
            for name in graph.ntypes
        }
        return graph_of_types(
            nodes, ((each, np.stack(_dgl_edges(graph[each]))) for each in graph.canonical_etypes)
        )
    count = _require_count("DGLGraph", int(graph.num_nodes()), num_nodes)
    return graph_from_edges(*_dgl_edges(graph), count, name="DGLGraph")


def _dgl_edges(graph: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """DGL keeps any of COO, CSR and CSC: read what it has, and add none to the user's graph."""
    created = graph.formats()["created"]
    if "coo" in created:
        src, dst = graph.edges(order="eid")
        return as_ids(src, "DGLGraph"), as_ids(dst, "DGLGraph")
    kind = "csc" if "csc" in created else "csr"
    indptr, indices, edge_ids = (as_ids(array, f"DGLGraph: {kind}") for array in graph.adj_tensors(kind))
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=indices.dtype), np.diff(indptr))
    src, dst = (rows, indices) if kind == "csr" else (indices, rows)
    if len(edge_ids) == 0:  # DGL's way to say that positions are edge ids
        return src, dst
    by_edge_id = np.empty_like(edge_ids)
    by_edge_id[edge_ids] = np.arange(len(edge_ids), dtype=edge_ids.dtype)
    return src[by_edge_id], dst[by_edge_id]


def _from_pyg(data: Any, num_nodes: int | None) -> Graph:
    """`Data` states its number of nodes, in `num_nodes` or through `x`, or PyG warns that it guesses."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            own = data.num_nodes
        except UserWarning:
            own = None
    count = num_nodes if own is None else _require_count("PyG Data", int(own), num_nodes)
    if data.get("edge_index") is not None:
        return _from_edge_index(data.edge_index, count, "PyG Data: edge_index")
    adj_t = data.get("adj_t")
    if adj_t is None:
        raise ValueError(
            f"PyG Data must have an edge_index or adj_t (got the keys {sorted(map(str, data.keys()))})"
        )
    if is_tensor(adj_t):  # row v of the transposed adjacency lists the vertices that v reads
        return _from_torch_sparse(adj_t, count, transposed=True)
    indptr, indices, _ = adj_t.csr()
    return graph_from_csr(indptr, indices, count, name="PyG Data: adj_t", by_head=True)


def _from_hetero(data: Any) -> TypedGraph:
    """Types of vertices in the order of `data.node_types`, types of edges in that of `data.edge_types`."""
    for edge_type in data.edge_types:
        if "edge_index" not in data[edge_type]:
            raise ValueError(
                f"data[{edge_type}] must have an edge_index (got {list(data[edge_type].keys())})"
            )
    nodes = {
        name: _require_count(f"data[{name!r}]", data[name].num_nodes or 0, None) for name in data.node_types
    }
    return graph_of_types(nodes, ((name, data[name].edge_index) for name in data.edge_types))


def _from_networkx(graph: Any, num_nodes: int | None) -> Graph:
    """The adjacency of an undirected networkx graph already has both directions, and a self loop once."""
    nodes = networkx_nodes(graph)
    count = _require_count(type(graph).__name__, len(nodes), num_nodes)
    number = {node: i for i, node in enumerate(nodes)}
    parallel = graph.is_multigraph()
    ends = (
        number[end]
        for node, neighbours in graph.adjacency()
        for other, keys in neighbours.items()
        for _ in range(len(keys) if parallel else 1)
        for end in (node, other)
    )
    pairs = np.fromiter(ends, np.int64).reshape(-1, 2)
    return graph_from_edges(pairs[:, 0], pairs[:, 1], count, name=type(graph).__name__)


def _count_of_square(name: str, shape: tuple[int, ...], num_nodes: int | None) -> int:
    """The number of vertices of a matrix."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"{name} must be square: one row and one column per vertex (got shape {shape})")
    return _require_count(name, int(shape[0]), num_nodes)


def _from_scipy(matrix: Any, num_nodes: int | None) -> Graph:
    """Entries as they are stored: nothing is summed, and an explicit zero is an edge."""
    name = f"scipy {type(matrix).__name__}"
    count = _count_of_square(name, matrix.shape, num_nodes)
    if matrix.format in ("csr", "csc"):
        return graph_from_csr(matrix.indptr, matrix.indices, count, name=name, by_head=matrix.format == "csc")
    entries = matrix.tocoo()
    src, dst = entries.row, entries.col
    if matrix.format == "bsr":  # its blocks are dense: their zeros are filling, not entries
        kept = entries.data != 0
        src, dst = src[kept], dst[kept]
    return graph_from_edges(src, dst, count, name=name)


def _from_torch_sparse(tensor: Any, num_nodes: int | None, *, transposed: bool = False) -> Graph:
    """Entries as they are stored, like scipy's; `transposed`: A[v, u] is the edge u -> v."""
    layout = str(tensor.layout).removeprefix("torch.")
    name = f"torch tensor of layout {layout}"
    count = _count_of_square(name, tuple(tensor.shape), num_nodes)
    if layout == "sparse_coo":
        row, col = tensor._indices()
        src, dst = (col, row) if transposed else (row, col)
        return graph_from_edges(src, dst, count, name=name)
    if layout not in ("sparse_csr", "sparse_csc"):
        raise TypeError(f"graph must not be a {name}; use tensor.to_sparse_csr()")
    if by_column := layout == "sparse_csc":
        ptr, ids = tensor.ccol_indices(), tensor.row_indices()
    else:
        ptr, ids = tensor.crow_indices(), tensor.col_indices()
    return graph_from_csr(ptr, ids, count, name=name, by_head=transposed != by_column)

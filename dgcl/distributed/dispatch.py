"""Divides a graph of PyG or DGL and its tensors over the ranks: :func:`dgcl.dispatch`.

Rank 0 tells by sizes and names which tensors have a row for each vertex or each edge; the others get this schema first.
Then tensors are sent one by one, to each rank its own rows; what has no such rows goes to every rank, as a copy.
Run by users, as ``dgcl.dispatch``. Free to change while each rank stores the rows of its vertices and edges, all of
them together are the data that went in, and data that cannot be divided is an error on every rank
(`tests/dgcl/frameworks/test_dispatch.py`).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from dgcl.build import build_comm_info
from dgcl.distributed.edge_names import in_own_form, in_pyg_form
from dgcl.graph import as_graph
from dgcl.graph.id_arrays import is_a
from dgcl.graph.typed import EdgeType, TypedGraph
from dgcl.ranks.context import context
from dgcl.ranks.set_up import set_up_call
from dgcl.ranks.whole_rows import agree, dispatch_rows
from dgcl.rows.row_sums import state_of
from dgcl.rows.tensor import OneDevice, rows
from dgcl.rows.view import View, share_generators

#: What names of PyG's own are rows of, where there are as many edges as vertices.
_KNOWN = {"x": "vertices", "pos": "vertices", "edge_attr": "edges", "edge_weight": "edges"}


class _Item(NamedTuple):
    """A value of the user's object, in the store of a type of vertices or edges; "": there is one."""

    store: str | EdgeType
    name: str
    rows: str  # "vertices", "edges", or "" for what is no rows of either
    value: Any


class _Schema(NamedTuple):
    """What rank 0 has: items, of rows without their values; and (first, number) by type of vertices and of edges."""

    framework: str
    items: list[_Item]
    node_types: dict[Any, tuple[int, int]]
    edge_types: dict[Any, tuple[int, int]]


@set_up_call
def dispatch(
    data: Any = None,
    *,
    vertices: Collection[str] = (),
    edges: Collection[str] = (),
    flow: str = "source_to_target",
    ends: Mapping[str, str] | None = None,
    gather_limit: int = 10**7,
    **options: Any,
) -> Any:
    """Partition a graph with its data, plan, connect, and return the data in one device's view. Collective.

        >>> dgcl.init()
        >>> data = dgcl.dispatch(data)                # and on with the program of one device
        >>> model = dgcl.distribute(model)

    Tensors with a row for each vertex (features, labels, masks), or for each edge, show all rows, and each rank stores
    those of its vertices and edges (:mod:`dgcl.rows`). All else is given whole. Every rank gets rank 0's states of the
    generators of torch, NumPy and Python.

    Args:
        data: A PyG ``Data`` or ``HeteroData``, a dict of tensors, or a ``DGLGraph``, on rank 0 alone (others pass
            None) or on every rank.
        vertices, edges: Lists of names of tensors with a row for each vertex, or edge, where sizes leave both open.
        flow: "target_to_source", PyG's word, where row 0 of ``edge_index`` has the targets, which sum over edges.
        ends: Two vectors of ids by what they are, in the place of ``edge_index``:
            ``{"idx_j": "source", "idx_i": "target"}``.
        gather_limit: Elements up to which a function without a rule of its own gets all rows.
        options: As of :func:`dgcl.build_comm_info`, which makes the communicator, the current one from now on.

    Returns:
        A new object of the same kind; of a ``DGLGraph`` a :class:`dgcl.distributed.rank_graph.RankGraph`.

    Raises:
        ValueError, TypeError: Data that cannot be divided, by name; raised on every rank.
    """
    control = context.require_control()
    problem, items, schema, graph = None, [], None, None
    if data is not None:
        try:
            if isinstance(edges, str) or isinstance(vertices, str):
                raise TypeError(
                    f"vertices and edges must be lists of names (got {edges or vertices!r}): who sums an edge is"
                    " strategy='cover'"
                )
            data = in_pyg_form(data, flow, ends)
            framework = next((name for name, (module, _) in _GIVE.items() if is_a(data, module, name)), "")
            if not framework or any(
                isinstance(value, OneDevice)
                for store in getattr(data, "stores", ())
                for value in store.values()
            ):
                raise TypeError(
                    f"data must be a PyG Data or HeteroData, or a DGLGraph, of the whole graph (got"
                    f" {type(data).__name__}): use what dgcl.dispatch gave as it is; other graphs go to"
                    " dgcl.build_comm_info, and rows to dgcl.dispatch_features"
                )
            graph = as_graph(data)
            node, edge = ("", "") if hasattr(data, "stores") else (data.ntypes[0], data.canonical_etypes[0])
            nodes, of_edges = {node: (0, graph.num_nodes)}, {edge: (0, graph.num_edges)}
            if isinstance(graph, TypedGraph):
                nodes, of_edges = graph.node_types, graph.edge_types  # type: ignore[assignment]
            named = dict.fromkeys(vertices, "vertices") | dict.fromkeys(edges, "edges")
            items = [*_items(data, nodes, of_edges, named)]
            if unknown := named.keys() - {each.name for each in items}:
                raise ValueError(
                    f"vertices and edges must name tensors of data (got {', '.join(sorted(unknown))})"
                )
            schema = _Schema(
                framework,
                [each._replace(value=None) if each.rows else each for each in items],
                nodes,
                of_edges,
            )
        except (TypeError, ValueError) as error:
            problem = error
    schema = agree(control, problem, schema if control.rank == 0 else None)[0]
    if schema is None:
        raise ValueError("data must be given on rank 0 (got None there)")
    comm = build_comm_info(graph if control.rank == 0 else None, **options)
    comm.view = view = View(comm, schema.node_types, schema.edge_types, comm.local.edge_ids)
    state_of(comm).gather_limit = gather_limit
    share_generators(comm)
    own = {each[:3]: each.value for each in items}
    handed = [each._replace(value=_rows(view, each, own.get(each[:3]))) for each in schema.items]
    return in_own_form(_GIVE[schema.framework][1](view, handed))


def _items(
    data: Any, nodes: dict[Any, tuple[int, int]], edges: dict[Any, tuple[int, int]], named: dict[str, str]
) -> Iterator[_Item]:
    """What is in the user's object, but for its edges.

    Raises:
        ValueError: It cannot be said what something is, or it cannot be divided.
    """
    if not hasattr(data, "stores"):
        for what, spaces, keys in (("vertices", data.nodes, nodes), ("edges", data.edges, edges)):
            for key in keys:
                yield from (_Item(key, name, what, value) for name, value in spaces[key].data.items())
        return
    for store in data.stores:
        key = store._key or ""
        sizes = {"vertices": nodes.get(key, (0, -1))[1], "edges": edges.get(key, (0, -1))[1]}
        for name, value in store.items():
            if name in ("edge_index", "num_nodes"):
                continue
            length = _num_rows(data, name, value)
            rows = [kind for kind, size in sizes.items() if length == size]
            if name in named or len(rows) == 2:
                kind = named.get(name) or _KNOWN.get(name)
                if kind not in rows:
                    raise ValueError(
                        f"data.{name} has {length} rows, and there are {sizes['vertices']} vertices and"
                        f" {sizes['edges']} edges; name it in vertices=[...] or edges=[...], as what it is"
                    )
                rows = [kind]
            if f"{name}_index" in store:  # labels of pairs, one for each column of its ids
                rows = []
            if rows and isinstance(value, (list, tuple)):
                raise ValueError(
                    f"data.{name} must be a tensor to be divided by {rows[0]} (got a list); or delete it"
                )
            yield _Item(key, name, rows[0] if rows else "", value)


def _num_rows(data: Any, name: str, value: Any) -> int | None:
    """How many rows a value has; None for what has none, ids in columns among them."""
    if isinstance(value, (list, tuple)):
        return len(value)
    if not isinstance(value, (Tensor, np.ndarray)) or value.ndim == 0:
        return None
    return len(value) if value.ndim == 1 or data.__cat_dim__(name, value) == 0 else None


def _rows(view: View, item: _Item, value: Any) -> Any:
    """Rows of an item, of which this rank stores its own; of no rows the whole."""
    comm = view.comm
    if not item.rows:
        # A copy: ranks that are threads would share it, and libraries write into it.
        return item.value.to(comm.device, copy=True) if isinstance(item.value, Tensor) else item.value
    space = getattr(view, item.rows)[item.store]
    own = dispatch_rows(comm.control, value, space.size, space.keys.numpy(), item.name, item.rows)
    return rows(own.to(comm.device), space)


def _give_data(view: View, items: list[_Item]) -> Any:
    from torch_geometric.data import Data

    size = view.vertices[""].size
    return Data(edge_index=view.edge_index(), num_nodes=size, **{each.name: each.value for each in items})


def _give_hetero(view: View, items: list[_Item]) -> Any:
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for name, space in view.vertices.items():
        data[name].num_nodes = space.size
    for edge_type in view.edges:
        data[edge_type].edge_index = view.edge_index(edge_type)
    for each in items:
        (data[each.store] if each.store else data)[each.name] = each.value
    return data


def _give_dgl(view: View, items: list[_Item]) -> Any:
    from dgcl.distributed.rank_graph import RankGraph

    graph = RankGraph(view)
    for each in items:
        (graph.nodes if each.rows == "vertices" else graph.edges)[each.store].data[each.name] = each.value
    return graph


#: By the name of a class of graphs its module, and what makes a rank's.
_GIVE = {
    "Data": ("torch_geometric.data", _give_data),
    "HeteroData": ("torch_geometric.data", _give_hetero),
    "DGLGraph": ("dgl", _give_dgl),
}

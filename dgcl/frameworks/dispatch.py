"""A graph object of PyG or DGL, with all its rows, to the ranks and back: :func:`dgcl.dispatch` and ``collect``.

Rank 0 decides what goes by vertices and what by edges; each tensor is then handed out by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgcl.build import build_comm_info
from dgcl.frameworks.edge_names import in_own_form, in_pyg_form
from dgcl.frameworks.edge_sets import edge_set_of, edges_of, remember, remember_rows
from dgcl.graph import as_graph
from dgcl.graph.sources import is_a
from dgcl.graph.typed import EdgeType, TypedGraph, within
from dgcl.options import EdgeOptions
from dgcl.ranks.context import context
from dgcl.ranks.set_up import set_up_call
from dgcl.ranks.tensors import beside_the_graph
from dgcl.ranks.whole_rows import agree, dispatch_rows
from dgcl.rows.view import as_one_device, share_generators
from dgcl.topology.checks import check_flag

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


_log = logging.getLogger("dgcl")

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
    edges: Collection[str] | EdgeOptions = (),
    flow: str = "source_to_target",
    ends: Mapping[str, str] | None = None,
    typed: bool = False,
    gather_limit: int = 10**7,
    **options: Any,
) -> Any:
    """Partition a graph with its data, plan, connect, and give this rank its part of all of it. Collective.

        >>> dgcl.init()
        >>> data = dgcl.dispatch(data)                # and on with the program of one device, on this rank's rows

    Tensors with a row for each vertex (features, labels, masks) become those of this rank's vertices, tensors with a
    row for each edge those of its edges; ``edge_index`` leads from rows [owned | halo] to owned ones. All else is
    given whole: ids in it, as in ``train_idx`` or ``edge_label_index``, stay those of the whole graph, as
    :func:`dgcl.fetch` takes them.

    Args:
        data: A PyG ``Data`` or ``HeteroData``, a dict of tensors, or a ``DGLGraph``, on rank 0 alone (others pass
            None) or on every rank.
        vertices, edges: Lists of names of tensors with a row for each vertex, or edge, where sizes leave both open.
            (A placement of edges, as "head", is the option of that name.)
        flow: "target_to_source", PyG's word, where row 0 of ``edge_index`` has the targets, which sum over edges.
        ends: Two vectors of ids by what they are, in the place of ``edge_index``:
            ``{"idx_j": "source", "idx_i": "target"}``.
        typed: Give tensors that show one device's shape and values, and store this rank's rows
            (:mod:`dgcl.rows`): the script's own lines then give the numbers of one device.
        gather_limit: With ``typed`` elements up to which a function without a rule of its own gets all rows.
        options: As of :func:`dgcl.build_comm_info`, which makes the communicator, the current one from now on.

    Returns:
        A new object of the same kind; of a ``DGLGraph`` a :class:`dgcl.frameworks.rank_graph.RankGraph`.

    Raises:
        ValueError, TypeError: Data that cannot be divided, by name; raised on every rank.
    """
    control = context.require_control()
    if isinstance(edges, (str, EdgeOptions)):
        options, edges = options | {"edges": edges}, ()
    problem, items, schema, graph = None, [], None, None
    if data is not None:
        try:
            data = in_pyg_form(data, flow, ends)
            framework = next((name for name, (module, _) in _GIVE.items() if is_a(data, module, name)), "")
            if not framework or hasattr(data, "whole_kind"):
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
    comm.dispatched = (
        {each[:2]: each.rows for each in schema.items},
        {
            "vertices": (schema.node_types, comm.layout.owned_ids),
            "edges": (schema.edge_types, comm.local.edge_ids),
        },
    )
    whole = [
        each.name
        for each in schema.items
        if isinstance(each.value, Tensor)
        and each.value.dim()
        and each.value.dtype in (torch.int32, torch.int64)
    ]
    if whole and control.rank == 0:
        _log.warning(
            "data: %s stay whole; ids in them are of the whole graph, as dgcl.fetch takes them",
            ", ".join(whole),
        )
    own = {each[:3]: each.value for each in items}
    handed = [each._replace(value=_rows(comm, each, own.get(each[:3]))) for each in schema.items]
    rank_data = _GIVE[schema.framework][1](comm, schema, handed)
    if check_flag(typed, "typed"):
        share_generators(comm)
        return in_own_form(as_one_device(rank_data, comm, gather_limit))
    return rank_data


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
            if name == "adj_t":
                raise ValueError(
                    "data has adj_t, of which ranks take no part: dispatch data with edge_index, as it is before"
                    " ToSparseTensor"
                )
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


def _rows(comm: Communicator, item: _Item, value: Any) -> Any:
    """This rank's rows of an item; of no rows the whole."""
    if not item.rows:
        # A copy: ranks that are threads would share it, and libraries write into it.
        return item.value.to(comm.device, copy=True) if isinstance(item.value, Tensor) else item.value
    types, ids = comm.dispatched[1][item.rows]
    place = types[item.store]
    rows = dispatch_rows(comm.control, value, place[1], within(ids, *place), item.name, item.rows)
    return remember_rows(rows.to(comm.device), comm)


def _give_data(comm: Communicator, schema: _Schema, items: list[_Item]) -> Any:
    from dgcl.frameworks.rank_data import RankData

    if comm.edges == "head":
        edge_index = comm.local_graph("pyg", device=comm.device).edge_index
    else:  # no numbers of rows fit: some edges end at others' vertices
        edge_index = remember(whole_ends(comm, "").to(comm.device), edges_of(comm))
    return RankData(
        edge_index=edge_index, num_nodes=comm.num_owned, **{each.name: each.value for each in items}
    )


def whole_ends(comm: Communicator, store: str | EdgeType) -> Tensor:
    """``(2, E)`` ids in the whole graph, within their types, of both ends of the edges that this rank sums."""
    (nodes, _), (edges, ids) = comm.dispatched[1].values()
    local, (first, number) = comm.local, edges[store]
    heads = np.concatenate([local.owned_ids, local.partial_ids])[local.heads]
    ends = np.stack([local.local_ids[local.indices], heads]) // comm.grid.slices
    mine = (ids >= first) & (ids < first + number)
    return torch.from_numpy(ends[:, mine] - [nodes[name][:1] for name in store[::2] or ("", "")])


def _give_hetero(comm: Communicator, schema: _Schema, items: list[_Item]) -> Any:
    from dgcl.frameworks.rank_data import RankHeteroData

    data = RankHeteroData()
    for name, number in _numbers(comm, schema).items():
        data[name].num_nodes = number
    for edge_type in schema.edge_types:
        data[edge_type].edge_index = _edges_of_type(comm, edge_type)
    for each in items:
        (data[each.store] if each.store else data)[each.name] = each.value
    return data


def _numbers(comm: Communicator, schema: _Schema) -> dict[str, int]:
    """How many vertices of each type this rank owns, which the communicator gets to know."""
    comm.node_types = schema.node_types
    numbers = {name: len(comm._vertices(name)[0]) for name in schema.node_types}
    comm.end_ids = {
        name: (
            torch.from_numpy(comm.layouts[name].local_ids),
            torch.from_numpy(comm._vertices(head)[0]),
        )
        for name, head in (("__".join(each), each[2]) for each in schema.edge_types)
    }
    return numbers


def _edges_of_type(comm: Communicator, edge_type: EdgeType) -> Tensor:
    """``(2, E)``: from rows [owned | halo] of the type's exchange to owned rows of the type of its heads."""
    name = "__".join(edge_type)
    rows, owned = (ids.numpy() for ids in comm.end_ids[name])
    order = np.argsort(rows)
    sources, heads = whole_ends(comm, edge_type).numpy()
    places = order[np.searchsorted(rows, sources, sorter=order)]
    heads = np.searchsorted(owned, heads)
    return remember(torch.from_numpy(np.stack([places, heads])).to(comm.device), edges_of(comm, name))


def _give_dgl(comm: Communicator, schema: _Schema, items: list[_Item]) -> Any:
    from dgcl.frameworks.rank_graph import RankGraph, only_relation, relation_of

    (name, *_), (edge_type, *_) = schema.node_types, schema.edge_types
    if "__".join(edge_type) in comm.exchanges:
        numbers = _numbers(comm, schema)
        relations = {each: relation_of(_edges_of_type(comm, each), each[2]) for each in schema.edge_types}
    else:
        numbers, relations = {name: comm.num_owned}, {edge_type: only_relation(comm)}
    graph = RankGraph(comm, numbers, relations)
    for each in items:
        (graph.nodes if each.rows == "vertices" else graph.edges)[each.store].data[each.name] = each.value
    return graph


#: By the name of a class of graphs its module, and what makes a rank's.
_GIVE = {
    "Data": ("torch_geometric.data", _give_data),
    "HeteroData": ("torch_geometric.data", _give_hetero),
    "DGLGraph": ("dgl", _give_dgl),
}


@beside_the_graph
def collect_data(comm: Communicator, data: Any, dst: int | None, file: Any) -> Any:
    """Rows of vertices and edges in the order of the whole graph, all else as ``dst`` has it. Collective."""
    comm.require_neighbourhoods("collect(data)")
    whole, report, (known, places) = copy(data), dict[Any, Any](), comm.dispatched
    object.__setattr__(whole, "__class__", getattr(whole, "whole_kind", type(whole)))
    stores, of_dgl = whole.stores, isinstance(whole.stores, dict)
    ends = "" if of_dgl else "edge_index"
    if not of_dgl:
        stores = {store._key or "": store for store in stores}
    if not places or stores.keys().isdisjoint(places["vertices"][0]):
        raise ValueError("data must be what dgcl.dispatch gave on this communicator (got others)")
    for key, store in stores.items():
        for name, value in store.items():
            if name == "num_nodes" and not of_dgl:
                store[name] = places["vertices"][0][key][1]
            if name == ends:
                report[key, name] = f"edges of others on rank {comm.rank}"
                if getattr(value if of_dgl else edge_set_of(value), "comm", None) is comm:
                    report[key, name], store[name] = "edges", whole_ends(comm, key).t()
                continue
            report[key, name] = " or ".join(
                kind
                for kind, (types, ids) in places.items()
                if known.get((key, name), kind) == kind
                and key in types
                and len(within(ids, *types[key])) == _num_rows(data, name, value)
            ) or getattr(value, "shape", None)
    problem = (
        None
        if file is None
        else ValueError(f"file must be None with data: it takes one tensor (got {file!r})")
    )
    with comm.collective("collect"):
        reports = agree(comm.control, problem, report)
    for key, name in dict.fromkeys(at for theirs in reports for at in theirs):
        kind, *others = {theirs.get((key, name), "nothing") for theirs in reports}
        if others or kind == "vertices or edges":
            raise ValueError(
                f"data.{name} must have rows of vertices, of edges, or one shape on all ranks (got {kind}, {others}):"
                " collect it by itself; edge_index must be that of dgcl.dispatch, as it came"
            )
        if kind in places:
            types, ids = places[kind]
            ids, value = within(ids, *types[key]), stores[key][name]
            value = comm._collect("collect", value, dst, None, ids, types[key][1])
            stores[key][name] = value.t() if name == ends and value is not None else value
    if dst not in (None, comm.rank):
        return None
    return whole.whole(stores, places["vertices"][0]) if of_dgl else whole.cpu()

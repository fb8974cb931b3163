"""A rank's graph for DGL models of one device: rows are exchanged as messages read them.

Its vertices are those that the rank owns, its edges all that lead to them. ``update_all`` and ``apply_edges`` run on
the rank's block (:mod:`dgcl.frameworks.dgl_block`); what a message reads at its source comes from its owner then. So
layers of several hops, functions of one's own and :func:`dgl.nn.functional.edge_softmax` work as they are.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, NoReturn

import dgl
import torch
from dgl.core import message_passing
from dgl.function.message import BinaryMessageFunction, CopyMessageFunction, MessageFunction
from dgl.heterograph import reduce_dict_data
from dgl.udf import EdgeBatch
from dgl.view import EdgeSpace
from torch import Tensor

from dgcl.frameworks.dgl_block import LocalBlock, block_of
from dgcl.frameworks.edge_sets import EdgeSet, edge_set_of, edges_of
from dgcl.graph.typed import EdgeType
from dgcl.ranks.tensors import beside_the_graph
from dgcl.relation.local_graph import pointer

_SIDES = {0: "u", 1: "v", 2: "e"}  # DGL's codes

#: What a rank's graph takes from a graph of DGL that has its vertices alone.
_OF_VERTICES = re.compile(
    "ntypes|srctypes|dsttypes|etypes|canonical_etypes|get_etype_id|to_canonical_etype|is_homogeneous|is_block|device"
    "|batch_size|is_multigraph|idtype|ndata|srcdata|dstdata|apply_nodes|(num|number_of)_(src_|dst_)?nodes"
)

#: In-edges of one type: their set, and they as a block, which knows the degrees of owned vertices in the whole graph.
Relation = tuple[EdgeSet, LocalBlock]


def only_relation(comm: Any) -> Relation:
    """All edges that a rank sums, of a graph of one type."""
    local, rows = comm.local, slice(0, comm.num_owned * comm.grid.slices, comm.grid.slices)
    block = block_of(
        local.indptr, local.indices, local.num_local, local.in_degrees[rows], local.out_degrees[rows]
    )
    if comm.edges == "head":
        block.dstdata[dgl.NID] = comm.owned_ids
    return edges_of(comm), block.to(comm.device)


def relation_of(edge_index: Tensor, name: str) -> Relation:
    """Edges that end at vertices of a type, ascending by these, of which the set is remembered. Collective."""
    edges: Any = edge_set_of(edge_index)
    sources, heads = edge_index
    in_degrees = heads.bincount(minlength=edges.num_heads).cpu().numpy()
    out_degrees = sources.bincount(minlength=edges.num_sources)
    out_degrees = edges.comm.fold(out_degrees, edges.exchange).cpu().numpy()
    block = block_of(pointer(in_degrees), sources.cpu().numpy(), edges.num_sources, in_degrees, out_degrees)
    block.dstdata[dgl.NID] = torch.from_numpy(edges.comm._vertices(name)[0])
    return edges, block.to(edges.comm.device)


class RankGraph:
    """One rank's vertices and their in-edges, as DGL's layers and functions take a graph of one type or of several.

        >>> g = dgcl.dispatch(g)                         # a RankGraph with this rank's ndata and edata
        >>> out = model(g, g.ndata["feat"])              # collective

    Args:
        comm: The communicator.
        num_nodes: Owned vertices by type.
        relations: Edges by type.

    Attributes:
        comm: The communicator.
        ndata, edata: Rows of the owned vertices, and of the edges in the order of ``comm.dispatch_edges``; of several
            types ``ndata`` has them by type, and ``edges[etype].data`` has those of edges.
    """

    def __init__(
        self, comm: Any, num_nodes: Mapping[str, int], relations: Mapping[EdgeType, Relation]
    ) -> None:
        self.comm, self._relations = comm, relations
        no_edges: dict[EdgeType, Any] = {key: ([], []) for key in relations}
        self._vertices = dgl.heterograph(no_edges, num_nodes, idtype=torch.int64, device=comm.device)

    nodes = property(lambda self: RowsByType(lambda ntype: self._vertices.nodes[ntype].data))
    edges = property(lambda self: RowsByType(lambda etype: self._relation(etype)[1].edata))
    edata = property(lambda self: self._relation()[1].edata)

    @property
    def stores(self) -> dict[Any, dict[str, Any]]:
        """Rows by type, and sets of edges under no name, as :func:`dgcl.collect` takes them."""
        stores = {name: dict(self.nodes[name].data) for name in self.ntypes}
        return stores | {key: {**block.edata, "": edges} for key, (edges, block) in self._relations.items()}

    def whole(self, stores: Mapping[Any, dict[str, Any]], places: Mapping[str, tuple[int, int]]) -> Any:
        """The graph of DGL with all rows, ends of edges under no name, and (first, number) of vertices by type."""
        ends = {key: tuple(stores[key].pop("")) for key in self._relations}
        graph = dgl.heterograph(ends, {name: number for name, (_, number) in places.items()})
        for key, rows in stores.items():
            (graph.edges if key in ends else graph.nodes)[key].data.update(rows)
        return graph

    def __cat_dim__(self, *_: Any) -> int:
        return 0  # as PyG's data say where a tensor's rows are

    def __getitem__(self, etype: Any) -> RankGraph:
        """The edges of one type and their ends, with the same rows."""
        key, graph = self._key(etype), copy.copy(self)
        graph._vertices, graph._relations = self._vertices[key], {key: self._relations[key]}
        return graph

    def _relation(self, etype: Any = None) -> Relation:
        return self._relations[self._key(etype)]

    def _key(self, etype: Any) -> EdgeType:
        key: EdgeType = self.canonical_etypes[self.get_etype_id(etype)]
        return key

    @property
    def block(self) -> LocalBlock:
        """The edges, from [owned | halo] rows to owned ones."""
        self.comm.require_neighbourhoods("a message that is no row of a source times a weight")
        return self._relation()[1]

    @property
    def _graph(self) -> Any:  # DGL's edge softmax asks for it
        if sys._getframe(1).f_locals.get("norm_by") != "dst":
            raise ValueError(
                "a rank's graph takes edge_softmax with norm_by='dst', update_all and apply_edges, and no dgl.ops or"
                " dgl.reverse: out-edges of a vertex are on the ranks of their heads; dispatch the graph turned round"
            )
        return self.block._graph

    def num_edges(self, etype: Any = None) -> int:
        """How many edges lead to this rank's vertices."""
        relations = self._relations.values() if etype is None else [self._relation(etype)]
        return sum(block.num_edges() for _, block in relations)

    number_of_edges = num_edges

    def in_degrees(self, v: Any = dgl.base.ALL, etype: Any = None) -> Any:
        """In the whole graph."""
        return self._relation(etype)[1].in_degrees(v)

    def out_degrees(self, u: Any = dgl.base.ALL, etype: Any = None) -> Any:
        """In the whole graph."""
        return self._relation(etype)[1].out_degrees(u)

    def to(self, device: Any, **kwargs: Any) -> RankGraph:
        """A copy with its edges and rows on ``device``."""
        return self._with(lambda graph: graph.to(device, **kwargs))

    def local_var(self) -> RankGraph:
        """A copy whose frames may change."""
        return self._with(lambda graph: graph.local_var())

    def _with(self, change: Callable[[Any], Any]) -> RankGraph:
        graph = copy.copy(self)
        graph._vertices = change(self._vertices)
        graph._relations = {key: (edges, change(block)) for key, (edges, block) in self._relations.items()}
        return graph

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Undo what is done to the frames inside; of one of several types, dropout knows rows of its edges there."""
        before = dict(vars(self))
        messages: AbstractContextManager[None] = nullcontext()
        vars(self).update(vars(self.local_var()))
        if self.comm.node_types and len(self._relations) == 1:
            edges, block = self._relation()
            messages = edges.messages(torch.stack(block.edges()))
        try:
            with messages:
                yield
        finally:
            vars(self).update(before)

    @beside_the_graph
    def apply_edges(self, func: Any, edges: Any = dgl.base.ALL, etype: Any = None) -> None:
        """As DGLGraph.apply_edges, of all edges of a type. Collective."""
        if not dgl.base.is_all(edges):
            raise dgl.DGLError("edges must be all edges on a rank's graph; give others a weight of zero")
        graph = self if etype is None else self[etype]
        if isinstance(func, MessageFunction):
            with graph._lent(func):
                graph.block.apply_edges(func)
                rows = {func.out_field: graph.block.edata[func.out_field]}
        else:
            rows = func(graph._batch())
        graph.edata.update(rows)

    def update_all(
        self, message_func: Any, reduce_func: Any, apply_node_func: Any = None, etype: Any = None
    ) -> None:
        """As DGLGraph.update_all, over the edges of a type. Collective."""
        self.multi_update_all({etype: (message_func, reduce_func, apply_node_func)}, None)

    @beside_the_graph
    def multi_update_all(
        self, etype_dict: Mapping[Any, Any], cross_reducer: Any, apply_node_func: Any = None
    ) -> None:
        """As DGLGraph.multi_update_all. Collective."""
        results: dict[str, list[Any]] = {}
        for etype, (message, reduce, *apply) in etype_dict.items():
            graph, number = self if etype is None else self[etype], self.get_etype_id(etype)
            rows = graph._reduced(message, reduce, *apply or [None])
            results.setdefault(self.canonical_etypes[number][2], []).append((rows, number))
        for name, of_types in results.items():
            frames, order = zip(*of_types, strict=True)
            rows = reduce_dict_data(frames, cross_reducer, order)
            if getattr(reduce, "name", None) in ("max", "min"):  # as DGL does it
                for field in [*rows] if cross_reducer else [next(iter(rows))]:
                    rows[field] = dgl.backend.replace_inf_with_zero(rows[field])
            self.nodes[name].data.update(rows)
            if apply_node_func is not None:
                self.apply_nodes(apply_node_func, ntype=name)

    def _reduced(self, message: Any, reduce: Any, apply: Any) -> dict[str, Tensor]:
        """New rows of heads; maxima and minima over no edges are infinite."""
        rows: dict[str, Tensor] = {}
        if apply is None and self.comm.sums_elsewhere and not self.comm.node_types:
            rows = self._sums(message, reduce)
        if rows:
            return rows
        messages = None
        if not isinstance(message, MessageFunction):
            messages = message(self._batch())
        with self._lent(message):
            if messages is not None:
                self.block.edata.update(messages)
                name = getattr(reduce, "msg_field", None)
                message = (
                    dgl.function.copy_e(name, name)
                    if name
                    else lambda edges: {n: edges.data[n] for n in messages}
                )
            self.block.dstdata.update(self.dstdata)
            rows = message_passing(self.block, message, reduce, self.block.applied(reduce, apply))
        return rows

    def _sums(self, message: Any, reduce: Any) -> dict[str, Tensor]:
        """Let the communicator's aggregator sum rows of sources, as they are or times a weight; nothing of others."""
        name, kind = (getattr(each, "name", "") for each in (message, reduce))
        if name not in ("copy_u", "u_mul_e") or kind not in ("sum", "mean", "max", "min"):
            return {}
        field, weight = getattr(message, "in_field", ""), None
        if name == "u_mul_e":
            field, weight = message.lhs_field, self.edata[message.rhs_field].flatten()
        return {reduce.out_field: self._relation()[0].aggregate(self.srcdata[field], kind, weight)}

    @contextmanager
    def _lent(self, function: Any) -> Iterator[None]:
        """Let the block have what a function of DGL's reads: rows of sources are exchanged."""
        fields = []
        if isinstance(function, BinaryMessageFunction):
            fields = [(function.lhs, function.lhs_field), (function.rhs, function.rhs_field)]
        elif isinstance(function, CopyMessageFunction):
            fields = [(function.target, function.in_field)]
        with self.block.local_scope():
            for side, name in fields:
                match _SIDES.get(side, side):
                    case "u":
                        self.block.srcdata[name] = self._relation()[0].expand(self.srcdata[name])
                    case "v":
                        self.block.dstdata[name] = self.dstdata[name]
            yield

    def _batch(self) -> EdgeBatch:
        """All edges, for a function of the user's; rows are exchanged when it reads them."""
        sources, heads = self.block.edges()
        return EdgeBatch(
            self.block,
            torch.arange(self.num_edges(), dtype=self.idtype, device=self.device),
            self.canonical_etypes[0],
            _AtEdges(lambda name: self._relation()[0].expand(self.srcdata[name]), sources),
            self.edata,
            _AtEdges(self.dstdata.__getitem__, heads),
        )

    def __getattr__(self, name: str) -> Any:
        if _OF_VERTICES.fullmatch(name):
            return getattr(self._vertices, name)
        raise AttributeError(
            f"a rank's graph has no {name!r}: it has this rank's vertices and in-edges, their rows and degrees,"
            " graph[etype], local_scope, apply_edges, update_all and multi_update_all. Change the graph before"
            " dgcl.dispatch (dgl.add_self_loop, ...); compute what looks at all vertices with dgcl.nn.global_sum"
        )

    def __repr__(self) -> str:
        return f"RankGraph({self.num_nodes()} of {self.comm.num_nodes} vertices, {self.num_edges()} edges)"


class RowsByType(NamedTuple):
    """What ``graph.nodes`` and ``graph.edges`` are on a rank."""

    find: Callable[[Any], Any]

    def __getitem__(self, key: Any) -> EdgeSpace:
        return EdgeSpace(self.find(key))

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse to list ids."""
        raise dgl.DGLError(
            "a rank's graph lists no vertices or edges: comm.owned_ids and comm.local have their ids; change the"
            " graph (dgl.add_self_loop, ...) before dgcl.dispatch"
        )


class _AtEdges(Mapping[str, Tensor]):
    """Rows of vertices at one end of each edge, by name, when they are asked for; once each."""

    def __init__(self, rows: Callable[[str], Tensor], ends: Tensor) -> None:
        self._rows, self._ends, self._made = rows, ends, dict[str, Tensor]()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._rows(name).index_select(0, self._ends.long())
        return self._made[name]

    def __len__(self) -> NoReturn:
        raise TypeError("a message must read rows of vertices by name: each is exchanged when it is read")

    __iter__ = __len__

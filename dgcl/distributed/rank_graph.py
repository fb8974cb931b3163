"""A graph of DGL whose frames show rows of all vertices and edges, while each rank stores its own.

``update_all`` and ``apply_edges`` run DGL's code on the rank's block (:mod:`dgcl.frameworks.dgl_block`), over the edges
that end at its vertices; rows that messages read at sources are exchanged first. Functions of the user's get rows of
all edges (:mod:`dgcl.rows`), as on one device. What would change or need the whole structure is refused by its name.
Called by `dgl_attention` and `dispatch`. Free to change while DGL's layers, models of several types and the graph that
``dgcl.collect`` gives are those of one device (`tests/dgcl/rows/test_layers.py`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import dgl
import torch
from dgl.backend.pytorch import sparse
from dgl.core import invoke_node_udf, message_passing
from dgl.function.message import BinaryMessageFunction, CopyMessageFunction, MessageFunction
from dgl.heterograph import reduce_dict_data
from dgl.udf import EdgeBatch
from dgl.view import EdgeSpace
from torch import Tensor

from dgcl.aggregation.edge_sets import EdgeSet, edge_set_of, edges_of
from dgcl.communicator import Communicator
from dgcl.frameworks.csr_ops import Adjacency, build_adjacency, edge_scores, weighted_sum
from dgcl.frameworks.dgl_block import LocalBlock, block_of
from dgcl.graph.typed import EdgeType
from dgcl.ranks.tensors import beside_the_graph
from dgcl.relation.local_graph import pointer
from dgcl.rows.own_tensors import collected
from dgcl.rows.row_sums import fitting
from dgcl.rows.rowwise import rowwise
from dgcl.rows.space import Space
from dgcl.rows.tensor import Rows, rows, unseen
from dgcl.rows.view import View

_SIDES = {0: "u", 1: "v", 2: "e"}  # DGL's codes

#: What a rank's graph takes from a graph of DGL that has the vertices alone.
_OF_VERTICES = re.compile(
    "ntypes|srctypes|dsttypes|etypes|canonical_etypes|get_[en]type_id|to_canonical_etype|is_homogeneous|is_block|device"
    "|batch_(size|num_nodes)|is_multigraph|idtype|nodes|ndata|srcdata|dstdata|apply_nodes"
    "|(num|number_of)_(src_|dst_)?nodes"
)

#: In-edges of one type: their set, and they as a block, which knows the degrees of owned vertices in the whole graph.
Relation = tuple[EdgeSet, LocalBlock]

for _function in ("EdgeSoftmax", "GATHERMM"):  # the softmax of a rank's in-edges; a product for each row
    rowwise(getattr(sparse, _function))


def _only_relation(comm: Communicator) -> Relation:
    """All edges that a rank sums, of a graph of one type."""
    local, own = comm.local, slice(0, comm.num_owned * comm.grid.slices, comm.grid.slices)
    block = block_of(
        local.indptr, local.indices, local.num_local, local.in_degrees[own], local.out_degrees[own]
    )
    if comm.edges == "head":
        block.dstdata[dgl.NID] = comm.owned_ids
    return edges_of(comm), block.to(comm.device)


def _relation_of(edge_index: Tensor, name: str) -> Relation:
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
    """A graph of one type or of several, as DGL's layers and functions take it.

        >>> g = dgcl.dispatch(g)
        >>> out = model(g, g.ndata["feat"])              # collective

    Args:
        view: Rows of the communicator.
    """

    def __init__(self, view: View) -> None:
        self.view, comm = view, view.comm
        self._relations: dict[EdgeType, Relation] = {
            key: _relation_of(view.edge_index(key)._local, key[2])
            if comm.node_types
            else _only_relation(comm)
            for key in view.edges
        }
        no_edges: dict[EdgeType, Any] = {key: ([], []) for key in view.edges}
        numbers = {name: space.size for name, space in view.vertices.items()}
        self._vertices = dgl.heterograph(no_edges, numbers, idtype=torch.int64, device=comm.device)
        self._adjacencies: dict[Any, Adjacency] = {}
        # Edges have frames as the vertices of a graph of their own.
        self._frames = {
            key: dgl.graph(([], []), num_nodes=space.size, device=comm.device)
            for key, space in view.edges.items()
        }

    edges = property(lambda self: _Edges(self))
    edata = property(lambda self: self._frames[self._key(None)].ndata)

    def whole(self) -> Any:
        """The graph of DGL with all rows, on every rank. Collective."""
        ends = {key: tuple(map(collected, self.edges(etype=key))) for key in self._relations}
        graph = dgl.heterograph(ends, {name: space.size for name, space in self.view.vertices.items()})
        for key in self.view.vertices:
            for name, value in self.nodes[key].data.items():
                graph.nodes[key].data[name] = collected(value)
        for key in ends:
            for name, value in self.edges[key].data.items():
                graph.edges[key].data[name] = collected(value)
        return graph

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

    def _space(self, end: str, etype: Any = None) -> Space:
        """The space of edges, or of the vertices at their "source" or "target"."""
        key = self._key(etype)
        return self.view.edges[key] if end == "edges" else self.view.vertices[key[2 * (end == "target")]]

    @property
    def block(self) -> LocalBlock:
        """This rank's edges, from [owned | halo] rows to owned ones."""
        self.view.comm.require_neighbourhoods("a message that is no row of a source times a weight")
        return self._relation()[1]

    @property
    def _graph(self) -> Any:  # DGL's edge softmax asks for it
        return self.block._graph

    def num_edges(self, etype: Any = None) -> int:
        """How many edges the whole graph has, of a type or in all."""
        keys = self._relations if etype is None else [self._key(etype)]
        return sum(self.view.edges[key].size for key in keys)

    number_of_edges = num_edges

    def in_degrees(self, v: Any = dgl.base.ALL, etype: Any = None) -> Any:
        """Of all vertices, or of some by their ids."""
        return self._degrees(self._relation(etype)[1].in_degrees(), self._space("target", etype), v)

    def out_degrees(self, u: Any = dgl.base.ALL, etype: Any = None) -> Any:
        """Of all vertices, or of some by their ids."""
        return self._degrees(self._relation(etype)[1].out_degrees(), self._space("source", etype), u)

    def _degrees(self, local: Tensor, space: Space, vertices: Any) -> Any:
        degrees = rows(local[: len(space.keys)], space)
        if dgl.base.is_all(vertices):
            return degrees
        return int(degrees[vertices]) if isinstance(vertices, int) else degrees[vertices]

    def find_edges(self, eid: Any, etype: Any = None) -> tuple[Tensor, Tensor]:
        """Ids of the ends of edges by their ids, which may be rows of all edges."""
        sources, targets = self.edges(etype=etype)
        return (sources, targets) if type(eid) is Rows else (sources[eid], targets[eid])

    def to(self, device: Any, **kwargs: Any) -> RankGraph:
        """A copy with its edges and rows on ``device``."""
        return self._with(lambda graph: graph.to(device, **kwargs))

    def local_var(self) -> RankGraph:
        """A copy whose frames may change."""
        return self._with(lambda graph: graph.local_var())

    def _with(self, change: Callable[[Any], Any]) -> RankGraph:
        graph = copy.copy(self)
        graph._vertices = change(self._vertices)
        graph._frames = {key: change(frame) for key, frame in self._frames.items()}
        graph._relations = {key: (edges, change(block)) for key, (edges, block) in self._relations.items()}
        return graph

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Undo what is done to the frames inside."""
        before = dict(vars(self))
        vars(self).update(vars(self.local_var()))
        try:
            yield
        finally:
            vars(self).update(before)

    def apply_edges(self, func: Any, edges: Any = dgl.base.ALL, etype: Any = None) -> None:
        """As DGLGraph.apply_edges; of some edges, by their ids, a function of one's own. Collective."""
        graph = self if etype is None else self[etype]
        if not dgl.base.is_all(edges):
            if isinstance(func, MessageFunction):
                raise dgl.DGLError("edges must be all edges on a rank's graph for dgl.function (dgcl)")
            for name, values in func(graph._batch(edges)).items():
                if name not in graph.edata:
                    graph.edata[name] = values.new_zeros(graph.num_edges(), *values.shape[1:])
                graph.edata[name] = torch.index_put(graph.edata[name], (edges,), values)
            return
        if isinstance(func, MessageFunction):
            with unseen(), graph._lent(func) as block:
                block.apply_edges(func)
                result = {func.out_field: rows(block.edata[func.out_field], graph._space("edges"))}
        else:
            result = func(graph._batch())
        graph.edata.update(result)

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
            name = self.canonical_etypes[number][2]
            result = graph._reduced(message, reduce)
            if apply and apply[0] is not None:
                result = invoke_node_udf(
                    self._vertices, dgl.base.ALL, name, apply[0], ndata={**graph.dstdata, **result}
                )
            results.setdefault(name, []).append((result, number))
        for name, of_types in results.items():
            frames, order = zip(*of_types, strict=True)
            result = reduce_dict_data(frames, cross_reducer, order)
            if getattr(reduce, "name", None) in ("max", "min"):  # as DGL does it
                for field in [*result] if cross_reducer else [next(iter(result))]:
                    result[field] = dgl.backend.replace_inf_with_zero(result[field])
            self.nodes[name].data.update(result)
            if apply_node_func is not None:
                self.apply_nodes(apply_node_func, ntype=name)

    def _reduced(self, message: Any, reduce: Any) -> dict[str, Tensor]:
        """New rows of targets; maxima and minima over no edges are infinite."""
        messages = None if isinstance(message, MessageFunction) else message(self._batch())
        with unseen():
            result = {} if messages is not None else self._sums(message, reduce)
            if not result:
                with self._lent(message) as block:
                    if messages is not None:
                        space = self._space("edges")
                        block.edata.update({name: _local(each, space) for name, each in messages.items()})
                        name = getattr(reduce, "msg_field", None)
                        message = (
                            dgl.function.copy_e(name, name)
                            if name
                            else lambda edges: {n: edges.data[n] for n in messages}
                        )
                    if not hasattr(reduce, "msg_field"):  # a function of one's own reads them
                        space = self._space("target")
                        block.dstdata.update({n: _local(each, space) for n, each in self.dstdata.items()})
                    result = message_passing(block, message, reduce, block.applied(reduce, None))
            space = self._space("target")
            return {name: rows(each, space) for name, each in result.items()}

    def _sums(self, message: Any, reduce: Any) -> dict[str, Tensor]:
        """Let the communicator's aggregator sum rows of sources, as they are or times a weight; nothing of others."""
        if not self.view.comm.sums_elsewhere or self.view.comm.node_types:
            return {}
        name, kind = (getattr(each, "name", "") for each in (message, reduce))
        if name not in ("copy_u", "u_mul_e") or kind not in ("sum", "mean", "max", "min"):
            return {}
        field, weight = getattr(message, "in_field", ""), None
        if name == "u_mul_e":
            field = message.lhs_field
            weight = _local(self.edata[message.rhs_field], self._space("edges")).flatten()
        own = _local(self.srcdata[field], self._space("source"))
        return {reduce.out_field: self._relation()[0].aggregate(own, kind, weight)}

    def scored(
        self, x: Tensor, own: Tensor, vector: Tensor, slope: float
    ) -> tuple[Rows, Callable[[Tensor], Rows]]:
        """Scores of edges by heads, as GATv2 has them, and what sums rows of sources times weights. Collective.

        Args:
            x, own: (N, H, D) rows of sources, and of targets.
            vector: (H, D).
            slope: Of the leaky rectifier.
        """
        edges, at_edges, targets = self._relation()[0], self._space("edges"), self._space("target")
        with unseen():
            adjacency = self._adjacency()
            read = edges.expand(_local(x, self._space("source")))
            scores = edge_scores(_local(own, targets), read, vector, slope, adjacency)

        def sums(weights: Tensor) -> Rows:
            with unseen():
                return rows(weighted_sum(read, _local(weights, at_edges), adjacency), targets)

        return rows(scores.contiguous(), at_edges), sums

    def _adjacency(self) -> Adjacency:
        key, block = self._key(None), self.block
        if key not in self._adjacencies:
            with torch.inference_mode(False):  # kept, for a backward, too
                indptr, indices, _ = block.adj_tensors("csc")
                self._adjacencies[key] = build_adjacency(indptr, indices, block.num_src_nodes())
        return self._adjacencies[key]

    @contextmanager
    def _lent(self, function: Any) -> Iterator[LocalBlock]:
        """Let the block have what a function of DGL's reads: rows of sources are exchanged."""
        fields, block = [], self.block
        if isinstance(function, BinaryMessageFunction):
            fields = [(function.lhs, function.lhs_field), (function.rhs, function.rhs_field)]
        elif isinstance(function, CopyMessageFunction):
            fields = [(function.target, function.in_field)]
        with dgl.DGLGraph.local_scope(block):  # a block's own is for layers that are given one
            for side, name in fields:
                match _SIDES.get(side, side):
                    case "u":
                        own = _local(self.srcdata[name], self._space("source"))
                        block.srcdata[name] = self._relation()[0].expand(own)
                    case "v":
                        block.dstdata[name] = _local(self.dstdata[name], self._space("target"))
                    case "e":
                        block.edata[name] = _local(self.edata[name], self._space("edges"))
            yield block

    def _batch(self, edges: Any = slice(None)) -> EdgeBatch:
        """Edges for a function of the user's; rows of vertices are exchanged when it reads them."""
        sources, targets, ids = (each[edges] for each in self.edges("all"))
        data: Any = self.edata if isinstance(edges, slice) else _AtEdges(self.edata, edges)
        at = _AtEdges(self.srcdata, sources), data, _AtEdges(self.dstdata, targets)
        return EdgeBatch(self, ids, self._key(None), *at)

    def __getattr__(self, name: str) -> Any:
        if _OF_VERTICES.fullmatch(name):
            return getattr(self._vertices, name)
        raise AttributeError(
            f"a rank's graph has no {name!r}: it has vertices and edges, their rows and degrees, graph[etype],"
            " local_scope, apply_edges, update_all and multi_update_all. Change the graph before dgcl.dispatch"
            " (dgl.add_self_loop, ...)"
        )

    def __repr__(self) -> str:
        return f"RankGraph({self.num_nodes()} vertices, {self.num_edges()} edges)"


def _local(value: Tensor, space: Space) -> Any:
    return fitting(value, space, -value.dim())


class _Edges(NamedTuple):
    """What ``graph.edges`` is."""

    graph: RankGraph

    def __getitem__(self, etype: Any) -> EdgeSpace:
        return EdgeSpace(self.graph._frames[self.graph._key(etype)].ndata)

    def __call__(self, form: str = "uv", order: str = "eid", etype: Any = None) -> Any:
        """Ids of sources and targets; with ``form="all"`` those of edges, too, with "eid" these alone."""
        space, key = self.graph._space("edges", etype), self.graph._key(etype)
        ids = rows(space.keys.to(self.graph.device), space)
        return ids if form == "eid" else (*self.graph.view.edge_index(key), *[ids] * (form == "all"))


class _AtEdges(Mapping[str, Tensor]):
    """Rows of vertices at one end of each edge, by name, when they are asked for; once each."""

    def __init__(self, frame: Mapping[str, Tensor], ends: Tensor) -> None:
        self._frame, self._ends, self._made = frame, ends, dict[str, Tensor]()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._frame[name][self._ends]
        return self._made[name]

    def __len__(self) -> NoReturn:
        raise TypeError("a message must read rows of vertices by name: each is exchanged when it is read")

    __iter__ = __len__

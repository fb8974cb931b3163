"""Attention layers GATConv, GATv2Conv and TransformerConv over in-edges, with PyG's parameters, names and options.

    >>> conv = dgcl.nn.GATv2Conv(128, 32, heads=4)
    >>> y = conv(x)                                  # (num_owned, 128) -> (num_owned, 4 * 32), of PyG's GATv2Conv

Of edges only scores and weights are held, (edges, heads) each, nothing of edges x heads x width.
Called by users (``dgcl.nn``) and `dgcl/distributed/attention`. Free to change while outputs, gradients and trained
parameters are those of PyG's layers on one device, state dicts load both ways, and dropout is the same on any number of
ranks (`tests/dgcl/nn/test_attention.py`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import leaky_relu

from dgcl.aggregation.edge_sets import edges_of
from dgcl.communicator import Communicator
from dgcl.frameworks.csr import CSRLocalGraph
from dgcl.frameworks.csr_ops import Adjacency, EndPoints, build_adjacency, edge_scores
from dgcl.nn.layer_arguments import current
from dgcl.nn.vertex_dropout import check_probability, dropout
from dgcl.topology.checks import check_choice, check_index


def attended(source: Communicator | CSRLocalGraph, self_loops: bool) -> tuple[CSRLocalGraph, Tensor | None]:
    """The in-edges over which a layer attends, known once.

    With ``self_loops`` every vertex has one, in place of those that there are; then also (E,) the place of each edge
    among those of before and a loop of each vertex.
    """
    known = _edges.setdefault(source, {})
    if self_loops not in known:
        with torch.inference_mode(False):  # kept, and may be saved for a backward
            graph = source
            if not isinstance(graph, CSRLocalGraph):
                graph = graph.local_graph("csr", device=graph.device)
            known[self_loops] = _with_loops(graph) if self_loops else (graph, None)
    return known[self_loops]


_edges: WeakKeyDictionary[Any, dict[bool, tuple[CSRLocalGraph, Tensor | None]]] = WeakKeyDictionary()


def _with_loops(graph: CSRLocalGraph) -> tuple[CSRLocalGraph, Tensor]:
    loops = torch.arange(graph.num_owned, dtype=graph.heads.dtype, device=graph.heads.device)
    kept = (graph.sources != graph.heads).nonzero().squeeze(1)
    heads, order = torch.cat([graph.heads[kept], loops]).sort(stable=True)
    taken = torch.cat([kept, loops + graph.num_edges])[order]
    indptr = torch.searchsorted(heads, torch.arange(len(loops) + 1).to(heads))
    edges = build_adjacency(indptr, torch.cat([graph.sources, loops])[taken], graph.num_local)
    ids = torch.cat([graph.edge_ids, -1 - graph.owned_ids])[taken]  # by which dropout knows them
    return replace(graph, edges=edges, edge_ids=ids), taken


def _rows_of_edges(graph: CSRLocalGraph, taken: Tensor | None, rows: Tensor, of_loops: Any) -> Tensor:
    """(E, K) of rows of a rank's edges; loops have a number, or the "mean" or "add" of the vertex's other edges."""
    rows = rows.unsqueeze(1) if rows.dim() == 1 else rows
    if taken is None:
        return rows
    loops = rows.new_zeros(graph.num_owned, rows.shape[1])
    if isinstance(of_loops, str):
        loops = graph.sum_edges(torch.cat([rows, loops]).index_select(0, taken))
        if of_loops == "mean":
            loops = loops / (graph.indptr.diff() - 1).clamp(min=1).unsqueeze(1)
    else:
        loops = loops + of_loops
    return torch.cat([rows, loops]).index_select(0, taken)


# What each kind of layer computes first, of the layer (with the names of PyG's), its edges, what exchanges rows, its
# rows and those of edges: rows (L, H, C) of sources, and scores (E, H).


def gat(
    layer: Any, graph: CSRLocalGraph, expand: Any, x: Tensor, edge_attr: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Rows and scores of PyG's ``GATConv``."""
    rows = layer.lin(x).unflatten(1, (layer.heads, -1))
    own = (rows[: graph.num_owned] * layer.att_dst).sum(-1)
    scores = graph.at_sources(expand((rows * layer.att_src).sum(-1))) + graph.at_heads(own)
    if edge_attr is not None:
        weight = _weight(layer)
        scores = scores + edge_attr @ torch.einsum("hck,hc->kh", weight, layer.att_edge[0])
    return expand(rows), leaky_relu(scores, layer.negative_slope)


def gatv2(
    layer: Any, graph: CSRLocalGraph, expand: Any, x: Tensor, edge_attr: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Rows and scores of PyG's ``GATv2Conv``."""
    sources = layer.lin_l(x).unflatten(1, (layer.heads, -1))
    own = sources if layer.share_weights else layer.lin_r(x).unflatten(1, (layer.heads, -1))
    rows, of_edges = expand(sources), []
    if edge_attr is not None:
        of_edges = [_weight(layer).permute(2, 0, 1), edge_attr]
    own = own[: graph.num_owned]
    return rows, edge_scores(own, rows, layer.att[0], layer.negative_slope, graph.edges, *of_edges)


def transformer(
    layer: Any, graph: CSRLocalGraph, expand: Any, x: Tensor, edge_attr: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Rows and scores of PyG's ``TransformerConv``, whose rows of edges :func:`attend` adds to its result."""
    query, key, value = (
        each(x).unflatten(1, (layer.heads, -1)) for each in (layer.lin_query, layer.lin_key, layer.lin_value)
    )
    query = query[: graph.num_owned]
    scores = graph.dots(query, expand(key))
    if edge_attr is not None:
        # An edge's row is multiplied with what its head asks for, (n, H, K), and its product (E, H, C) is not known.
        weight = _weight(layer)
        scores = scores + _own(graph).dots(
            torch.einsum("nhc,hck->nhk", query, weight), _by_head(layer, edge_attr)
        )
    return expand(value), scores / math.sqrt(layer.out_channels)


def _weight(layer: Any) -> Tensor:
    """(H, C, K): by what rows of edges are multiplied."""
    return layer.lin_edge.weight.unflatten(0, (layer.heads, -1))  # type: ignore[no-any-return]


def _own(graph: CSRLocalGraph) -> CSRLocalGraph:
    """Edges that read rows of their own instead of their sources'."""
    heads = graph.edges.heads
    places = torch.arange(graph.num_edges + 1).to(heads.rows)
    tails = EndPoints(places[:-1], places, None, heads.rows)
    return replace(graph, edges=Adjacency(tails, replace(heads, others=places[:-1])))


def _by_head(layer: Any, rows: Tensor) -> Tensor:
    return rows.unsqueeze(1).expand(-1, layer.heads, -1)


def attend(
    scores_of: Any,
    layer: Any,
    source: Communicator | CSRLocalGraph,
    x: Tensor,
    edge_attr: Tensor | None,
) -> Tensor:
    """What PyG's layer gives of this rank's rows; collective if ``source`` is a communicator.

    Args:
        scores_of: What the layer's kind computes.
        layer: Has the parameters and options of PyG's.
        source: The communicator, or a graph of which x has the sources' rows.
        x, edge_attr: As the layer's forward takes them.
    """
    graph, taken = attended(source, getattr(layer, "add_self_loops", False))
    comm = None if isinstance(source, CSRLocalGraph) else source
    if edge_attr is not None:
        edge_attr = _rows_of_edges(graph, taken, edge_attr, getattr(layer, "fill_value", 0))
    rows, scores = scores_of(
        layer, graph, (lambda rows: rows) if comm is None else edges_of(comm).expand, x, edge_attr
    )
    weights = graph.softmax(scores)
    if layer.training and layer.dropout:
        weights = dropout(weights, layer.dropout, ids=graph.edge_ids, comm=comm)
    out, x = graph.sum(rows, weights), x[: graph.num_owned]
    if scores_of is transformer and edge_attr is not None:
        weight = _weight(layer)
        out = out + torch.einsum("nhk,hck->nhc", _own(graph).sum(_by_head(layer, edge_attr), weights), weight)
    out = out.flatten(1) if layer.concat else out.mean(1)
    if scores_of is not transformer:
        out = out if layer.res is None else out + layer.res(x)
        return out if layer.bias is None else out + layer.bias
    if not layer.root_weight:
        return out
    own = layer.lin_skip(x)
    if layer.lin_beta is None:
        return out + own
    beta = layer.lin_beta(torch.cat([out, own, out - own], 1)).sigmoid()
    return beta * own + (1 - beta) * out


class _Attention(Module):
    """What the layers have in common: options by PyG's names and their defaults, and the names of parameters."""

    scores: Callable[..., Any]
    options: ClassVar[dict[str, Any]] = {"concat": True, "dropout": 0.0, "edge_dim": None, "bias": True}
    vectors: Sequence[str] = ()
    projections: Sequence[str] = ()

    def __init__(self, in_channels: int, out_channels: int, heads: int = 1, **options: Any) -> None:
        super().__init__()
        for name in options:
            check_choice(name, f"an option of {type(self).__name__}", self.options)
        sizes = {"in_channels": in_channels, "out_channels": out_channels, "heads": heads}
        for name, size in sizes.items():
            check_index(size, name, 1)
        every = self.options | sizes | options
        check_probability(every["dropout"])
        if isinstance(every.get("fill_value"), str):
            check_choice(every["fill_value"], "fill_value", ("mean", "add"))
        for name, value in every.items():
            setattr(self, name, value)
        edge_dim, bias, width = every["edge_dim"], every["bias"], heads * out_channels

        def linear(columns: int, out: int, bias: bool = False) -> Linear:
            known = Linear(columns, out, bias=bias)
            torch.nn.init.xavier_uniform_(known.weight)
            return known

        bound = math.sqrt(6 / (heads + out_channels))
        for name in self.vectors:
            vector = Parameter(torch.empty(1, heads, out_channels).uniform_(-bound, bound))
            setattr(self, name, None if name == "att_edge" and edge_dim is None else vector)
        for name in self.projections:
            setattr(self, name, linear(in_channels, width, bias and name != "lin"))
        self.lin_edge = None if edge_dim is None else linear(edge_dim, width)
        width = width if every["concat"] else out_channels
        if self.projections[0] == "lin_key":
            self.lin_skip = linear(in_channels, width, bias)
            self.lin_beta = linear(3 * width, 1) if every["beta"] and every["root_weight"] else None
        else:
            self.res = linear(in_channels, width) if every["residual"] else None
            self.bias = Parameter(torch.zeros(width)) if bias else None
        if every.get("share_weights"):
            self.lin_r = self.lin_l

    def forward(
        self,
        x: Tensor,
        edge_attr: Tensor | None = None,
        comm: Communicator | None = None,
        *,
        graph: CSRLocalGraph | None = None,
    ) -> Tensor:
        """``(num_owned, in_channels)`` to ``(num_owned, heads * out_channels)``; collective.

        Args:
            x: Owned rows.
            edge_attr: ``(num_local_edges, edge_dim)``, as ``comm.dispatch_edges`` gives them.
            comm: The communicator; None for this thread's current one.
            graph: A graph with all in-edges of its rows, as a chunk of :class:`dgcl.Offload` is: x has the rows of its
                sources, nothing is exchanged, and the result has those of its heads.
        """
        name, edge_dim = type(self).__name__, self.edge_dim
        if (edge_attr is None) != (edge_dim is None):
            raise ValueError(
                f"edge_attr must be given to {name} with edge_dim, and not without ({edge_dim=})"
            )
        if graph is None:
            comm = current(comm)
            comm.require_neighbourhoods(name)
        num_edges = (graph or comm.local).num_edges  # type: ignore[union-attr]
        if edge_attr is not None and len(edge_attr) != num_edges:
            raise ValueError(
                f"edge_attr must have {num_edges} rows, one for each local edge as comm.dispatch_edges gives them (got"
                f" {len(edge_attr)})"
            )
        return attend(type(self).scores, self, graph or comm, x, edge_attr)  # type: ignore[arg-type]


class GATConv(_Attention):
    """Graph attention: PyG's ``GATConv`` (Velickovic et al., 2018).

    Parameters ``lin.weight``, ``att_src``, ``att_dst``, ``bias``, with ``edge_dim`` ``lin_edge.weight`` and
    ``att_edge``, with ``residual`` ``res.weight``.

    Options, as PyG names them: ``in_channels`` and ``out_channels``, widths of rows, and of the result for each
    head; ``heads``; ``concat``, they stand side by side in the result (True), or their mean; ``negative_slope`` of
    the leaky rectifier (0.2); ``dropout``, the probability of a weight to be dropped, by edge and head, the same on
    any number of ranks (0); ``add_self_loops``, every vertex has one self loop, in place of those that the graph has
    (True); ``edge_dim``, the width of rows of edges (None: there are none); ``fill_value``, rows of self loops: a
    number, a tensor, or the "mean" or "add" of the vertex's other edges ("mean"); ``bias``, add one (True);
    ``residual``, add a product of the vertex's own row (False).
    """

    scores = staticmethod(gat)
    options = _Attention.options | {
        "negative_slope": 0.2,
        "add_self_loops": True,
        "fill_value": "mean",
        "residual": False,
    }
    vectors, projections = ("att_src", "att_dst", "att_edge"), ("lin",)


class GATv2Conv(_Attention):
    """Graph attention that ranks neighbours for each vertex anew: PyG's ``GATv2Conv`` (Brody et al., 2022).

    Parameters of ``lin_l``, ``lin_r``, ``att``, ``bias``, ``lin_edge.weight``, ``res.weight``. Options are those of
    :class:`GATConv`, and ``share_weights``: ``lin_r`` is ``lin_l`` (False).
    """

    scores = staticmethod(gatv2)
    options = GATConv.options | {"share_weights": False}
    vectors, projections = ("att",), ("lin_l", "lin_r")


class TransformerConv(_Attention):
    """Attention by dot products: PyG's ``TransformerConv`` (Shi et al., 2021).

    Parameters of ``lin_query``, ``lin_key``, ``lin_value``, ``lin_skip``, ``lin_edge.weight`` and ``lin_beta.weight``.
    Options are ``in_channels``, ``out_channels``, ``heads``, ``concat``, ``dropout``, ``edge_dim`` and ``bias`` of
    :class:`GATConv`; ``beta``, weigh the vertex's own row and the result against each other (False);
    ``root_weight``, add a product of the vertex's own row (True).
    """

    scores = staticmethod(transformer)
    options = _Attention.options | {"beta": False, "root_weight": True}
    projections = ("lin_key", "lin_query", "lin_value")

"""Message passing of PyG on ranks: what a message reads at its source is exchanged at each propagate."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from dgcl.distributed.attention import Attention, function_of
from dgcl.distributed.classes import Distributed
from dgcl.distributed.degrees import by_whole_degrees
from dgcl.distributed.functional_dropout import dropping
from dgcl.distributed.home import Home
from dgcl.distributed.sums import is_sum, sum_messages
from dgcl.frameworks.edge_sets import EdgeSet, edge_set_of, edges_of
from dgcl.nn.arguments import current
from dgcl.ranks.context import context


class Exchanged(NamedTuple):
    """An argument of a message as PyG takes it, at sources and at heads."""

    sources: Tensor | None
    heads: Tensor | None

    def chunk(self, chunks: int, dim: int) -> list[Exchanged]:
        """Pieces of both, as PyG's decomposed layers take them."""
        pieces = [[None] * chunks if rows is None else rows.chunk(chunks, dim) for rows in self]
        return [Exchanged(*each) for each in zip(*pieces, strict=True)]


class ExchangedPair(Exchanged):
    """Of an argument that is a pair, which functions get that read it by its own name."""

    pair: Any


class Messages(Distributed):
    """Comes before a subclass of ``MessagePassing``.

    Attributes:
        dgcl_exchange: The exchange of edges of which nothing is remembered.
    """

    dgcl_hooks = frozenset(dir(MessagePassing))
    dgcl_exchange: str = "halo"
    dgcl_calls: int = 0

    def _dgcl_edges(self, edge_index: Any) -> EdgeSet:
        """The set that the edges of a call are of; edges that were changed are looked at in calls 1, 2, 4, ..."""
        compiling = torch.compiler.is_compiling()
        known = edge_set_of(edge_index) if isinstance(edge_index, Tensor) and not compiling else None
        if known is None and (
            not isinstance(edge_index, Tensor)
            or hasattr(edge_index, "sparse_size")
            or edge_index.layout != torch.strided
            or len(edge_index) != 2
        ):
            raise ValueError(
                f"edge_index must be a (2, E) tensor in a distributed model (got {type(edge_index).__name__}"
                f"{f', {edge_index.layout}' if isinstance(edge_index, Tensor) else ''}): take that of dgcl.dispatch,"
                " and no sparse matrix"
            )
        if self.flow != "source_to_target":  # type: ignore[attr-defined]
            raise ValueError(
                "flow must be 'source_to_target' in a distributed model, as a rank has all in-edges of its vertices"
                " (got 'target_to_source'): dispatch the graph turned round, edge_index.flip(0)"
            )
        if known is not None:
            return known
        edges = edges_of(current(context.communicator or self.dgcl_home.comm), self.dgcl_exchange)
        if not compiling and edges.comm.edges == "head":
            self.dgcl_calls += 1
            if not self.dgcl_calls & (self.dgcl_calls - 1):
                with edges.messages(edge_index):
                    edges.require(edge_index)
        return edges

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """PyG's templates are those of the class below."""


def message_passing(base: type) -> type:
    """The subclass of a ``MessagePassing`` that exchanges."""
    members: dict[str, Any] = by_whole_degrees(base)
    for verb, functions in (
        ("propagate", ("message", "aggregate", "update")),
        ("edge_updater", ("edge_update",)),
    ):
        reads = {name for each in functions for name in inspect.signature(getattr(base, each)).parameters}
        sources = frozenset(
            name[:-2] for name in reads if name.endswith("_j") and name not in ("edge_index_j", "size_j")
        )
        drops = bool(dropping(base).keys() & {*functions})
        sums = verb == "propagate" and is_sum(base)
        for name in (verb, f"_orig_{verb}", f"_jinja_{verb}"):
            members[name] = _exchanging(getattr(base, name, getattr(base, verb)), sources, drops, sums)
        for name in functions:
            function = getattr(base, name)
            if pairs := sources & inspect.signature(function).parameters.keys():
                members[name] = _as_given(function, pairs)
    bases = (Messages, base) if function_of(base) is None else (Messages, Attention, base)
    return type(f"Distributed{base.__name__}", bases, members)


def _exchanging(
    verb: Callable[..., Any], sources: frozenset[str], drops: bool, sums: bool
) -> Callable[..., Any]:
    def exchanged(self: Any, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Any:
        edges = self._dgcl_edges(edge_index)
        if sums and self.fuse and not self.explain and edges.comm.sums_elsewhere:
            return sum_messages(self, edge_index, kwargs)
        edges.comm.require_neighbourhoods(self.dgcl_base.__name__)
        if edges.sums is not None:
            raise ValueError(
                f"{self.dgcl_base.__name__} makes messages of normalised edges, which windows sum as they are;"
                " build the communicator with strategy='halo'"
            )
        sizes = (edges.num_sources, edges.num_heads)
        known = self.dgcl_base.__module__.startswith("torch_geometric.") and not (
            drops and self.dgcl_may_drop
        )
        with self.dgcl_home.unseen(True):
            for name in sorted(kwargs.keys() & sources):  # a set has another order in each process
                kwargs[name] = _exchange(kwargs[name], edges, self.node_dim, self.dgcl_home)
        if verb.__name__ == "propagate":
            self.dgcl_home.expanded.clear()
        with edges.messages(edge_index), self.dgcl_home.unseen(known):
            return verb(self, edge_index, size=sizes, **kwargs)

    return exchanged


def _exchange(value: Any, edges: EdgeSet, dim: int, home: Home) -> Any:
    same = edges.num_heads == edges.num_owned  # else sources and heads are of two types
    at_sources, at_heads = value if isinstance(value, (tuple, list)) else (value, value if same else None)
    if not isinstance(at_sources, Tensor):
        return value
    at_sources = home.expand(at_sources, edges, dim % at_sources.dim())
    if isinstance(value, Tensor):
        return Exchanged(at_sources, at_heads)
    out = ExchangedPair(at_sources, at_heads)
    out.pair = value
    return out


def _as_given(function: Callable[..., Any], names: frozenset[str]) -> Callable[..., Any]:
    """A function that reads arguments by their own names, too: those are this rank's rows."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in names & kwargs.keys():
            if isinstance(kwargs[name], Exchanged):
                kwargs[name] = getattr(kwargs[name], "pair", kwargs[name].heads)
        return function(self, *args, **kwargs)

    return call

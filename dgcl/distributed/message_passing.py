"""Makes subclasses of PyG's ``MessagePassing`` that exchange rows between ranks at each ``propagate``.

Exchanged is what a message (or ``edge_updater``) reads at sources, its arguments that end in ``_j``: sorted by name,
because all ranks must exchange in one order, and each tensor once in a propagate. Tensors here are plain and this
rank's own; ``adapters`` converts arguments and results. Layers that only sum leave it to ``summing_layers`` where a
rank does not have all in-edges of its vertices.
Called by `adapters`. Free to change while layers with several source tensors give results of one device, also where
processes hash strings differently (`tests/dgcl/rows/test_layers.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from dgcl.aggregation.edge_sets import EdgeSet, edge_set_of
from dgcl.distributed.attention import Attention, function_of
from dgcl.distributed.degrees import by_whole_degrees
from dgcl.distributed.summing_layers import is_sum, sum_messages


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


class Messages:
    """Comes before a subclass of ``MessagePassing``.

    Attributes:
        dgcl_base: That class.
        dgcl_edges: The edges of the call that runs; those that the layer makes of them are of that set, too.
        dgcl_expanded: Rows that this call has exchanged, and what came of them.
    """

    dgcl_base: type
    dgcl_edges: EdgeSet
    dgcl_expanded: dict[Any, tuple[Tensor, Tensor]]

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """PyG's templates are those of the class below."""


def message_passing(base: type) -> type:
    """The subclass of a ``MessagePassing`` that exchanges."""
    members: dict[str, Any] = {"dgcl_base": base, **by_whole_degrees(base)}
    for verb, functions in (
        ("propagate", ("message", "aggregate", "update")),
        ("edge_updater", ("edge_update",)),
    ):
        reads = {name for each in functions for name in inspect.signature(getattr(base, each)).parameters}
        sources = frozenset(
            name[:-2] for name in reads if name.endswith("_j") and name not in ("edge_index_j", "size_j")
        )
        sums = verb == "propagate" and is_sum(base)
        for name in (verb, f"_orig_{verb}", f"_jinja_{verb}"):
            members[name] = _exchanging(getattr(base, name, getattr(base, verb)), sources, sums)
        for name in functions:
            function = getattr(base, name)
            if pairs := sources & inspect.signature(function).parameters.keys():
                members[name] = _as_given(function, pairs)
    bases = (Messages, base) if function_of(base) is None else (Messages, Attention, base)
    return type(base.__name__, bases, members)


def _exchanging(verb: Callable[..., Any], sources: frozenset[str], sums: bool) -> Callable[..., Any]:
    def exchanged(self: Any, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Any:
        edges = edge_set_of(edge_index) or self.dgcl_edges
        if sums and self.fuse and not self.explain and edges.comm.sums_elsewhere:
            return sum_messages(self, edge_index, kwargs)
        edges.comm.require_neighbourhoods(self.dgcl_base.__name__)
        if edges.sums is not None:
            raise ValueError(
                f"{self.dgcl_base.__name__} makes messages of normalised edges, which windows sum as they are;"
                " build the communicator with strategy='halo'"
            )
        for name in sorted(kwargs.keys() & sources):  # a set has another order in each process
            kwargs[name] = _exchange(kwargs[name], edges, self.node_dim, self.dgcl_expanded)
        if verb.__name__ == "propagate":
            self.dgcl_expanded.clear()
        return verb(self, edge_index, size=(edges.num_sources, edges.num_heads), **kwargs)

    return exchanged


def _exchange(value: Any, edges: EdgeSet, dim: int, expanded: dict[Any, tuple[Tensor, Tensor]]) -> Any:
    same = edges.num_heads == edges.num_owned  # else sources and heads are of two types
    at_sources, at_heads = value if isinstance(value, (tuple, list)) else (value, value if same else None)
    if not isinstance(at_sources, Tensor):
        return value
    key = id(at_sources), dim
    if key not in expanded:  # which keeps the rows, so that no others get their id
        expanded[key] = at_sources, edges.expand(at_sources, dim % at_sources.dim())
    if isinstance(value, Tensor):
        return Exchanged(expanded[key][1], at_heads)
    out = ExchangedPair(expanded[key][1], at_heads)
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

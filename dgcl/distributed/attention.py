"""Computes PyG's GATConv, GATv2Conv and TransformerConv in a distributed model without a row of messages for each edge.

A layer of exactly such a class runs a function of :mod:`dgcl.nn.attention`. A subclass, or a layer with hooks, an
explainer or an option that the function does not cover (:func:`lacks`), makes messages by PyG's own code, as all other
layers do; where it also drops weights, it runs on the rows themselves (``Closed``).
Called by `adapters`, `check`, `dgl_attention` and `message_passing`. Free to change while both ways train as on one
device, dropout is the same on any number of ranks, and ``repr`` says which way a layer goes
(`tests/dgcl/rows/test_attention.py`).
"""

from typing import Any

from torch import Tensor

from dgcl.aggregation.edge_sets import edge_set_of
from dgcl.nn.attention import attend, gat, gatv2, transformer

#: By name of PyG's class what its kind computes first.
ATTENTION = {"GATConv": gat, "GATv2Conv": gatv2, "TransformerConv": transformer}


def function_of(kind: type) -> Any:
    """What exactly this class of layers computes; None of any other."""
    return ATTENTION.get(kind.__name__) if kind.__module__.startswith("torch_geometric.") else None


def lacks(layer: Any) -> str:
    """What of a layer its function does not cover; "" if nothing."""
    if hooked(layer):  # also where parameters are not made yet
        return "hooks of its parts"
    if any(
        value
        for name, value in vars(layer).items()
        if name.startswith(("_propagate", "_message", "_aggregate", "_edge_update"))
        and name.endswith("hooks")
    ):
        return "hooks of messages"
    if layer.explain:
        return "an explainer"
    if layer.aggr not in ("add", "sum") or not isinstance(layer.in_channels, int):
        return "another aggr, or vertices of two kinds"
    lin_edge, of_loops = layer.lin_edge, getattr(layer, "fill_value", "mean")
    if lin_edge is not None and type(lin_edge).__name__ != "Linear":
        return "another lin_edge"
    if isinstance(of_loops, str) and of_loops not in ("mean", "add"):
        return f"fill_value={of_loops!r}"
    return ""


def hooked(layer: Any) -> bool:
    """Whether parts of a layer have hooks."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in layer.children())


def drops(layer: Any) -> Any:
    """Whether a layer drops something by itself now."""
    return layer.training and getattr(layer, "dropout", 0)


class Closed(Exception):
    """A call of a layer cannot be opened: PyG's own code runs on the rows themselves."""


class Attention:
    """Comes before the class of such a layer, behind ``Messages``."""

    def forward(self, x: Any, edge_index: Any, edge_attr: Any = None, *more: Any, **named: Any) -> Any:
        """What the layer gives: by its function, where that covers this call."""
        layer: Any = self
        edges: Any = edge_set_of(edge_index)
        known = edges.whole and not edges.comm.node_types and isinstance(x, Tensor)
        if known and (layer.lin_edge is None) == (edge_attr is None) and not lacks(layer):
            return attend(function_of(layer.dgcl_base), layer, edges.comm, x, edge_attr)  # type: ignore[call-arg]
        if drops(layer):
            raise Closed
        return super().forward(x, edge_index, edge_attr, *more, **named)  # type: ignore[misc]

    def __repr__(self) -> str:
        why = lacks(self)
        return f"{super().__repr__()}: {f'messages, for it has {why}' if why else 'no row for each edge'}"

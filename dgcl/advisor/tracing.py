"""Finds the layers of a user's module by running it once on rows without memory (torch's meta device).

Layers that aggregate, of :mod:`dgcl.nn`, PyG or DGL, do not run: they are recorded, and give rows of their width. So no
graph is needed, whatever the framework. All else runs as it is, on a copy of the module.
Called by `model_costs`. Free to change while models of PyG, DGL and ``dgcl.nn`` give their layers with the widths that
are exchanged, and what cannot be traced is an error that names it (`tests/dgcl/advisor/test_model.py`).
"""

import copy
import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from dgcl.advisor.layers import ATTENTION, KINDS, Layer

#: What layers are in the grammar; a sum is followed by a network of its own.
_CLASSES = {
    "GCNConv": "gcn", "SAGEConv": "sage", "GraphConv": "sage", "GINConv": "sum", "GATConv": "gat",
    "GATv2Conv": "gatv2", "TransformerConv": "transformer",
}  # fmt: skip
#: How messages may be reduced: partial results of ranks are joined.
_JOINED = {"sum", "add", "mean", "gcn", "max", "min", "pool"}
_WIDTHS = ("in_channels", "in_features", "_in_feats", "_in_src_feats", "embedding_dim")


def layers_of(module: nn.Module) -> list[Layer]:
    """The layers of a module in the order of their calls.

    Raises:
        ValueError: It cannot be traced; says why, and that a line can stand for it.
    """
    if isinstance(module, type):
        raise ValueError(f"model must be a module, not its class: give {module.__name__}(...)")
    layers: list[Layer] = []
    try:
        if any(isinstance(each, UninitializedParameter) for each in module.parameters()):
            raise ValueError(
                "its widths are open until it has run: run it on a few rows before, or give them"
            )
        _record(copy.deepcopy(module).to("meta"), layers)
        if not any(layer.exchanged for layer in layers):
            raise ValueError(f"it calls none of {', '.join(_CLASSES)}")
    except Exception as error:
        raise ValueError(
            f"model: {type(module).__name__} cannot be traced: {error}; describe it in a line, as"
            f" {KINDS['gcn']!r}"
        ) from error
    return layers


def _record(net: nn.Module, layers: list[Layer]) -> None:
    for name, each in net.named_modules():
        bases = [base.__name__ for base in type(each).__mro__]
        kind = next((_CLASSES[base] for base in bases if base in _CLASSES), "")
        reduction = getattr(each, "aggr", getattr(each, "_aggre_type", "sum"))
        if kind and "__" not in name and str(reduction) in _JOINED:
            each.forward = partial(_called, each, kind, layers)
        elif "Linear" in bases:  # PyG's, too
            each.register_forward_hook(
                lambda _, rows, out: layers.append(Layer("linear", rows[0].shape[-1], out.shape[-1]))
            )
        elif (
            hasattr(each, "propagate")
            or "Hetero" in bases[0]
            or type(each).__module__.startswith("dgl.nn.pytorch.conv.")
        ):
            raise ValueError(
                f"{name or 'it'} is a {type(each).__name__}, which is none of {', '.join(_CLASSES)} that sum, or take"
                " means or extrema, in a graph of one type of vertices and edges"
            )
    sizes = (getattr(each, name, None) for each in net.modules() for name in _WIDTHS)
    width = next((size for size in sizes if isinstance(size, int) and size > 0), 1)
    rows = torch.zeros(4, width, device="meta")
    edges = torch.zeros(2, 1, dtype=torch.int64, device="meta")
    graph = _Graph(rows, edges)
    known = {"edge_index": edges, "comm": None} | dict.fromkeys(("g", "graph", "data", "batch"), graph)
    required = inspect.signature(net.forward).parameters.items()
    names = [name for name, each in required if each.default is each.empty]
    for name in names:
        if name.endswith("_dict"):
            raise ValueError(f"it takes {name}, and vertices and edges of one type are understood")
    net(*(known.get(name, rows) for name in names))


@dataclass
class _Graph:
    """What stands for a graph, or for PyG's ``Data``, where a module takes one."""

    x: Tensor
    edge_index: Tensor
    edge_weight: None = None
    batch: None = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"it takes {name!r} of its graph; x and edge_index are known")


def _called(layer: Any, kind: str, layers: list[Layer], *arguments: Any, **named: Any) -> Any:
    """In the place of a layer's forward."""
    several = [each[0] if isinstance(each, tuple) else each for each in (*arguments, *named.values())]
    x = next(each for each in several if isinstance(each, Tensor) and each.is_floating_point())
    width, of_dgl = x.shape[-1], hasattr(layer, "_out_feats")
    for size in (getattr(layer, name, width) for name in _WIDTHS):
        if isinstance(size, int) and size != width:
            raise ValueError(
                f"{type(layer).__name__} takes rows of {size} (got {width}, of the first layer held)"
            )
    if kind == "sum":
        layers.append(Layer(kind, width, width))
        return layer.apply_func(x) if hasattr(layer, "apply_func") else layer.nn(x)
    out = layer._out_feats if of_dgl else layer.out_channels
    heads = getattr(layer, "heads", getattr(layer, "_num_heads", 1))
    if kind == "sage" and of_dgl and not hasattr(layer, "fc_neigh"):
        kind = "gcn"  # DGL's GraphConv has one product
    first = getattr(layer, "multiply_first", None if of_dgl else kind != "sage")
    layers.append(Layer(kind, width, heads * out, heads, first=first))
    many = () if kind not in ATTENTION else (heads,) * getattr(layer, "concat", True)
    rows = x.new_empty(len(x), *many, out)
    return rows if of_dgl else rows.flatten(1)

"""Variants of the layers, models, norms and aggregations of PyG: each option that its constructor has, one at a time.

What values are worth a trial is read from PyG's own tests of the constructors.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.nn import aggr, models

from tests.dgcl.distributed.pyg_zoo import W, XE, ZOO, mlp
from tests.dgcl.rows.harness import plain, seeded

XB = "x batch"
AGGREGATIONS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    **{
        name: (getattr(aggr, name), XB)
        for name in aggr.__all__
        if not inspect.signature(getattr(aggr, name)).parameters.keys() - {"learn", "t", "p", "semi_grad", "fill_value", "channels"}
    },
    "AttentionalAggregation": (lambda: aggr.AttentionalAggregation(nn.Linear(W, 1), nn.Linear(W, 3)), XB),
    "DeepSetsAggregation": (lambda: aggr.DeepSetsAggregation(mlp(), mlp()), XB),
    "EquilibriumAggregation": (lambda: aggr.EquilibriumAggregation(W, 3, [5]), XB),
    "GRUAggregation": (lambda: aggr.GRUAggregation(W, 3), XB),
    "LCMAggregation": (lambda: aggr.LCMAggregation(W, 3), XB),
    "LSTMAggregation": (lambda: aggr.LSTMAggregation(W, 3), XB),
    "MultiAggregation": (lambda: aggr.MultiAggregation(["mean", "max", "std"]), XB),
    "QuantileAggregation": (lambda: aggr.QuantileAggregation([0.2, 0.8]), XB),
    "Set2Set": (lambda: aggr.Set2Set(W, 2), XB),
    "SetTransformerAggregation": (lambda: aggr.SetTransformerAggregation(W), XB),
    "SortAggregation": (lambda: aggr.SortAggregation(3), XB),
}

#: Values to try of what is no switch; of switches the other one.
VALUES: dict[str, list[Any]] = {
    "K": [1, 4],
    "act": [None, "leaky_relu", nn.ELU()],
    "act_first": [True],
    "aggr": ["sum", "min", "median", "softmax", ["mean", "std", "powermean"]],
    "aggregators": [["sum", "var", "min"], ["symnorm"]],
    "alpha": [0.0, 0.3],
    "attention_mechanism": ["within-relation"],
    "attention_mode": ["multiplicative-self-attention"],
    "attention_type": ["SD", "dot_product"],
    "attn_type": ["performer"],
    "block": ["res", "dense", "plain"],
    "combine_root": ["sum", "cat", None],
    "diag_lambda": [1.0],
    "dim": [0],
    "edge_dim": [None],
    "fill_value": [0.5],
    "flow": ["target_to_source"],
    "groups": [2],
    "heads": [4],
    "jk": [None, "last", "cat", "max", "lstm"],
    "mod": ["scaled", "f-scaled", "f-additive"],
    "mode": ["graph", "node", "PN-SI", "PN-SCS"],
    "node_dim": [0],
    "norm": [None, "batch_norm", "layer_norm", "graph_norm", "instance_norm", "mean_subtraction_norm"],
    "normalization": [None, "rw"],
    "num_bases": [None, 2],
    "num_blocks": [2],
    "num_groups": [1],
    "num_layers": [1],
    "scalers": [["linear", "inverse_linear"]],
    "theta": [None, 0.5],
}


@dataclass(frozen=True)
class Variant:
    """A module, and what it is called with."""

    name: str
    module: nn.Module
    inputs: str


def options(make: Callable[[], nn.Module], kind: type) -> Iterator[dict[str, Any]]:
    """One option of a constructor at a time, those of its bases included."""
    found = {name: each for base in kind.__mro__ for name, each in inspect.signature(base.__init__).parameters.items()}
    for name, each in sorted(found.items()):
        values = [not each.default] if isinstance(each.default, bool) else VALUES.get(name, [])
        yield from ({name: value} for value in values)


def variants(name: str) -> Iterator[Variant]:
    """A class as it is in the table, with each option, and with other arguments."""
    make, inputs = {**ZOO, **AGGREGATIONS}[name]
    yield Variant(name, built(make), inputs)
    for more in ("pair edge_index", "x edge_index weight", "x edge_index attr", XB):
        if inputs != more and inputs.split()[-1] in more and (name.endswith("Conv") or "edge" not in more):
            yield Variant(f"{name} of {more}", built(make), more)
    module = getattr(pyg, name.split()[0], None) or getattr(models, name.split()[0], None)
    if module is None:
        return
    for option in options(make, module):
        with contextlib.suppress(Exception):  # what one device does not take is none
            # An option that the table gives wins over one of here.
            init = functools.partialmethod(module.__init__, **option)
            with mock.patch.object(module, "__init__", init):
                yield Variant(f"{name} {option}", built(make), inputs)


def built(make: Callable[[], nn.Module]) -> nn.Module:
    module = seeded(lambda _: make(), None).double()
    for number, parameter in enumerate(module.parameters()):
        with torch.no_grad():
            values = torch.arange(parameter.numel()).add(number).sin().view(parameter.shape)
            parameter += (0.1 * values).to(parameter.dtype)
    return module


def results(module: nn.Module, data: Any, inputs: str) -> dict[str, Any]:
    """What comes out, and the gradients of a weighted sum of it."""
    x = data.x.clone().requires_grad_()
    given = {**data.to_dict(), "x": x, "pair": (x, data.x_0)}
    out = module(*(given[name] for name in inputs.split()))
    leaves = [each for each in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(each)]
    printed = plain(leaves)  # before a backward that frees memory of its own
    loss = sum((each * torch.arange(each.size(-1)).cos() * each.cos()).sum() for each in leaves if each.is_floating_point())
    if torch.is_tensor(loss) and loss.requires_grad:
        loss.backward()
    return {"out": printed, **plain({"x": x.grad, "weights": [weight.grad for weight in module.parameters()]})}

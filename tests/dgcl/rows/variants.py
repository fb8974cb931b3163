"""Variants of the layers, models, norms and aggregations of PyG: each option that a constructor has, one at a time.

What values are worth a trial is read from PyG's own tests of the constructors.
"""

import contextlib
import functools
import inspect
from unittest import mock

import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.nn import aggr, models

from tests.dgcl.rows.pyg_zoo import ZOO, W, mlp
from tests.support.rows_harness import plain, seeded, value_of

AGGREGATIONS = [
    "AttentionalAggregation(nn.Linear(W, 1), nn.Linear(W, 3))", "DeepSetsAggregation(mlp(), mlp())",
    "EquilibriumAggregation(W, 3, [5], grad_iter=1)", "GRUAggregation(W, 3)", "LSTMAggregation(W, 3)",
    "MaxAggregation()",
    "MeanAggregation()", "MedianAggregation()", "MinAggregation()", "MulAggregation()",
    "MultiAggregation(['mean', 'max', 'std'])", "PowerMeanAggregation(learn=True)", "QuantileAggregation([0.2, 0.8])",
    "Set2Set(W, 2)", "SetTransformerAggregation(W)", "SoftmaxAggregation(learn=True)", "SortAggregation(3)",
    "StdAggregation()", "SumAggregation()", "VarAggregation()", "VariancePreservingAggregation()",
]  # fmt: skip
MAKERS = ZOO | {
    line.split("(")[0]: (functools.partial(value_of, line, **{**vars(aggr), "W": W, "mlp": mlp}), "x batch")
    for line in AGGREGATIONS
}

#: Values to try of what is no switch; of switches the other one.
VALUES = {
    "K": [1, 4], "act": [None, "leaky_relu", nn.ELU()], "alpha": [0.0, 0.3], "attention_type": ["SD", "dot_product"],
    "aggr": ["sum", "min", "median", "softmax", ["mean", "std", "powermean"]],
    "attention_mechanism": ["within-relation"],
    "aggregators": [["sum", "var", "min"], ["symnorm"]], "attention_mode": ["multiplicative-self-attention"],
    "attn_type": ["performer"], "block": ["res", "dense", "plain"], "combine_root": ["sum", "cat", None],
    "diag_lambda": [1.0], "edge_dim": [None], "fill_value": [0.5], "flow": ["target_to_source"], "groups": [2],
    "heads": [4], "jk": [None, "last", "cat", "max", "lstm"], "mod": ["scaled", "f-scaled", "f-additive"],
    "mode": ["graph", "node", "PN-SI", "PN-SCS"], "node_dim": [0], "normalization": [None, "rw"],
    "norm": [None, "batch_norm", "layer_norm", "graph_norm", "instance_norm", "mean_subtraction_norm"],
    "num_bases": [None, 2], "num_blocks": [2], "num_groups": [1], "num_layers": [1],
    "scalers": [["linear", "inverse_linear"]], "theta": [None, 0.5],
}  # fmt: skip


def built(make):
    """A module whose parameters are not those that it begins with."""
    module = seeded(make).double()
    for number, parameter in enumerate(filter(torch.is_floating_point, module.parameters())):
        with torch.no_grad():
            parameter += 0.1 * torch.arange(parameter.numel()).add(number).sin().view(parameter.shape)
    return module.train(not hasattr(module, "neg_sample_ratio"))  # which threads draw, each by itself


def variants(name):
    """A class as the table has it, with other arguments, and with each option: names, modules and their inputs."""
    make, inputs = MAKERS[name]
    yield name, built(make), inputs
    for more in ("pair edge_index", "x edge_index weight", "x edge_index attr", "x batch"):
        if inputs != more and inputs.split()[-1] in more and ("Conv" in name or "edge" not in more):
            yield f"{name} of {more}", built(make), more
    kind = getattr(pyg, name.split()[0], None) or getattr(models, name.split()[0], None)
    of_bases = [inspect.signature(base.__init__).parameters for base in (kind.__mro__ if kind else ())]
    for option, parameter in sorted({key: each for found in of_bases for key, each in found.items()}.items()):
        is_switch = isinstance(parameter.default, bool)
        for value in [not parameter.default] if is_switch else VALUES.get(option, []):
            # What the table gives wins over what is tried here; what one device does not take is none.
            init = functools.partialmethod(kind.__init__, **{option: value})
            with contextlib.suppress(Exception), mock.patch.object(kind, "__init__", init):
                yield f"{name} {option}={value}", built(make), inputs


def results(module, data, inputs):
    """What comes out, and the gradients of a weighted sum of it."""
    x = data.x.clone().requires_grad_()
    given = {**data.to_dict(), "x": x, "pair": (x, data.x_0)}
    out = module(*(given[name] for name in inputs.split()))
    leaves = [each for each in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(each)]
    printed = plain(leaves)  # before a backward that frees memory of its own
    loss = sum(
        (each * torch.arange(each.size(-1)).cos() * each.cos()).sum()
        for each in leaves
        if each.is_floating_point()
    )
    if torch.is_tensor(loss) and loss.requires_grad:
        loss.backward()
    return {"out": printed, "x": x.grad, "weights": [weight.grad for weight in module.parameters()]}

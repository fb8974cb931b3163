"""Calls of all of torch's functions that can be overridden: on one device, and on ranks that see one device."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
import torch.overrides
from torch import Tensor

from tests.dgcl.rows.harness import each_on_threads, plain
from tests.dgcl.rows.programs import graph

SPACES = (torch, Tensor, F, torch.linalg, torch.special)
OPERATORS = {"__getitem__", "__add__", "__rsub__", "__rpow__", "__rdiv__", "__abs__"}

#: What draws numbers, gives memory that nobody has written, or points to memory.
LEFT_OUT = set(
    "rand randn bernoulli multinomial normal dropout alpha_dropout feature_dropout poisson rrelu gumbel_softmax empty_like"
    " empty_strided new_empty empty resize_ set_ random_ uniform_ normal_ bernoulli_ cauchy_ exponential_ geometric_"
    " log_normal_ data_ptr storage share_memory_ backward register_hook register_post_accumulate_grad_hook requires_grad_"
    " apply_ map_ map2_ put_ dropout1d dropout2d dropout3d feature_alpha_dropout native_dropout rand_like randn_like"
    " randint_like rrelu_ fractional_max_pool2d fractional_max_pool3d svd_lowrank pca_lowrank lobpcg binomial const_data_ptr"
    " resize_as_ resize resize_as new_empty_strided untyped_storage storage_type new pin_memory is_pinned to_dense __dlpack__"
    " __dlpack_device__ pack_padded_sequence wait dispatch_ module_load cuda xpu ipu hpu mtia poisson_nll_loss stft istft"
    " unsafe_chunk fused_moving_avg_obs_fake_quant as_strided as_strided_ as_strided_copy as_strided_scatter slice_inverse dim_order".split()
)

#: How a function is called: of features x and data d.
FORMS: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "(x)": lambda x, d: (x,),
    "(x, 0)": lambda x, d: (x, 0),
    "(x, 1)": lambda x, d: (x, 1),
    "(x, dim=0)": lambda x, d: (x, {"dim": 0}),
    "(x, dim=1)": lambda x, d: (x, {"dim": 1}),
    "(x, dim=0, keepdim=True)": lambda x, d: (x, {"dim": 0, "keepdim": True}),
    "(x, x / 2)": lambda x, d: (x, x * 0.5),
    "(x, y)": lambda x, d: (x, d.y),
    "(y)": lambda x, d: (d.y,),
    "(mask)": lambda x, d: (d.train_mask,),
    "(x, mask)": lambda x, d: (x, d.train_mask),
    "(x[:, 0])": lambda x, d: (x[:, 0],),
    "(x[:, 0], x[:, 1])": lambda x, d: (x[:, 0], x[:, 1]),
    "(mask, x[:, 0], x[:, 1])": lambda x, d: (d.train_mask, x[:, 0], x[:, 1]),
    "(x, weight)": lambda x, d: (x, torch.arange(12.0).view(6, 2)),
    "(x, table)": lambda x, d: (x, torch.arange(540.0).view(90, 6).sin()),
    "(table, x)": lambda x, d: (torch.arange(540.0).view(90, 6).sin(), x),
    "(x.t())": lambda x, d: (x.t(),),
    "(x.view(-1, 2, 3))": lambda x, d: (x.view(-1, 2, 3),),
    "(x[None])": lambda x, d: (x[None],),
    "(x.abs() + 0.1)": lambda x, d: (x.abs() + 0.1,),
    "(x[mask])": lambda x, d: (x[d.train_mask],),
    "(x[mask], y[mask])": lambda x, d: (x[d.train_mask], d.y[d.train_mask]),
    "(x[row])": lambda x, d: (x[d.edge_index[0]],),
    "(x[col], dim=0)": lambda x, d: (x[d.edge_index[1]], {"dim": 0}),
    "(edge_index)": lambda x, d: (d.edge_index,),
    "(edge_index, 0)": lambda x, d: (d.edge_index, 0),
    "(edge_index, [0, 1])": lambda x, d: (d.edge_index, [0, 1]),
    "(row)": lambda x, d: (d.edge_index[0],),
    "(row, col)": lambda x, d: (d.edge_index[0], d.edge_index[1]),
    "(x, 0, col)": lambda x, d: (x, 0, d.edge_index[1]),
    "(x, 0, y, x)": lambda x, d: (x, 0, d.y, x * 0.5),
    "(x, 0, table of y, x)": lambda x, d: (x, 0, d.y.view(-1, 1).expand(-1, 6), x * 0.5),
    "(zeros, 0, row, x[col])": lambda x, d: (torch.zeros(90, 6), 0, d.edge_index[0], x[d.edge_index[1]]),
    "(zeros, 0, numbers, x)": lambda x, d: (torch.zeros(99, 6), 0, torch.arange(9, 99), x),
    "(x.mean(0))": lambda x, d: (x.mean(0),),
    "(x, x.mean(0))": lambda x, d: (x, x.mean(0)),
    "(x.sum())": lambda x, d: (x.sum(),),
    "([x, x / 2], 0)": lambda x, d: ([x, x * 0.5], 0),
    "([x, x / 2], 1)": lambda x, d: ([x, x * 0.5], 1),
}

Call = tuple[str, Callable[..., Any], str, bool]  # a name, the function, its form, whether it is differentiated


def calls() -> list[Call]:
    """All calls in order, values before gradients."""
    found = torch.overrides.get_overridable_functions()
    functions = {
        f"{space.__name__}.{name}": function
        for space in SPACES
        for function in found.get(space, ())
        if (name := getattr(function, "__name__", "")) and (name[0] != "_" or name in OPERATORS) and name not in LEFT_OUT
    }
    each = itertools.product((False, True), sorted(functions.items()), FORMS)
    return [(name + form, function, form, gradient) for gradient, (name, function), form in each]


def leaves(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def outcome(call: Call, data: Any) -> list[Any]:
    """The plain results of a call, or their gradient."""
    name, function, form, gradient = call
    data = data.clone()
    x = data.x.requires_grad_(gradient)
    *args, last = FORMS[form](x * 1.0 if gradient else x, data)  # what is changed in place must be no leaf
    out = leaves(function(*args, **last) if isinstance(last, dict) else function(*args, last))
    if gradient:
        out = [each for each in out if isinstance(each, Tensor) and each.is_floating_point() and each.requires_grad]
        seeds = [torch.randn(each.shape, generator=torch.Generator().manual_seed(7)) for each in out]
        loss = sum((each * seed).sum() for each, seed in zip(out, seeds, strict=True))
        loss.backward()
        out = [x.grad]
    return plain(out)


def on_one_device(call: Call, data: Any) -> list[Any] | None:
    """What one device gives, if it takes the call and its results can be compared."""
    kinds = (Tensor, int, float, bool, torch.Size, torch.dtype)
    with contextlib.suppress(Exception):
        out = outcome(call, data)
        if all(isinstance(each, kinds) for each in out):
            return out
    return None


def equal(one: Any, other: Any) -> bool:
    if not isinstance(other, Tensor):
        return bool(one == other) or (isinstance(other, float) and math.isclose(one, other, rel_tol=1e-9))
    if not isinstance(one, Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.allclose(one.to_dense(), other.to_dense(), rtol=1e-9, atol=1e-11, equal_nan=True)


def sweep(every: Iterable[Call]) -> tuple[list[str], list[str], int]:
    """The calls that are wrong, those that are refused, with what was raised, and how many one device takes."""
    data = graph()
    expected = [(call, out) for call in every if (out := on_one_device(call, data)) is not None]
    wrong, refused = [], []
    ranks = each_on_threads(outcome, [call for call, _ in expected], data)
    for (call, wanted), got in zip(expected, ranks, strict=True):
        name = call[0] + " gradient" * call[3]
        errors = [each for each in got if isinstance(each, Exception)]
        if errors:
            refused.append(f"{name}: {type(errors[0]).__name__}: {errors[0]}")
        elif not all(len(each) == len(wanted) and all(map(equal, each, wanted)) for each in got):
            wrong.append(name)
    return wrong, refused, len(expected)

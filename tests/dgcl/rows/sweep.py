"""Calls of all of torch's functions that can be overridden: on one device, and on ranks that see one device."""

import contextlib
import itertools

import torch
import torch.nn.functional as F
import torch.overrides
from torch import Tensor

from tests.dgcl.rows.programs import graph
from tests.support.rows_harness import differs, on_threads, plain, value_of

SPACES = (torch, Tensor, F, torch.linalg, torch.special)
OPERATORS = {"__getitem__", "__add__", "__rsub__", "__rpow__", "__rdiv__", "__abs__"}

#: What draws numbers, gives memory that nobody has written, or tells of memory.
LEFT_OUT = set(  # noqa: C405
    [
        "rand",
        "randn",
        "bernoulli",
        "multinomial",
        "normal",
        "dropout",
        "alpha_dropout",
        "feature_dropout",
        "poisson",
        "rrelu",
        "gumbel_softmax",
        "empty_like",
        "empty_strided",
        "new_empty",
        "empty",
        "resize_",
        "set_",
        "random_",
        "uniform_",
        "normal_",
        "bernoulli_",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "data_ptr",
        "storage",
        "share_memory_",
        "backward",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "requires_grad_",
        "apply_",
        "map_",
        "map2_",
        "put_",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "feature_alpha_dropout",
        "native_dropout",
        "rand_like",
        "randn_like",
        "randint_like",
        "rrelu_",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "svd_lowrank",
        "pca_lowrank",
        "lobpcg",
        "binomial",
        "const_data_ptr",
        "resize_as_",
        "resize",
        "resize_as",
        "new_empty_strided",
        "untyped_storage",
        "storage_type",
        "new",
        "pin_memory",
        "is_pinned",
        "to_dense",
        "__dlpack__",
        "__dlpack_device__",
        "pack_padded_sequence",
        "wait",
        "dispatch_",
        "module_load",
        "cuda",
        "xpu",
        "ipu",
        "hpu",
        "mtia",
        "poisson_nll_loss",
        "stft",
        "istft",
        "unsafe_chunk",
        "fused_moving_avg_obs_fake_quant",
        "as_strided",
        "as_strided_",
        "as_strided_copy",
        "as_strided_scatter",
        "slice_inverse",
        "dim_order",
        "hash_tensor",
    ]
)

#: What a function is called with: of features x, labels y, a mask, and the ends of edges.
FORMS = [
    "x", "x, 0", "x, 1", "x, dim=0", "x, dim=1", "x, dim=0, keepdim=True", "x, x * 0.5", "x, y", "y", "mask", "x, mask",
    "x[:, 0]", "x[:, 0], x[:, 1]", "mask, x[:, 0], x[:, 1]", "x, torch.arange(12.0).view(6, 2)", "x, table.sin()",
    "table.sin(), x", "x.t()", "x.view(-1, 2, 3)", "x[None]", "x.abs() + 0.1", "x[mask]", "x[mask], y[mask]", "x[row]",
    "x[col], dim=0", "edge_index", "edge_index, 0", "edge_index, [0, 1]", "row", "row, col", "x, 0, col",
    "x, 0, y, x * 0.5", "x, 0, y.view(-1, 1).expand(-1, 6), x * 0.5", "table * 0, 0, row, x[col]",
    "torch.zeros(99, 6), 0, torch.arange(9, 99), x", "x.mean(0)", "x, x.mean(0)", "x.sum()", "[x, x * 0.5], 0",
    "[x, x * 0.5], 1",
]  # fmt: skip


def calls():
    """All calls in order, values before gradients: a name, the function, its form, whether it is differentiated."""
    found = torch.overrides.get_overridable_functions()
    functions = {
        f"{space.__name__}.{name}": function
        for space in SPACES
        for function in found.get(space, ())
        if (name := getattr(function, "__name__", ""))
        and (name[0] != "_" or name in OPERATORS)
        and name not in LEFT_OUT
    }
    each = itertools.product((False, True), sorted(functions.items()), FORMS)
    return [(f"{name}({form})", function, form, gradient) for gradient, (name, function), form in each]


def leaves(value):
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def outcome(call, data):
    """The results of a call, or their gradient."""
    _, function, form, gradient = call
    data = data.clone()
    x = data.x.requires_grad_(gradient)
    names = {
        "y": data.y,
        "mask": data.train_mask,
        "edge_index": data.edge_index,
        "table": torch.arange(540.0).view(90, 6),
    }
    row, col = data.edge_index
    given = x * 1.0 if gradient else x  # what is changed in place must be no leaf
    out = leaves(value_of(f"function({form})", function=function, x=given, row=row, col=col, **names))
    if not gradient:
        return out
    out = [
        each for each in out if isinstance(each, Tensor) and each.is_floating_point() and each.requires_grad
    ]
    seeds = [torch.randn(each.shape, generator=torch.Generator().manual_seed(7)) for each in out]
    sum((each * seed).sum() for each, seed in zip(out, seeds, strict=True)).backward()
    return [x.grad]


def on_one_device(call, data):
    """What one device gives, if it takes the call and its results can be compared."""
    kinds = (Tensor, int, float, bool, torch.Size, torch.dtype)
    with contextlib.suppress(Exception):
        out = plain(outcome(call, data))
        if all(isinstance(each, kinds) for each in out):
            return out
    return None


def sweep(every):
    """The calls that are wrong, those that are refused, with what was raised, and how many one device takes."""
    data = graph()
    expected = [(call, out) for call in every if (out := on_one_device(call, data)) is not None]
    wrong, refused = [], []
    ranks = on_threads(outcome, [call for call, _ in expected], data)
    for (call, wanted), got in zip(expected, ranks, strict=True):
        name = call[0] + " gradient" * call[3]
        if errors := [each for each in got if isinstance(each, Exception)]:
            refused.append(f"{name}: {errors[0]!r}")
        elif found := [what for each in got if (what := differs(each, wanted))]:
            wrong.append(f"{name}: {found[0]}")
    return wrong, refused, len(expected)

"""Reductions, softmax and batch normalisation of tensors whose rows are divided over ranks.

Along other dimensions than the rows' each rank works alone. Over rows most (sums, means, extremes, norms) are sums over
ranks; a maximum's gradient is divided among ties of all ranks; what is no sum (median, sort, ...) is computed of all
rows (``gathering``). 16-bit floats are summed in float32.
Called by `rule_table`. Free to change while values and gradients of each, with and without ``dim`` and ``keepdim``, are
those of one device (`tests/dgcl/rows/test_sweep.py`; batch normalisation: `tests/dgcl/rows/test_programs.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.sparse import sum_dtype
from dgcl.nn.batch_norm import normalised
from dgcl.rows.elementwise import elementwise
from dgcl.rows.gathering import gathered
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import total
from dgcl.rows.space import Space
from dgcl.rows.tensor import Rows, mapped, plain, replicated, rows

#: Where the dimension is not the second argument, its place.
_PLACE = dict.fromkeys(
    str.split("norm normalize topk quantile nanquantile kthvalue vector_norm linalg_vector_norm"),
    2,
)
#: The dimension that is meant where none is said.
_DEFAULT = {"sort": -1, "argsort": -1, "topk": -1, "normalize": 1, "kthvalue": -1, "mode": -1}
#: They keep their dimensions.
_ALONG = set(
    str.split(
        """softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp sort argsort msort topk normalize"""
    )
)


def reduction(call: Call) -> Any:
    """A reduction of rows, or a function along a dimension."""
    first, args, kwargs, name = call.first, call.args, call.kwargs, call.name
    if not args or args[0] is not first:
        return gathered(call)
    if name in ("max", "min") and (len(args) > 1 and isinstance(args[1], Tensor)):
        return elementwise(call)
    place = _PLACE.get(name, 1)
    dim = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else _DEFAULT.get(name)))
    if isinstance(dim, (bool, Tensor, torch.dtype)):
        dim = None
    flags = [each for each in args[2:] if isinstance(each, bool)]
    if name in ("var", "std"):  # the first one is "unbiased"
        flags = flags[1:]
    keep = bool(kwargs.get("keepdim", any(flags)))
    if dim is None and "softm" in name:
        dim = 0 if first.dim() in (0, 1, 3) else 1
        args, kwargs = args[:1], {**kwargs, "dim": dim}
    number, axis = first.dim(), first._axis
    every = dim is None or dim in ((), [])
    arguments = [*range(number)] if every else dim if isinstance(dim, (tuple, list)) else [dim]
    dims = sorted({each % max(number, 1) for each in arguments})
    if axis not in dims:
        new = axis if keep or name in _ALONG else axis - sum(each < axis for each in dims)
        return mapped(
            lambda each: rows(each, first._space, new), call.func(first._local, *args[1:], **kwargs)
        )
    rule = _RULES.get(name)
    local = first._local if kwargs.get("dtype") is None else first._local.to(kwargs["dtype"])
    if rule is None or (every and dim is None and name in _ALONG) or (name in ("max", "min") and not every):
        return gathered(call)
    if name not in _ANY_TYPE and not local.is_floating_point():
        return gathered(call)
    out = rule(call, local.to(sum_dtype(local.dtype)), dims)
    if out is NotImplemented:
        return gathered(call)
    out = out.to(local.dtype) if out.is_floating_point() else out
    if name in _ALONG:
        return rows(out, first._space, axis)
    return replicated(out if keep else out.squeeze(dims))


def _sum(call: Call, local: Tensor, dims: list[int]) -> Tensor:
    return _over_ranks(call, local.sum(dims, True))


def _over_ranks(call: Call, share: Tensor) -> Tensor:
    return total(share, call.first._space.comm, f"{call.name} of rows")


def _mean(call: Call, local: Tensor, dims: list[int]) -> Tensor:
    return _sum(call, local, dims) / _count(call, local, dims)


def _count(call: Call, local: Tensor, dims: list[int]) -> int:
    """Elements that are reduced into one."""
    return call.first._space.size * math.prod(local.shape[each] for each in dims if each != call.first._axis)


def _variance(call: Call, local: Tensor, dims: list[int]) -> Tensor:
    unbiased = call.kwargs.get(
        "unbiased", next((each for each in call.args[1:] if isinstance(each, bool)), True)
    )
    correction = call.kwargs.get("correction", int(unbiased))
    count = _count(call, local, dims)
    value = _sum(call, (local - _mean(call, local, dims)).square(), dims) / count
    over = count - (1 if correction is None else correction)
    value = value * (count / over if over > 0 else math.nan)
    return value.sqrt() if call.name == "std" else value


def extreme(local: Tensor, space: Space, kind: str, dims: list[int]) -> Tensor:
    """The maxima ("amax") or minima ("amin") over rows of all ranks, without gradient; reduced dimensions stay."""
    wide = local.detach().to(torch.uint8) if local.dtype == torch.bool else local.detach()
    if any(wide.shape[each] == 0 for each in dims):  # a rank without rows
        bounds = torch.finfo(wide.dtype) if wide.is_floating_point() else torch.iinfo(wide.dtype)
        worst = bounds.min if kind == "amax" else bounds.max
        worst = math.copysign(math.inf, worst) if wide.is_floating_point() else worst
        own = wide.new_full([1 if at in dims else size for at, size in enumerate(wide.shape)], worst)
    else:
        own = getattr(wide, kind)(dims, True)
    every = own.new_zeros(space.comm.world_size, *own.shape)
    every[space.comm.rank] = own  # zeros of others are added to it, which keeps infinities and NaN
    every = space.comm.all_reduce_sum(every, f"{kind} of rows")
    return getattr(every, kind)(0).to(local.dtype)  # type: ignore[no-any-return]


def _extreme(call: Call, local: Tensor, dims: list[int]) -> Tensor:
    """Ties over all ranks share the gradient, as on one device."""
    top = extreme(local, call.first._space, "amax" if "max" in call.name else "amin", dims)
    if local.requires_grad and torch.is_grad_enabled():
        hit = local == top
        number = _over_ranks(call, hit.sum(dims, True))
        top = _over_ranks(call, torch.where(hit, local, 0).sum(dims, True)) / number
    return top


def _softmax(call: Call, local: Tensor, dims: list[int]) -> Tensor:
    local = -local if call.name == "softmin" else local
    top = extreme(local, call.first._space, "amax", dims)
    shifted = local - torch.where(top.isfinite(), top, 0)
    among = _over_ranks(call, shifted.exp().sum(dims, True))
    return shifted - among.log() if call.name == "log_softmax" else shifted.exp() / among


def _norm(call: Call, local: Tensor, dims: list[int]) -> Any:
    """With gradient 0 at 0, as torch's."""
    order = call.bound("input p dim", p=call.kwargs.get("ord", 2))[1]
    if order not in (None, 2, "fro") or (1 < len(dims) < local.dim() and "vector" not in call.name):
        return NotImplemented
    squares = _sum(call, local.square(), dims)
    return torch.where(squares == 0, squares, torch.where(squares == 0, 1, squares).sqrt())


def batch_norm(call: Call) -> Any:
    """``F.batch_norm`` of ``(rows, C, *)``: statistics of all rows, running ones as on one device."""
    names = "input running_mean running_var weight bias training momentum eps"
    own, mean_so_far, variance_so_far, weight, bias, training, momentum, eps = call.bound(
        names, momentum=0.1, eps=1e-5
    )
    if type(own) is not Rows or own._axis != 0 or own.dim() < 2:
        return gathered(call)
    local, space = own._local, own._space
    if not training:
        return rows(call.func(local, *map(plain, call.args[1:]), **mapped(plain, call.kwargs)), space)
    count = own.numel() // own.shape[1]
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {own.shape}")

    def update(mean: Tensor, variance: Tensor) -> None:
        for running, value in ((mean_so_far, mean), (variance_so_far, variance)):
            if running is not None:
                running.mul_(1 - momentum).add_(value * momentum)

    def sums(share: Tensor) -> Tensor:
        return total(share, space.comm, "batch_norm of rows")

    return rows(normalised(local, plain(weight), plain(bias), eps, count, sums, update), space)


_RULES: dict[str, Callable[[Call, Tensor, list[int]], Any]] = {
    "sum": _sum,
    "mean": _mean,
    "any": lambda call, local, dims: _sum(call, local != 0, dims) > 0,
    "all": lambda call, local, dims: _sum(call, local == 0, dims) == 0,
    **dict.fromkeys(("var", "std"), _variance),
    **dict.fromkeys(("amax", "amin", "max", "min"), _extreme),
    **dict.fromkeys(("softmax", "log_softmax", "softmin"), _softmax),
    **dict.fromkeys(("norm", "vector_norm", "linalg_vector_norm"), _norm),
}
_ANY_TYPE = set(str.split("sum any all amax amin max min"))
#: Names of functions that this file knows, those with all rows where rows are reduced among them.
REDUCTIONS = {*_RULES, *_ALONG} | set(
    str.split(
        """prod nansum nanmean median nanmedian mode kthvalue quantile nanquantile aminmax std_mean var_mean argmax
    argmin logsumexp count_nonzero"""
    )
)

"""Reductions and normalisations along dimensions: local where rows are not reduced, else sums over ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dgcl.rows.elementwise import elementwise
from dgcl.rows.gathering import gathered
from dgcl.rows.space import Space
from dgcl.rows.sums import total
from dgcl.rows.tensor import Replicated, Rows, mapped, replicated, rows

#: By name which positional argument says the dimension, where it is not the second.
_PLACE = dict.fromkeys(
    ("norm", "normalize", "topk", "quantile", "nanquantile", "kthvalue", "vector_norm", "linalg_vector_norm"),
    2,
)
#: The dimension that is meant where none is said.
_DEFAULT = {"sort": -1, "argsort": -1, "topk": -1, "normalize": 1, "kthvalue": -1, "mode": -1, "diff": -1}
#: They keep their dimensions.
ALONG = set(
    "softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp sort argsort msort topk normalize"
    " renorm".split()
)
_ADD = {"sum", "mean", "nansum", "nanmean"}


def _dimension(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """What a call says of dimensions, and whether reduced ones stay."""
    place = _PLACE.get(name, 1)
    dim = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else _DEFAULT.get(name)))
    if isinstance(dim, (bool, Tensor, torch.dtype)):
        dim = None
    keep = kwargs.get(
        "keepdim", kwargs.get("keepdims", next((each for each in args[2:] if each is True), False))
    )
    return dim, bool(keep)


def reduction(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """A reduction of rows, or a function along a dimension."""
    if args and args[0] is not first or not args:
        return gathered(func, name, args, kwargs)
    if name in ("max", "min") and (len(args) > 1 and isinstance(args[1], Tensor) or "other" in kwargs):
        return elementwise(func, name, args, kwargs, first)
    dim, keep = _dimension(name, args, kwargs)
    if dim is None and name in ("softmax", "log_softmax", "softmin"):
        dim = 0 if first.dim() in (0, 1, 3) else 1
        kwargs = {**kwargs, "dim": dim}
        args = args[:1]
    number, axis = first.dim(), first._axis
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        dims = {*range(number)}
    else:
        dims = {each % max(number, 1) for each in (dim if isinstance(dim, (tuple, list)) else [dim])}
    if axis in dims:
        rule = _RULES.get(name)
        if rule is None:
            return gathered(func, name, args, kwargs)
        out = rule(func, first._local, first, sorted(dims), dim is None, keep, args, kwargs)
        return gathered(func, name, args, kwargs) if out is NotImplemented else out
    out = func(first._local, *args[1:], **kwargs)
    new = axis if keep or name in ALONG else axis - sum(each < axis for each in dims)
    if type(out) is Tensor:
        return rows(out, first._space, new)
    return mapped(lambda each: rows(each, first._space, new), out) if isinstance(out, tuple) else out


def _count(local: Tensor, first: Rows, dims: list[int]) -> int:
    """Elements that are reduced into one."""
    return first._space.size * math.prod(local.shape[each] for each in dims if each != first._axis)


def _typed(local: Tensor, kwargs: dict[str, Any]) -> Tensor:
    return local if kwargs.get("dtype") is None else local.to(kwargs["dtype"])


def _summed(local: Tensor, first: Rows, name: str, dims: list[int], every: bool, keep: bool) -> Tensor:
    share = local.sum() if every and not keep else local.sum(dims, keep)
    value = total(share, first._space.comm, f"{name} of rows")
    value.__class__ = Replicated
    return value


def _sum(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    return _summed(_typed(local, kwargs), first, "sum", dims, every, keep)


def _nansum(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    return _summed(_typed(local, kwargs).nan_to_num(0.0), first, "nansum", dims, every, keep)


def _nanmean(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    local = _typed(local, kwargs)
    known = _summed((~local.isnan()).to(local.dtype), first, "nanmean", dims, every, keep)
    bare = torch.where(local.isnan(), 0.0, local)
    return replicated(_summed(bare, first, "nanmean", dims, every, keep) / known)


def _mean(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    local = _typed(local, kwargs)
    if not (local.is_floating_point() or local.is_complex()):
        return NotImplemented  # torch's own error
    return replicated(_summed(local, first, "mean", dims, every, keep) / _count(local, first, dims))


def _count_nonzero(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    return _summed(local != 0, first, "count_nonzero", dims, every, False)


def _any(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    return replicated(_summed(local != 0, first, "any", dims, every, keep) > 0)


def _all(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    return replicated(_summed(local == 0, first, "all", dims, every, keep) == 0)


def moments(local: Tensor, space: Space, dims: list[int], count: Any, name: str) -> tuple[Tensor, Tensor]:
    """Mean and mean of squared deviations over rows of all ranks, in two passes; reduced dimensions stay."""
    mean = total(local.sum(dims, True), space.comm, f"{name} of rows") / count
    squares = (local - mean).abs().square() if local.is_complex() else (local - mean).square()
    return mean, total(squares.sum(dims, True), space.comm, f"{name} of rows") / count


def _variance(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    unbiased = kwargs.get("unbiased", next((each for each in args[1:] if isinstance(each, bool)), True))
    correction = kwargs.get("correction", int(unbiased))
    if correction is None:
        correction = 1
    if not (local.is_floating_point() or local.is_complex()):
        return NotImplemented
    count = _count(local, first, dims)
    _, value = moments(local, first._space, dims, count, "var")
    over = count - correction
    value = value * (count / over) if over > 0 else value * math.nan
    value = value if keep else value.squeeze(dims)
    return replicated(value.sqrt() if getattr(func, "__name__", "") == "std" else value)


def extreme(local: Tensor, space: Space, kind: str, dims: list[int]) -> Tensor:
    """The maxima ("amax") or minima ("amin") over rows of all ranks, without gradient; reduced dimensions stay."""
    local = local.detach()
    wide = local.to(torch.uint8) if local.dtype == torch.bool else local
    if any(wide.shape[each] == 0 for each in dims):  # a rank without rows
        shape = [1 if at in dims else size for at, size in enumerate(wide.shape)]
        bounds = torch.finfo(wide.dtype) if wide.is_floating_point() else torch.iinfo(wide.dtype)
        worst: Any = (
            (-math.inf if kind == "amax" else math.inf)
            if wide.is_floating_point()
            else (bounds.min if kind == "amax" else bounds.max)
        )
        own = wide.new_full(shape, worst)
    else:
        own = getattr(wide, kind)(dims, True)
    every = own.new_zeros(space.comm.world_size, *own.shape)
    every[space.comm.rank] = own
    # Bits are added to zeros: sums of infinities and NaN with zeros keep them as they are.
    every = space.comm.all_reduce_sum(every, f"{kind} of rows")
    return getattr(every, kind)(0).to(local.dtype)  # type: ignore[no-any-return]


def _extreme(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    """Ties over all ranks share the gradient, as on one device."""
    name = getattr(func, "__name__", "")
    if name in ("max", "min") and not every or local.is_complex():
        return NotImplemented  # with indices: below
    space = first._space
    top = extreme(local, space, "amax" if "max" in name else "amin", dims)
    if local.requires_grad and torch.is_grad_enabled():
        hit = local == top
        number = total(hit.sum(dims, True), space.comm, f"{name} of rows")
        top = total(torch.where(hit, local, 0).sum(dims, True), space.comm, f"{name} of rows") / number
    return replicated(top if keep else top.squeeze(dims))


def _extreme_and_place(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    """``max(dim)`` of rows: values, and the first place where each is; the gradient goes there alone."""
    name = getattr(func, "__name__", "")
    if every:
        return _extreme(func, local, first, dims, every, keep, args, kwargs)
    if local.is_complex() or len(dims) != 1:
        return NotImplemented
    place = _first_place(local, first, name, dims)
    hit = _positions(local, first) == place
    value = total(torch.where(hit, local, 0).sum(dims, True), first._space.comm, f"{name} of rows").to(
        local.dtype
    )
    if not keep:
        value, place = value.squeeze(dims), place.squeeze(dims)
    return type_of_pair(name)([replicated(value), replicated(place)])


def type_of_pair(name: str) -> Any:
    """What ``torch.max`` and ``torch.min`` with a dimension give."""
    return getattr(torch.return_types, name)


def _positions(local: Tensor, first: Rows) -> Tensor:
    shape = [1] * local.dim()
    shape[first._axis] = -1
    return first._space.positions.to(local.device).view(shape)


def _first_place(local: Tensor, first: Rows, name: str, dims: Any) -> Tensor:
    kind = "amax" if "max" in name else "amin"
    bare = local.detach()
    top = extreme(bare, first._space, kind, dims)
    hit = (bare == top) | (bare.isnan() & top.isnan())
    at = torch.where(hit, _positions(local, first), first._space.size)
    return extreme(at, first._space, "amin", dims)


def _place(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    if every or local.is_complex():
        return NotImplemented
    place = _first_place(local, first, getattr(func, "__name__", ""), dims)
    return replicated(place if keep else place.squeeze(dims))


def _softmax(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    local, space, axis = _typed(local, kwargs), first._space, first._axis
    name = getattr(func, "__name__", "")
    if not local.is_floating_point():
        return NotImplemented
    local = -local if name == "softmin" else local
    top = extreme(local, space, "amax", [axis])
    shifted = local - torch.where(top.isfinite(), top, 0)
    among = total(shifted.exp().sum(axis, True), space.comm, f"{name} of rows")
    return rows(shifted - among.log() if "log" in name else shifted.exp() / among, space, axis)


def _logsumexp(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    if not local.is_floating_point():
        return NotImplemented
    top = extreme(local, first._space, "amax", dims)
    top = torch.where(top.isfinite(), top, 0)
    value = total((local - top).exp().sum(dims, True), first._space.comm, "logsumexp of rows").log() + top
    return replicated(value if keep else value.squeeze(dims))


def _norm(
    func: Any, local: Tensor, first: Rows, dims: Any, every: bool, keep: bool, args: Any, kwargs: Any
) -> Any:
    order = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else 2))
    flat = every or len(dims) == 1 or "vector" in getattr(func, "__name__", "")
    if order not in (None, 2, 2.0, "fro") or not flat or not local.is_floating_point():
        return NotImplemented
    squares = _summed(_typed(local, kwargs).square(), first, "norm", dims, every, keep)
    return replicated(_root(squares))


def _root(squares: Tensor) -> Tensor:
    """The root, with gradient 0 at 0, as norms have it."""
    zero = squares == 0
    return torch.where(zero, squares, torch.where(zero, 1, squares).sqrt())


_RULES: dict[str, Any] = {
    "sum": _sum,
    "nansum": _nansum,
    "mean": _mean,
    "nanmean": _nanmean,
    "count_nonzero": _count_nonzero,
    "any": _any,
    "all": _all,
    "var": _variance,
    "std": _variance,
    "amax": _extreme,
    "amin": _extreme,
    "max": _extreme_and_place,
    "min": _extreme_and_place,
    "argmax": _place,
    "argmin": _place,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "softmin": _softmax,
    "logsumexp": _logsumexp,
    "norm": _norm,
    "vector_norm": _norm,
    "linalg_vector_norm": _norm,
}
#: Names of functions that this file knows, those with all rows where rows are reduced among them.
REDUCTIONS = {*_RULES, *ALONG} | set(
    "prod median nanmedian mode kthvalue quantile nanquantile aminmax std_mean var_mean".split()
)

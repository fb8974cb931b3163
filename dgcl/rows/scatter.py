"""Sums and maxima of rows by numbers: into vertices by ends of edges, into tables by labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgcl.rows.elementwise import become
from dgcl.rows.gathering import gathered
from dgcl.rows.sums import as_ids, fitting, total, write
from dgcl.rows.tensor import Rows, follow, plain, replicated, rows

_NAMES = ("self", "dim", "index", "src")


def scatter(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``scatter_add``, ``index_add``, ``scatter_reduce``, ``scatter`` and what changes its table in place."""
    kwargs = {
        {"input": "self", "source": "src", "value": "src"}.get(key, key): each for key, each in kwargs.items()
    }
    named = dict(zip(_NAMES, args, strict=False)) | {key: kwargs.pop(key) for key in _NAMES if key in kwargs}
    own, dim, index, src = (named.get(each) for each in _NAMES)
    more = args[4:]
    in_place = name.endswith("_")
    if not isinstance(own, Tensor) or not isinstance(dim, int) or not isinstance(index, Tensor):
        return gathered(func, name, args, kwargs)
    dim %= max(own.dim(), 1)
    adds = "add" in name or (more or kwargs.get("reduce", "") == "sum") and (more[:1] in ((), ("sum",)))
    if type(index) is Rows and index._ends:
        numbers = index._space.ends
        space = numbers.spaces.get(index._ends) if numbers and numbers.exchange else None
        of_vertices = (
            space is not None
            and own.shape[dim] == space.size
            and (type(own) is not Rows or (own._axis == dim and own._space is space and not own._ends))
        )
        if of_vertices and (index._ends == "target" or adds):
            return _into_vertices(func, name, own, dim, index, src, more, kwargs, space)
        index = as_ids(index)
    if type(index) is Rows and index._axis != dim and index.dim() == own.dim() == 2:
        return _along(func, name, own, dim, index, src, more, kwargs)
    if type(own) is not Rows and "add" in name:
        at = index if type(index) is Rows else src
        place = at._axis - at.dim() if at.dim() > 1 else dim - own.dim()  # type: ignore[union-attr]
        if type(at) is Rows and place == dim - own.dim():
            space = at._space
            index, src = (
                fitting(each, space, (dim if each.dim() > 1 or each is src else 0) - each.dim())
                if isinstance(each, Tensor) and each.dim()
                else plain(each)
                for each in (index, src)
            )
            share = getattr(torch.zeros_like(plain(own)), name.rstrip("_"))(dim, index, src, *more, **kwargs)
            sums = plain(own) + total(share, space.comm, f"{name} of rows")
            return write(own, sums) if in_place else replicated(sums)
    return gathered(func, name, (own, dim, index, src, *more), kwargs)


def _along(func: Any, name: str, own: Any, dim: int, index: Rows, src: Any, more: Any, kwargs: Any) -> Any:
    """Along columns: row k of the table by row k of the numbers, as ``one_hot`` does."""
    space, place = index._space, index._axis - index.dim()
    in_place = name.endswith("_")
    if in_place and type(own) is not Rows:
        table = become(own, space, place)
        if table is None:
            return gathered(func, name, (own, dim, index, src, *more), kwargs)
        own = table
    local = fitting(own, space, place)
    out = func(
        local,
        dim,
        index._local,
        fitting(src, space, place) if isinstance(src, Tensor) and src.dim() else src,
        *more,
        **kwargs,
    )
    return follow(own) if in_place else rows(out, space, index._axis)


def _into_vertices(
    func: Any, name: str, own: Any, dim: int, index: Rows, src: Any, more: Any, kwargs: Any, space: Any
) -> Any:
    """Sums of edges' rows at their targets, which this rank has all of, or at sources, which are folded."""
    edges, in_place = index._space, name.endswith("_")
    given = src
    if isinstance(src, Tensor) and src.dim():
        src = fitting(src, edges, (index._axis if index.dim() > 1 else dim) - src.dim())
    if type(own) is not Rows:
        table = (
            become(own, space, dim - own.dim())
            if in_place
            else rows(fitting(own, space, dim - own.dim()), space, dim)
        )
        if table is None:
            return gathered(func, name, (own, dim, as_ids(index), given, *more), kwargs)
        own = table
    local = own._local
    if index._ends == "target":
        out = func(local, dim, index._local, src, *more, **kwargs)
    else:
        layout = space.comm.layouts[edges.ends.exchange]
        shape = [*local.shape]
        shape[dim] = layout.num_local
        part = getattr(
            src.new_zeros(shape) if isinstance(src, Tensor) else local.new_zeros(shape), name.rstrip("_")
        )(dim, index._local, src, *more, **kwargs)
        summed = space.comm.fold(part.movedim(dim, 0).contiguous(), edges.ends.exchange).movedim(0, dim)
        out = local.add_(summed) if in_place else local + summed
    if in_place:
        own._local = out
        return follow(own)
    return rows(out, space, dim)


def bincount(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """Counts of values, replicated."""
    named = dict(zip(("input", "weights", "minlength"), args, strict=False)) | kwargs
    own, weights = named["input"], named.get("weights")
    if type(own) is not Rows:
        return gathered(func, name, args, kwargs)
    own = as_ids(own) if own._ends else own
    space = own._space
    longest = max(space.exchange(int(own._local.max()) + 1 if own._local.numel() else 0))
    if weights is not None:
        weights = fitting(as_ids(weights) if type(weights) is Rows and weights._ends else weights, space, -1)
    counts = torch.bincount(own._local, weights, max(longest, named.get("minlength", 0)))
    return replicated(total(counts, space.comm, "bincount of rows"))

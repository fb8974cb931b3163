"""Other shapes of rows: the dimension that is the rows' is told by what comes before it."""

from __future__ import annotations

from typing import Any

import torch

from dgcl.rows.gathering import gathered
from dgcl.rows.sums import as_ids, gather
from dgcl.rows.tensor import PAIRS, Rows, replicated, rows


def _sizes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    if name == "flatten":
        named = dict(zip(("start_dim", "end_dim"), args[1:], strict=False)) | kwargs
        shape, number = args[0].shape, args[0].dim()
        start, end = named.get("start_dim", 0) % number, named.get("end_dim", -1) % number
        return [*shape[:start], shape[start : end + 1].numel(), *shape[end + 1 :]]
    if name == "unflatten":
        named = dict(zip(("dim", "sizes"), args[1:], strict=False)) | kwargs
        shape, dim = args[0].shape, named["dim"] % args[0].dim()
        return [*shape[:dim], *named["sizes"], *shape[dim + 1 :]]
    if name in ("view_as", "expand_as", "reshape_as"):
        return list((args[1] if len(args) > 1 else kwargs["other"]).shape)
    if name == "ravel":
        return [-1]
    sizes = args[1:] if len(args) > 1 else (kwargs.get("size", kwargs.get("shape", kwargs.get("repeats"))),)
    return list(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes)


def shaped(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``view``, ``reshape``, ``expand``, ``repeat`` and their kind."""
    if type(args[0]) is not Rows:  # expand_as(rows) of a tensor
        return replicated(getattr(args[0], name.removesuffix("_as"))(first.shape), args)
    own: Rows = args[0]
    if own._ends in PAIRS:
        own = as_ids(own)
        args = own, *args[1:]
    space, axis, local, ends = own._space, own._axis, own._local, own._ends
    size: list[Any] = _sizes(name, args, kwargs)
    if len(size) == 1 and isinstance(size[0], torch.dtype):
        return rows(func(local, *size), space, axis)
    if name in ("repeat", "tile"):
        place = axis + len(size) - own.dim()
        if name == "tile" and place < 0:
            size, place = [1] * -place + size, axis
        if size[place] != 1:
            return gathered(func, name, args, kwargs)
        out = local.repeat(size)
        return rows(out, space, out.dim() - own.dim() + axis, ends)
    if name in ("expand", "expand_as", "broadcast_to"):
        place = axis + len(size) - own.dim()
        if place < 0 or size[place] not in (-1, space.size):
            raise RuntimeError(f"rows of shape {tuple(own.shape)} cannot be expanded to {tuple(size)}")
        size[place] = -1
        out = local.expand([*size])
        return rows(out, space, place, ends)
    shape = own.shape
    if -1 in size:
        known = 1
        for each in size:
            known *= 1 if each == -1 else each
        size[size.index(-1)] = shape.numel() // known if known else 0
    if torch.Size(size).numel() != shape.numel():
        raise RuntimeError(f"shape '{size}' is invalid for input of size {shape.numel()}")
    before, inner = shape[:axis].numel(), shape[axis + 1 :].numel()
    reshape = getattr(local, "view" if name.startswith("view") else "reshape")
    for place in range(len(size)):
        if size[place] == space.size and torch.Size(size[:place]).numel() == before:
            return rows(reshape([*size[:place], local.shape[axis], *size[place + 1 :]]), space, place, ends)
    if axis == 0 and inner and size[0] == space.size * inner and not ends:  # rows and columns become one
        return rows(local.reshape([len(local) * inner, *size[1:]]), space.product(inner), 0)
    return gathered(func, name, args, kwargs)


def unbound(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``unbind``, iteration, ``chunk`` and ``split``; along other dimensions than the rows' without a message."""
    own = args[0]
    place = 2 if name in ("chunk", "split", "tensor_split", "split_with_sizes") else 1
    dim = kwargs.get("dim", args[place] if len(args) > place else 0) % max(own.dim(), 1)
    if dim == own._axis:
        if name == "__iter__":
            return iter(replicated(gather(own).unbind(0)))
        return gathered(func, name, args, kwargs)
    out = own._local.unbind(dim) if name == "__iter__" else func(own._local, *args[1:], **kwargs)
    drops = name in ("__iter__", "unbind")
    ends: list[Any] = [own._ends] * len(out)
    if own._ends in PAIRS and dim == 0:
        if len(out) != 2:
            own = as_ids(own)
            return unbound(func, name, (own, *args[1:]), kwargs, own)
        ends = [*PAIRS[own._ends]]
    axis = own._axis - (drops and dim < own._axis)
    parts = tuple(rows(each, own._space, axis, end) for each, end in zip(out, ends, strict=True))
    return iter(parts) if name == "__iter__" else parts


def moved(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``unsqueeze``, ``squeeze``, ``transpose``, ``permute``: rows and which end of edges they are stay."""
    own = args[0]
    if type(own) is not Rows:
        return gathered(func, name, args, kwargs)
    squeezes = name.startswith("squeeze")
    if squeezes and own._space.size == 1:
        return gathered(func, name, args, kwargs)
    sizes = [min(size, 2) if squeezes else 2 for size in own.shape]
    sizes[own._axis] = 3  # is looked for in the shape of the result
    shape = list(func(torch.empty(sizes, device="meta"), *args[1:], **kwargs).shape)
    if own._ends in PAIRS and (len(shape) != 2 or shape[1] != 3):
        own = as_ids(own)
    return rows(func(own._local, *args[1:], **kwargs), own._space, shape.index(3), own._ends)


def flipped(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``flip``: of both ends of edges source and target change places."""
    own = args[0]
    dims = kwargs.get("dims", args[1] if len(args) == 2 else args[1:])
    dims = {each % own.dim() for each in ([dims] if isinstance(dims, int) else dims)}
    if own._axis in dims:
        return gathered(func, name, (as_ids(own), *args[1:]), kwargs)
    ends = own._ends
    if ends in PAIRS and 0 in dims:
        ends = "swapped" if ends == "both" else "both"
    return rows(own._local.flip([*dims]), own._space, own._axis, ends)

"""Changes of the shape of tensors whose rows are divided over ranks.

The rules of ``view``, ``expand``, ``unbind``, ``squeeze``, ``transpose``, ``flip``, ``one_hot`` and their kind. None
sends a message where the rows' dimension stays whole; all else is computed of all rows (``gathering``). After ``view``
the rows' dimension is known by its size and by the product of the sizes before it, as another one may have the same
size.
Called by `rule_table`. Free to change while shapes, values and gradients are those of one device
(`tests/dgcl/rows/test_sweep.py`).
"""

import math
from typing import Any

import torch

from dgcl.rows.gathering import gathered
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import as_ids, gather
from dgcl.rows.rowwise import tried
from dgcl.rows.tensor import PAIRS, Rows, replicated, rows


def _sizes(call: Call) -> list[Any]:
    """The sizes that a call asks for."""
    name, args = call.name, call.args
    shape = args[0].shape
    if name == "flatten":
        _, start, end = call.bound("input start_dim end_dim", start_dim=0, end_dim=-1)
        start, end = start % len(shape), end % len(shape)
        return [*shape[:start], shape[start : end + 1].numel(), *shape[end + 1 :]]
    if name.endswith("_as"):
        return list(call.bound("input other")[1].shape)
    sizes = args[1:] or (call.kwargs.get("size", call.kwargs.get("shape", call.kwargs.get("repeats"))),)
    return list(sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes)


def shaped(call: Call) -> Any:
    """``view``, ``reshape``, ``expand``, ``repeat`` and their kind."""
    own, name = call.args[0], call.name
    if type(own) is not Rows:  # expand_as(rows) of a tensor
        return replicated(getattr(own, name.removesuffix("_as"))(call.first.shape), call.args)
    if own._ends in PAIRS:
        own = as_ids(own)
    space, axis, local, ends = own._space, own._axis, own._local, own._ends
    size = _sizes(call)
    if isinstance(size[0], torch.dtype):
        if (
            axis == own.dim() - 1 and size[0].itemsize != own.dtype.itemsize
        ):  # it changes how many rows there are
            return gathered(call)
        return rows(local.view(*size), space, axis)
    place = axis + len(size) - own.dim()
    if name == "repeat":
        return rows(local.repeat(size), space, place, ends) if size[place] == 1 else gathered(call)
    if name in ("expand", "expand_as", "broadcast_to"):
        if place < 0 or size[place] not in (-1, space.size):
            raise RuntimeError(f"rows of shape {tuple(own.shape)} cannot be expanded to {tuple(size)}")
        size[place] = -1
        return rows(local.expand(size), space, place, ends)
    if -1 in size:
        known = -math.prod(size)
        size[size.index(-1)] = own.numel() // known if known else 0
    if math.prod(size) != own.numel():
        raise RuntimeError(f"shape '{size}' is invalid for input of size {own.numel()}")
    reshape = local.view if name.startswith("view") else local.reshape
    before, inner = math.prod(own.shape[:axis]), math.prod(own.shape[axis + 1 :])
    for at in range(len(size)):
        if size[at] == space.size and math.prod(size[:at]) == before:
            return rows(reshape([*size[:at], local.shape[axis], *size[at + 1 :]]), space, at, ends)
    if axis == 0 and inner and size[:1] == [space.size * inner] and not ends:  # rows and columns become one
        return rows(local.reshape([len(local) * inner, *size[1:]]), space.product(inner))
    return gathered(Call(torch.Tensor.reshape, name, (own, size), {}, call.first))  # a view of a copy


def unbound(call: Call) -> Any:
    """``unbind``, iteration, ``chunk`` and ``split``; along other dimensions than the rows' without a message."""
    own, name = call.args[0], call.name
    names = "input dim" if name in ("unbind", "__iter__") else "input size dim"
    dim = (call.bound(names)[-1] or 0) % own.dim()
    if dim == own._axis:
        return iter(replicated(gather(own).unbind(0))) if name == "__iter__" else gathered(call)
    out = (
        own._local.unbind(dim) if name == "__iter__" else call.func(own._local, *call.args[1:], **call.kwargs)
    )
    ends: Any = [own._ends] * len(out)
    if own._ends in PAIRS and dim == 0:
        if len(out) != 2:
            return unbound(call.of(as_ids(own)))
        ends = PAIRS[own._ends]
    axis = own._axis - (names == "input dim" and dim < own._axis)
    parts = tuple(rows(each, own._space, axis, end) for each, end in zip(out, ends, strict=True))
    return iter(parts) if name == "__iter__" else parts


def moved(call: Call) -> Any:
    """``unsqueeze``, ``squeeze``, ``transpose``: rows and which end of edges they are stay."""
    own = call.args[0]
    squeezes = call.name == "squeeze"
    if squeezes and own._space.size == 1:
        return gathered(call)
    if not squeezes and (not own._ends or own._ends in PAIRS):
        matches = tried(call.of(as_ids(own)))
        return gathered(call) if matches is NotImplemented else matches
    sizes = [min(size, 2) if squeezes else 2 for size in own.shape]
    sizes[own._axis] = 3  # is looked for in the shape of the result
    shape = call.func(torch.empty(sizes, device="meta"), *call.args[1:], **call.kwargs).shape
    local = call.func(own._local, *call.args[1:], **call.kwargs)
    return rows(local, own._space, list(shape).index(3), own._ends)


def flipped(call: Call) -> Any:
    """``flip``: of both ends of edges source and target change places."""
    own, dims = call.args[0], call.kwargs.get("dims", call.args[1] if len(call.args) == 2 else call.args[1:])
    dims = {each % own.dim() for each in ([dims] if isinstance(dims, int) else dims)}
    if own._axis in dims:
        return gathered(call)
    ends = {"both": "swapped", "swapped": "both"}.get(own._ends, own._ends) if 0 in dims else own._ends
    return rows(own._local.flip([*dims]), own._space, own._axis, ends)


def one_hot(call: Call) -> Any:
    """``one_hot`` of so many classes; without their number all rows decide on it."""
    numbers, (_, num_classes) = call.first, call.bound("tensor num_classes", num_classes=-1)
    if num_classes < 0:
        return gathered(call)
    return rows(call.func(numbers._local, num_classes), numbers._space, numbers._axis)

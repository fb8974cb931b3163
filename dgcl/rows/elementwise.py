"""Functions of each element by itself, of rows and of what is broadcast to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgcl.rows.gathering import gathered, writes
from dgcl.rows.sums import as_ids, fitting
from dgcl.rows.tensor import Rows, follow, mapped, plain, rows


def elementwise(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """Such a function, on this rank's rows; of rows of another space, those are brought."""
    local, space = first._local, first._space
    place = first._axis - first.dim()
    own = args[0] if args else None
    if not kwargs and len(args) == 1 and own is first:
        out = func(local)
    elif not kwargs and len(args) == 2:  # most of all calls
        other = args[1] if own is first else own
        if type(other) is Rows and other._space is space and other._axis - other.dim() == place:
            other = other._local
        elif isinstance(other, Tensor) and other.dim():
            other = fitting(other, space, place)
        elif type(other) is list or type(other) is tuple:
            return gathered(func, name, args, kwargs)
        if own is first:
            out = func(local, other)
        elif writes(name):
            table = become(own, space, place)
            if table is None:
                return gathered(func, name, args, kwargs)
            out, own = func(table._local, local), table
        else:
            out = func(other, local)
    else:
        if writes(name) and type(own) is not Rows:
            own = become(own, space, place)
            if own is None:
                return gathered(func, name, args, kwargs)
            args = own, *args[1:]
        fit = _Fit(space, place)
        out = func(*mapped(fit, args), **mapped(fit, kwargs))
    if out is None:
        return None
    if type(own) is Rows and out is own._local:  # it was changed in place, or needed no change
        return follow(own) if writes(name) else own
    if first._ends and out.is_floating_point():  # numbers of ends do not become values
        return elementwise(func, name, *mapped(_values, (args, kwargs)), as_ids(first))  # type: ignore[misc]
    return rows(out, space, out.dim() + place, first._ends)


class _Fit:
    def __init__(self, space: Any, place: int) -> None:
        self.space, self.place = space, place

    def __call__(self, value: Tensor) -> Any:
        return fitting(value, self.space, self.place) if value.dim() else plain(value)


def _values(value: Tensor) -> Tensor:
    return as_ids(value) if type(value) is Rows and value._ends else value


def become(table: Any, space: Any, place: int) -> Rows | None:
    """A tensor of all rows becomes this rank's, the same object: rows are written into it in place.

    None where others may see its memory, it has a gradient, or other sizes.
    """
    if (
        not isinstance(table, Tensor)
        or table.requires_grad
        or table._base is not None
        or isinstance(table, torch.nn.Parameter)
        or torch._C._storage_Use_Count(table.untyped_storage()._cdata) > 2  # type: ignore[attr-defined]
        or table.dim() < -place
        or table.shape[place] != space.size
    ):
        return None
    own = fitting(table, space, place)
    if own.numel() and own.data_ptr() == table.data_ptr():
        own = own.clone()
    try:
        torch.utils.swap_tensors(table, rows(own, space, own.dim() + place))
    except RuntimeError:  # a graph or a weak reference holds it
        return None
    return table  # type: ignore[no-any-return]

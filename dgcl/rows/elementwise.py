"""Runs element by element functions of torch (relu, add, ...) on tensors whose rows are divided over ranks.

Each rank computes its own rows; nothing is exchanged, unless an argument has its rows on other ranks: these are
brought. A whole tensor that rows are written into in place becomes this rank's rows (:func:`become`), where nobody else
sees its memory.
Called by `rule_table`, `indexing`, `reductions` and `scatter`. Free to change while every call of torch gives what it
gives on one device, or is refused (`tests/dgcl/rows/test_sweep.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgcl.ranks.torch_private import has_one_owner
from dgcl.rows.gathering import gathered
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import fitting
from dgcl.rows.space import Space
from dgcl.rows.tensor import Rows, follow, rows


def elementwise(call: Call) -> Any:
    """Such a function, on this rank's rows; of rows of another space, those are brought."""
    first, args, kwargs = call.first, call.args, call.kwargs
    space, place = first._space, first._axis - first.dim()
    own = args[0] if args else None
    if call.writes and type(own) is not Rows and become(own, space, place) is None:
        return gathered(call)

    def fit(value: Any) -> Any:
        return fitting(value, space, place)

    if len(args) == 1 and own is first and not kwargs:
        out = call.func(first._local)
    elif kwargs or len(args) > 2:
        out = call.mapped(fit)
    else:
        out = call.func(*map(fit, args))
    if type(own) is Rows and out is own._local:  # it was changed in place, or needed no change
        return follow(own) if call.writes else own
    if isinstance(out, tuple):  # where(condition): at which places
        return gathered(call)
    return None if out is None else rows(out, space, out.dim() + place, first._ends)


def become(table: Any, space: Space, place: int) -> Rows | None:
    """A tensor of all rows becomes this rank's, the same object: rows are written into it in place.

    None where others may see its memory, it has a gradient, or other sizes.
    """
    if (
        not isinstance(table, Tensor)
        or table.requires_grad
        or isinstance(table, torch.nn.Parameter)
        or not has_one_owner(table)
        or not table.untyped_storage().resizable()  # NumPy's
        or hasattr(table, "dgcl_whole")  # a buffer, which checkpoints have whole
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
    return table  # type: ignore[return-value]

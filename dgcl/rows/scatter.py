"""``index_add``, ``scatter`` and ``bincount`` of tensors whose rows are divided over ranks.

They add rows into vertices by ends of edges, or into tables by labels. At targets a rank has all edges of its vertices
and sends nothing; at sources sums are folded to owners. A table that all ranks have gets the sum of their shares. Other
forms are computed of all rows (``gathering``).
Called by `rule_table`. Free to change while ``index_add``, ``scatter`` and ``bincount`` give the values and gradients
of one device (`tests/dgcl/rows/test_sweep.py`), whichever row of ``edge_index`` has the targets
(`tests/dgcl/rows/test_edge_names.py`).
"""

from typing import Any

import torch
from torch import Tensor

from dgcl.rows.elementwise import become
from dgcl.rows.gathering import gathered
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import as_ids, fitting, total, write
from dgcl.rows.space import Space
from dgcl.rows.tensor import Rows, follow, plain, replicated, rows

_NAMES = {"input": "self", "source": "src", "value": "src"}


def scatter(call: Call) -> Any:
    """``scatter_add``, ``index_add``, ``scatter_reduce``, ``scatter`` and what changes its table in place."""
    kwargs = {_NAMES.get(key, key): each for key, each in call.kwargs.items()}
    own, dim, index, src = Call(None, "", call.args[:4], kwargs, call.first).bound("self dim index src")
    call.args = own, dim, index, src, *call.args[4:]
    call.kwargs = {key: each for key, each in kwargs.items() if key in ("reduce", "include_self", "alpha")}
    if not isinstance(dim, int) or not isinstance(index, Tensor):
        return gathered(call)
    dim %= max(own.dim(), 1)
    adds = "add" in call.name
    if type(index) is Rows and index._ends:
        numbers = index._space.ends
        space = numbers.spaces.get(index._ends) if numbers and numbers.exchange else None
        if (
            space is not None
            and own.shape[dim] == space.size
            and (type(own) is not Rows or (own._axis == dim and own._space is space and not own._ends))
            and (index._ends == "target" or adds)
        ):
            return _into_vertices(call, own, dim, index, src, space)
        index = as_ids(index)
    if type(index) is Rows and index._axis != dim and index.dim() == own.dim() == 2:
        return _along(call, own, dim, index, src)
    at = index if type(index) is Rows else src
    if type(own) is not Rows and adds and type(at) is Rows:
        place = at._axis - at.dim() if at.dim() > 1 else dim - own.dim()
        if place == dim - own.dim():
            number, values = (
                fitting(each, at._space, (dim if each.dim() > 1 or each is src else 0) - each.dim())
                if isinstance(each, Tensor) and each.dim()
                else plain(each)
                for each in (index, src)
            )
            function = getattr(Tensor, call.name.rstrip("_"))
            share = function(torch.zeros_like(plain(own)), dim, number, values, *call.args[4:], **call.kwargs)
            sums = plain(own) + total(share, at._space.comm, f"{call.name} of rows")
            return write(own, sums) if call.writes else replicated(sums)
    return gathered(call)


def _along(call: Call, own: Any, dim: int, index: Rows, src: Any) -> Any:
    """Along columns: row k of the table by row k of the numbers, as ``one_hot`` does."""
    space, place = index._space, index._axis - index.dim()
    if call.writes and type(own) is not Rows and become(own, space, place) is None:
        return gathered(call)
    own_rows, values = fitting(own, space, place), fitting(src, space, place)
    out = call.func(own_rows, dim, index._local, values, *call.args[4:], **call.kwargs)
    return follow(own) if call.writes else rows(out, space, index._axis)


def _into_vertices(call: Call, own: Any, dim: int, index: Rows, src: Any, space: Space) -> Any:
    """Sums of edges' rows at their targets, which this rank has all of, or at sources, which are folded."""
    options, place = call.args[4:], dim - own.dim()
    if call.writes and type(own) is not Rows and become(own, space, place) is None:
        return gathered(call)
    if isinstance(src, Tensor) and src.dim():
        src = fitting(src, index._space, (index._axis if index.dim() > 1 else dim) - src.dim())
    local = fitting(own, space, place)
    if index._ends == "target":
        out = call.func(local, dim, index._local, src, *options, **call.kwargs)
    else:
        exchange: Any = index._space.ends.exchange  # type: ignore[union-attr]
        shape = [*local.shape]
        shape[dim] = space.comm.layouts[exchange].num_local
        part = getattr(local.new_zeros(shape), call.name.rstrip("_"))(
            dim, index._local, src, *options, **call.kwargs
        )
        summed = space.comm.fold(part.movedim(dim, 0), exchange).movedim(0, dim)
        out = local.add_(summed) if call.writes else local + summed
    return follow(own) if call.writes else rows(out, space, dim)


def bincount(call: Call) -> Any:
    """Counts of values, replicated."""
    own, weights, least = call.bound("input weights minlength", minlength=0)
    if type(own) is not Rows:
        return gathered(call)
    own = as_ids(own)
    space = own._space
    longest = max(space.exchange(int(own._local.max()) + 1 if own._local.numel() else 0))
    weights = None if weights is None else fitting(as_ids(weights), space, -1)
    return replicated(
        total(torch.bincount(own._local, weights, max(longest, least)), space.comm, "bincount of rows")
    )

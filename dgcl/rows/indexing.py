"""Indexing of tensors whose rows are divided over ranks, by masks, numbers or ends of edges.

The rules of ``x[index]``, ``x[index] = y``, ``index_select``, ``gather``, ``embedding`` and ``nonzero``. A mask, or
numbers that all ranks know, leave rows where they are, in a new ``space``. Rows at the sources of edges come by the
communicator's planned exchange; rows by numbers that differ between ranks are fetched from their owners. Other indices
are computed of all rows (``gathering``). Results are in the order of one device.
Called by `rule_table`. Free to change while each way of indexing gives what it gives on one device
(`tests/dgcl/rows/test_sweep.py`), and scripts that select and write rows print its numbers
(`tests/dgcl/rows/test_programs.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dgcl.rows.elementwise import become
from dgcl.rows.gathering import gathered
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import as_ids, fitting
from dgcl.rows.rowwise import tried
from dgcl.rows.space import Space
from dgcl.rows.tensor import PAIRS, Rows, follow, plain, replicated, rows

_ALL = slice(None)
_getitem = Tensor.__getitem__


def _spelled(index: Any, number: int) -> list[Any]:
    """An index without an ellipsis, entry by entry."""
    entries = list(index) if type(index) is tuple else [index]
    places = [at for at, each in enumerate(entries) if each is ...]
    if places:
        used = sum(
            each.dim() if isinstance(each, Tensor) and each.dtype == torch.bool else 1
            for each in entries
            if each is not None and each is not ...
        )
        entries[places[0] : places[0] + 1] = [_ALL] * (number - used)
    return entries


def _place(entries: list[Any], axis: int) -> tuple[int | None, int]:
    """Which entry is for the rows' dimension, and the dimension of the result that this is."""
    at, new = 0, 0
    for place, each in enumerate(entries):
        if each is None:
            new += 1
            continue
        at += each.dim() - 1 if isinstance(each, Tensor) and each.dtype == torch.bool else 0
        if at >= axis:
            return place, new
        new += isinstance(each, slice)
        at += 1
    return None, new + axis - at


def getitem(call: Call) -> Any:
    """``x[index]``."""
    own, index = call.args
    if type(own) is not Rows:
        return _of_all_rows(call, own, index)
    local, space, axis, ends = own._local, own._space, own._axis, own._ends
    entries = _spelled(index, own.dim())
    place, new = _place(entries, axis)
    at = _ALL if place is None else entries[place]
    others = [each for other, each in enumerate(entries) if other != place]
    if isinstance(at, slice) and at == _ALL:
        if ends in PAIRS:
            if type(entries[0]) is int:
                ends = PAIRS[ends][entries[0]]
            elif type(index) is list and index == [1, 0]:
                return rows(local[index], space, axis, "swapped" if ends == "both" else "both")
            elif not isinstance(entries[0], slice) or entries[0] != _ALL:
                return getitem(call.of(as_ids(own)))
        if not any(isinstance(each, (Tensor, list)) for each in others):
            return rows(local[tuple(entries)], space, new, ends)
        matches = NotImplemented if ends else tried(call)
        return gathered(call) if matches is NotImplemented else matches
    simple = not any(isinstance(each, (Tensor, list)) or (type(each) is int and place) for each in others)

    def pick(rows_there: Tensor, which: Any) -> Tensor:
        entries[place or 0] = which
        return rows_there[tuple(entries)]

    if simple and isinstance(at, Tensor) and at.dtype == torch.bool and at.shape == (space.size,):
        mask = fitting(at, space, -1)
        return rows(pick(local, mask), space.subset(mask, at if type(at) is Rows else mask), new, ends)
    if simple and type(at) is Rows and at.dtype != torch.bool:
        return take(own, at, axis, pick, new)
    if simple and type(at) is int and not ends:
        if not -space.size <= at < space.size:
            raise IndexError(f"index {at} is out of bounds for dimension {axis} with size {space.size}")
        row = replicated(space.fetch(local.movedim(axis, 0), torch.tensor([at]))[0][tuple(others)])
        row.dgcl_copied = True  # on one device a view
        return row
    numbers = _numbers(at, space) if simple else None
    if numbers is None or numbers.dim() != 1:
        return gathered(call)
    places, part = space.taken(numbers)
    out = rows(pick(local, places.to(local.device)), part, new, ends)
    if isinstance(at, slice):
        out.dgcl_copied = True  # type: ignore[attr-defined]
    return out


def _numbers(at: Any, space: Space) -> Tensor | None:
    """Numbers of rows that an index means; None for what is none."""
    if isinstance(at, slice):
        return torch.arange(*at.indices(space.size), device="cpu")
    if isinstance(at, (list, range)) or type(at).__module__ == "numpy":
        at = torch.as_tensor(at)
        at = at.nonzero().flatten() if at.dtype == torch.bool else at
    is_numbers = isinstance(at, Tensor) and not at.is_floating_point() and at.dtype != torch.bool
    return plain(at) if is_numbers and type(at) is not Rows else None


def take(own: Rows, at: Rows, axis: int, pick: Callable[[Tensor, Any], Tensor], new: int) -> Rows:
    """Rows by ends of edges, which the exchange brings, or by numbers in rows, which are fetched. Collective."""
    own = as_ids(own)
    local, space, end, numbers = own._local.movedim(axis, 0), own._space, at._ends, at._space.ends
    if end in PAIRS:
        halves = (rows(at._local[each], at._space, 0, PAIRS[end][each]) for each in (0, 1))
        return rows(
            torch.stack([take(own, each, axis, pick, new)._local for each in halves], new), at._space, new + 1
        )
    if end is not None and numbers is not None and numbers.exchange and numbers.spaces[end] is space:
        which = at._local
        if end == "source":
            local = space.comm.expand(local, numbers.exchange)
    else:
        ids = as_ids(at)._local
        local = space.fetch(local, ids.reshape(-1).long())
        which = torch.arange(ids.numel(), device=local.device).view(ids.shape)
    return rows(pick(local.movedim(0, axis), which), at._space, new + at._axis)


def _of_all_rows(call: Call, own: Any, index: Any) -> Any:
    """A tensor of one device, by rows: ``table[z]`` by values, ``table[mask]`` by a mask of its rows."""
    entries = _spelled(index, own.dim())
    place = next(at for at, each in enumerate(entries) if type(each) is Rows)
    at = entries[place]
    if any(isinstance(each, (Tensor, list)) for other, each in enumerate(entries) if other != place):
        return gathered(call)
    if at.dtype == torch.bool:
        if place or at.dim() != 1 or len(own) != at._space.size:
            return gathered(call)
        return getitem(call.of(rows(fitting(own, at._space, -own.dim()), at._space)))
    ids = as_ids(at)
    entries[place] = ids._local
    before = sum(isinstance(each, slice) or each is None for each in entries[:place])
    return rows(plain(own)[tuple(entries)], at._space, before + at._axis)


def select(call: Call) -> Any:
    """``index_select``, ``gather`` and ``take_along_dim`` along a dimension."""
    if call.name == "take_along_dim":
        own, index, dim = call.bound("input indices dim")
    else:
        own, dim, index = call.bound("input dim index")
    if not isinstance(own, Tensor) or not isinstance(index, Tensor) or dim is None:
        return gathered(call)
    dim %= max(own.dim(), 1)
    if call.name == "index_select" and index.dim() == 1:
        return getitem(Call(_getitem, "__getitem__", (own, (*[_ALL] * dim, index)), {}, call.first))
    others = [at for at in range(own.dim()) if at != dim]
    fits = index.dim() == own.dim() and all(index.shape[at] == own.shape[at] for at in others)
    if type(own) is Rows and dim != own._axis and not own._ends and fits:
        place = own._axis - own.dim()
        index = fitting(as_ids(index), own._space, place)
        return rows(torch.take_along_dim(own._local, index, dim), own._space, own._axis)
    return gathered(call)


def embedding(call: Call) -> Any:
    """``F.embedding(numbers, table)``."""
    numbers, table = call.bound("weight input" if call.func is torch.embedding else "input weight")[:2]
    if call.func is torch.embedding:
        numbers, table = table, numbers
    if type(table) is Rows:
        return getitem(Call(_getitem, "__getitem__", (table, numbers), {}, call.first))
    ids = as_ids(numbers)
    _, _, _, max_norm, _, by_freq, sparse = call.bound(
        "input weight padding_idx max_norm norm_type by_freq sparse"
    )
    if max_norm is not None or by_freq or call.kwargs.get("scale_grad_by_freq") or sparse:
        return gathered(call)
    rest = {key: each for key, each in call.kwargs.items() if key not in ("input", "weight")}
    return rows(call.func(ids._local, plain(table), *call.args[2:], **rest), ids._space, ids._axis)


def setitem(call: Call) -> Any:
    """``x[mask] = values``, ``x[:, 0] = values``; also into a tensor of all rows, which becomes rows."""
    own, index, value = call.args
    entries = _spelled(index, own.dim())
    head = entries[0]
    is_mask = isinstance(head, Tensor) and head.dtype == torch.bool
    if type(own) is not Rows:
        space = head._space if is_mask and type(head) is Rows else getattr(value, "_space", None)
        whole = head == _ALL if isinstance(head, slice) else is_mask and head.dim() == 1
        if not whole or space is None or become(own, space, -own.dim()) is None:
            return gathered(call)
    space, rest = own._space, tuple(map(plain, entries[1:]))
    if own._axis or any(type(each) is Rows for each in rest):
        before, after = entries[: own._axis], entries[own._axis :]
        if after[:1] not in ([], [_ALL]) or not all(isinstance(each, (int, slice)) for each in entries):
            return gathered(call)
        kept = own._local[tuple(entries)].dim() - sum(isinstance(each, slice) for each in before)
        call.func(own._local, tuple(entries), fitting(value, space, -kept))
        return follow(own)
    if any(isinstance(each, (Tensor, list)) for each in rest):
        return gathered(call)
    kept = own._local[(slice(0, 0), *rest)].dim()
    if is_mask and head.dim() == 1:
        which = fitting(head, space, -1)
        part = space.subset(which, head if type(head) is Rows else which)
    elif is_mask and not rest and (not isinstance(value, Tensor) or value.dim() == 0):
        which, part = fitting(head, space, -head.dim()), space
    elif isinstance(head, slice) and head == _ALL:
        which, part = _ALL, space
    else:
        numbers = _numbers(head, space)
        if numbers is None or numbers.dim() != 1:
            return gathered(call)
        which, part = space.taken(numbers)
    call.func(own._local, (which, *rest), fitting(value, part, -kept))
    return follow(own)


def nonzero(call: Call) -> Any:
    """Numbers in the order of one device."""
    own = call.args[0]
    if own.dim() != 1:
        return gathered(call)
    here = own._local != 0
    numbers = own._space.positions[here.cpu()].to(own.device)
    space = own._space.subset(here, own)
    return (rows(numbers, space),) if call.kwargs.get("as_tuple") else rows(numbers[:, None], space)

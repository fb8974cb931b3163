"""Rows that are taken by masks, by numbers, or by ends of edges, and rows that are written by masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dgcl.rows.elementwise import become
from dgcl.rows.gathering import gathered
from dgcl.rows.space import Space
from dgcl.rows.sums import as_ids, fitting
from dgcl.rows.tensor import PAIRS, Rows, follow, plain, replicated, rows

_ALL = slice(None)


def _spelled(index: Any, number: int) -> list[Any]:
    """An index of as many entries as there are dimensions, without an ellipsis."""
    if type(index) is tuple:
        entries = list(index)
    elif type(index) is list and any(isinstance(each, (slice, type(None), type(...))) for each in index):
        entries = list(index)
    else:
        entries = [index]
    places = [at for at, each in enumerate(entries) if each is ...]
    used = sum(
        (each.dim() if isinstance(each, Tensor) and each.dtype == torch.bool else 1)
        for each in entries
        if each is not None and each is not ...
    )
    if places:
        entries[places[0] : places[0] + 1] = [_ALL] * (number - used)
    return entries


def _place(entries: list[Any], axis: int) -> tuple[int | None, int]:
    """Which entry is for the rows' dimension, and the dimension of the result that this is."""
    at, new = 0, 0
    for place, each in enumerate(entries):
        if each is None:
            new += 1
            continue
        if at == axis:
            return place, new
        if isinstance(each, Tensor) and each.dtype == torch.bool:
            at += each.dim() - 1
            if at >= axis:
                return place, new
        new += isinstance(each, slice)
        at += 1
    return None, new + axis - at


def getitem(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``x[index]``."""
    own, index = args
    if type(own) is not Rows:
        return _of_all_rows(func, name, own, index)
    local, space, axis, ends = own._local, own._space, own._axis, own._ends
    if (
        type(index) is Rows
        and index.dtype == torch.bool
        and index._space is space
        and axis == 0 == index._axis
    ):
        if index.dim() == 1:  # x[mask]
            return rows(local[index._local], space.subset(index._local, index), 0, ends)
    entries = _spelled(index, own.dim())
    place, new = _place(entries, axis)
    if place is None or (isinstance(entries[place], slice) and entries[place] == _ALL):
        if any(isinstance(each, (Tensor, list)) for each in entries):
            return _beside(func, name, own, entries, place, index)
        if ends in PAIRS and type(entries[0]) is int:
            ends = PAIRS[ends][entries[0]]
        elif ends in PAIRS and entries[0] != _ALL:
            ends = None
            own = as_ids(own)
            local = own._local
        return rows(local[tuple(entries)], space, new, ends)
    at = entries[place]
    alone = all(
        each is None or isinstance(each, slice) or (type(each) is int and place == 0)
        for other, each in enumerate(entries)
        if other != place
    )
    if not alone:
        return _with_others(func, name, own, entries, place, index)
    pick = _Pick(entries, place)
    if isinstance(at, Tensor) and at.dtype == torch.bool:
        if at.dim() != 1:
            return _elements(func, name, own, at, index, len(entries))
        mask = fitting(at, space, -1) if at.dim() == 1 and len(at) == space.size else None
        if mask is None:
            return gathered(func, name, (own, index), {})
        holder = at if type(at) is Rows else mask
        return rows(pick(local, mask), space.subset(mask, holder), new, ends)
    if type(at) is Rows:
        return take(own, at, axis, pick, new)
    if type(at) is int:
        number = at if -space.size <= at < space.size else None
        if number is None:
            raise IndexError(f"index {at} is out of bounds for dimension {axis} with size {space.size}")
        if own._ends:
            own = as_ids(own)
        row = space.fetch(own._local.movedim(axis, 0), torch.tensor([number]))[0]
        rest = tuple(each for other, each in enumerate(entries) if other != place)
        return replicated(row[rest] if rest else row)
    numbers = _numbers(at, space)
    if numbers is None or numbers.dim() != 1:
        return gathered(func, name, (as_ids(own), index), {})
    places, part = space.taken(numbers)
    return rows(pick(local, places.to(local.device)), part, new, ends)


class _Pick:
    """An index with another entry for the rows' dimension."""

    def __init__(self, entries: list[Any], place: int) -> None:
        self.entries, self.place = entries, place

    def __call__(self, local: Tensor, at: Any) -> Tensor:
        self.entries[self.place] = at
        return local[tuple(self.entries)]


def _numbers(at: Any, space: Space) -> Tensor | None:
    """Numbers of rows that an index means; None for what is none."""
    if isinstance(at, slice):
        return torch.arange(*at.indices(space.size), device="cpu")
    if isinstance(at, (list, range)) or type(at).__module__ == "numpy":
        at = torch.as_tensor(at)
        if at.dtype == torch.bool:
            return at.nonzero().flatten()
    if isinstance(at, Tensor) and at.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
        return plain(at) if at.dim() else None
    return None


def take(own: Any, at: Rows, axis: int, pick: Callable[[Tensor, Any], Tensor], new: int) -> Any:
    """Rows by ends of edges, which the exchange brings, or by numbers in rows, which are fetched. Collective."""
    space, local = own._space, own._local
    numbers = at._space.ends
    end = at._ends
    if own._ends:
        own = as_ids(own)
        local = own._local
    if end in PAIRS:
        halves = [
            take(own, rows(at._local[place], at._space, 0, each), axis, pick, new)._local
            for place, each in enumerate(PAIRS[end])
        ]
        return rows(torch.stack(halves, new), at._space, new + 1)
    if end is not None and numbers is not None and numbers.exchange and numbers.spaces[end] is space:
        if end == "source":
            moved = local.movedim(axis, 0) if axis else local
            moved = space.comm.expand(moved, numbers.exchange)
            local = moved.movedim(0, axis) if axis else moved
        return rows(pick(local, at._local), at._space, new + at._axis)
    ids = as_ids(at) if end else at
    flat = ids._local.reshape(-1).long()
    moved = space.fetch(local.movedim(axis, 0), flat)
    out = moved.movedim(0, axis) if axis else moved
    here = pick(out, torch.arange(len(flat), device=local.device).view(ids._local.shape))
    return rows(here, at._space, new + at._axis)


def _of_all_rows(func: Any, name: str, own: Any, index: Any) -> Any:
    """A tensor of one device, by rows: ``table[z]`` by values, ``table[mask]`` by a mask of its rows."""
    entries = _spelled(index, own.dim())
    found = [(at, each) for at, each in enumerate(entries) if type(each) is Rows]
    place, at = found[0]
    if at.dtype == torch.bool:
        if place == 0 and len(found) == 1 and at.dim() == 1 and len(own) == at._space.size:
            shared = rows(fitting(own, at._space, -own.dim()), at._space, 0)
            return getitem(func, name, (shared, index), {}, shared)
        return gathered(func, name, (own, index), {})
    if any(isinstance(each, (Tensor, list)) for other, each in enumerate(entries) if other != place):
        return gathered(func, name, (own, index), {})
    ids = as_ids(at) if at._ends else at
    entries[place] = ids._local
    before = sum(isinstance(each, slice) or each is None for each in entries[:place])
    return rows(plain(own)[tuple(entries)], at._space, before + at._axis)


def _beside(func: Any, name: str, own: Rows, entries: list[Any], place: int | None, index: Any) -> Any:
    """Columns by numbers: ``x[:, [0, 2]]``, ``edge_index[[1, 0]]``."""
    if own._axis == 1 and place in (1, None) and own._ends in PAIRS and len(entries) >= 1:
        order = [int(each) for each in torch.as_tensor(entries[0]).flatten()]
        if sorted(each % 2 for each in order) == [0, 1] and len(order) == 2:
            pair = own._ends if order[0] % 2 == 0 else {"both": "swapped", "swapped": "both"}[own._ends or ""]
            return rows(own._local[[each % 2 for each in order]], own._space, 1, pair)
    others = [each for each in entries if isinstance(each, (Tensor, list))]
    if len(others) != 1 or any(type(each) is Rows for each in others) or own._ends:
        return gathered(func, name, (as_ids(own) if own._ends else own, index), {})
    column = torch.as_tensor(others[0])
    if column.dim() != 1:
        return gathered(func, name, (own, index), {})
    before = entries[: own._axis] if place is None else entries[:place]
    axis = sum(each is None or isinstance(each, (slice, list, Tensor)) for each in before)
    return rows(own._local[tuple(map(plain, entries))], own._space, axis)


def _with_others(func: Any, name: str, own: Rows, entries: list[Any], place: int, index: Any) -> Any:
    """``x[arange, y]``: a number of a row beside a number of a column, for each row of another space."""
    tensors = [at for at, each in enumerate(entries) if isinstance(each, Tensor)]
    at = entries[place]
    simple = (
        own._axis == 0 == place
        and own._ends is None
        and tensors == [*range(len(tensors))]
        and all(entries[each].dim() == 1 and entries[each].dtype != torch.bool for each in tensors)
        and isinstance(at, Tensor)
        and all(each == _ALL for each in entries[len(tensors) :])
    )
    if not simple:
        return gathered(func, name, (as_ids(own) if own._ends else own, index), {})
    if type(at) is Rows:
        taken = take(own, at, 0, _Pick([None], 0), 0)
    else:
        places, part = own._space.taken(plain(at))
        taken = rows(own._local[places], part, 0)
    space = taken._space
    others = [
        fitting(as_ids(each) if type(each) is Rows and each._ends else each, space, -1)
        for each in entries[1 : len(tensors)]
    ]
    here = torch.arange(len(taken._local), device=own.device)
    return rows(taken._local[(here, *others)], space, 0)


def _elements(func: Any, name: str, own: Rows, mask: Tensor, index: Any, number: int) -> Any:
    """``x[x > 0]``: elements in the order of one device."""
    if own._axis or number > 1 or mask.shape != own.shape[: mask.dim()]:
        return gathered(func, name, (own, index), {})
    here = fitting(mask, own._space, -mask.dim())
    inner = own.shape[1 : mask.dim()].numel()
    columns = torch.arange(inner, device="cpu").view(1, *own.shape[1 : mask.dim()])
    keys = own._space.keys.view(-1, *[1] * (mask.dim() - 1)) * inner + columns
    space = Space(own._space.comm, ("some", ("product", own._space.root, inner)), keys[here.cpu()])
    return rows(own._local[here], space, 0)


def select(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``index_select``, ``gather`` and ``take_along_dim`` along a dimension."""
    named = dict(zip(("input", "dim", "index"), args, strict=False)) | kwargs
    own, dim, index = (named.get(each) for each in ("input", "dim", "index"))
    if index is None:  # take_along_dim(input, indices, dim)
        named = dict(zip(("input", "indices", "dim"), args, strict=False)) | kwargs
        own, dim, index = (named.get(each) for each in ("input", "dim", "indices"))
    if isinstance(dim, Tensor):
        dim, index = index, dim
    if dim is None or not isinstance(own, Tensor) or not isinstance(index, Tensor):
        return gathered(func, name, args, kwargs)
    dim %= max(own.dim(), 1)
    if name == "index_select" and index.dim() == 1:
        entries = (*[_ALL] * dim, index)
        return getitem(Tensor.__getitem__, "__getitem__", (own, entries), {}, first)
    ids = as_ids(index) if type(index) is Rows and index._ends else index
    if type(own) is Rows and dim != own._axis and not own._ends:
        return rows(
            func(own._local, dim, fitting(ids, own._space, own._axis - own.dim()))
            if name != "take_along_dim"
            else func(own._local, fitting(ids, own._space, own._axis - own.dim()), dim),
            own._space,
            own._axis,
        )
    return gathered(
        func,
        name,
        (
            as_ids(own) if type(own) is Rows and own._ends else own,
            *[ids if each is index else each for each in args[1:]],
        ),
        {key: ids if each is index else each for key, each in kwargs.items()},
    )


def embedding(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``F.embedding(numbers, table)``."""
    if func is torch.embedding:  # (table, numbers)
        return getitem(Tensor.__getitem__, "__getitem__", args[:2], {}, first)
    numbers = args[0] if args else kwargs.pop("input")
    table = args[1] if len(args) > 1 else kwargs["weight"]
    if type(table) is Rows:
        return getitem(Tensor.__getitem__, "__getitem__", (table, numbers), {}, table)
    ids = as_ids(numbers) if numbers._ends else numbers
    return rows(
        func(ids._local, plain(table), *args[2:], **{k: v for k, v in kwargs.items() if k != "weight"}),
        ids._space,
        ids._axis,
    )


def setitem(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``x[mask] = values``, ``x[:, 0] = values``; also into a tensor of all rows, which becomes rows."""
    own, index, value = args
    entries = _spelled(index, own.dim())
    head = entries[0]
    if type(own) is not Rows:
        if type(head) is Rows and head.dtype == torch.bool and head.dim() == 1:
            if become(own, head._space, -own.dim()) is None:
                return gathered(func, name, args, kwargs)
        elif type(value) is Rows and head == _ALL and all(isinstance(each, (slice, int)) for each in entries):
            kept = sum(isinstance(each, slice) for each in entries) + own.dim() - len(entries)
            if value._axis != value.dim() - kept or become(own, value._space, -own.dim()) is None:
                return gathered(func, name, args, kwargs)
        else:
            return gathered(func, name, args, kwargs)
    space, rest = own._space, tuple(map(plain, entries[1:]))
    is_mask = isinstance(head, Tensor) and head.dtype == torch.bool
    if own._axis or any(type(each) is Rows for each in rest):
        before, after = entries[: own._axis], entries[own._axis :]
        if after[:1] not in ([], [_ALL]) or any(
            not isinstance(each, (int, slice)) for each in (*before, *after)
        ):
            return gathered(func, name, args, kwargs)
        func(
            own._local,
            tuple(entries),
            _given(
                value,
                space,
                own._local[tuple(entries)].dim() - sum(isinstance(each, slice) for each in before),
            ),
        )
        return follow(own)
    trailing = own._local[(slice(0, 0), *rest)].dim() if rest else own.dim()
    if is_mask and head.dim() == 1:
        mask = fitting(head, space, -1)
        part = space.subset(mask, head if type(head) is Rows else mask)
        func(own._local, (mask, *rest), _given(value, part, trailing))
    elif is_mask and not rest and (not isinstance(value, Tensor) or value.dim() == 0):
        func(own._local, fitting(head, space, -head.dim()), plain(value))
    elif isinstance(head, slice) and head == _ALL:
        func(own._local, (_ALL, *rest), _given(value, space, trailing))
    else:
        numbers = None if is_mask or type(head) is Rows else _numbers(head, space)
        if numbers is None or numbers.dim() != 1:
            return gathered(func, name, args, kwargs)
        places, part = space.taken(numbers)
        func(own._local, (places.to(own.device), *rest), _given(value, part, trailing))
    return follow(own)


def _given(value: Any, space: Space, trailing: int) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0:
        return plain(value)
    return fitting(value, space, -trailing)


def where(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``nonzero`` and ``where`` with one argument: numbers in the order of one device."""
    own = args[0]
    if own.dim() != 1:
        return gathered(func, name, args, kwargs)
    here = own._local != 0
    space = own._space.subset(here, own)
    numbers = rows(own._space.positions[here.cpu()].to(own.device), space, 0)
    if name == "where" or kwargs.get("as_tuple"):
        return (numbers,)
    return rows(numbers._local[:, None], space, 0)

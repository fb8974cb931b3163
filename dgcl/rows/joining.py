"""Tensors joined: beside each other as rows, behind each other as rows of a longer space."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgcl.rows.gathering import gathered
from dgcl.rows.space import Space, joined
from dgcl.rows.sums import as_ids, fitting
from dgcl.rows.tensor import PAIRS, Rows, plain, rows

_ENDS = {("source", "target"): "both", ("target", "source"): "swapped"}


def cat(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``cat`` and ``stack``, ``hstack``, ``vstack`` of what are at least matrices."""
    items = args[0] if args else kwargs["tensors"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    stacks, number = name == "stack", first.dim()
    dim %= number + stacks
    axis = first._axis + (stacks and dim <= first._axis)
    ends = tuple(each._ends if type(each) is Rows else None for each in items)
    if dim == axis:
        return _behind(func, name, items, dim, ends)
    kept: Any = ends[0] if len({*ends}) == 1 and not (stacks and ends[0] in PAIRS) else None
    if dim == 0 and ends in _ENDS and (stacks or all(each.dim() == 2 and len(each) == 1 for each in items)):
        kept = _ENDS[ends]
    elif stacks and ends[0] is not None:
        kept = ends[0] if len({*ends}) == 1 and ends[0] not in PAIRS else None
    if kept is None:
        items = [as_ids(each) if type(each) is Rows and each._ends else each for each in items]
    place = first._axis - number
    local = [fitting(each, first._space, place) if each.dim() == number else plain(each) for each in items]
    return rows(func(local, dim=dim), first._space, axis, kept)


def _behind(func: Any, name: str, items: Any, dim: int, ends: tuple[str | None, ...]) -> Any:
    """Rows behind each other. Plain tensors among them are all rows of their own; edges stay with their targets."""
    if name == "stack" or any(type(each) is Rows and each._axis != dim for each in items):
        return gathered(func, name, (items,), {"dim": dim})
    kept = next((each for each in ends if each), None)
    if kept and (kept not in PAIRS or any(each not in (None, kept) for each in ends)):
        kept = None
    first = next(each for each in items if type(each) is Rows and (not kept or each._ends))
    if kept:
        parts = [each if type(each) is Rows and each._ends else _edges(each, first) for each in items]
        if all(part is not None for part in parts):
            return rows(
                torch.cat([part._local for part in parts], dim),
                joined([part._space for part in parts]),
                dim,
                kept,
            )
    values = [as_ids(each) if type(each) is Rows and each._ends else each for each in items]
    spread = [each if type(each) is Rows else _spread(each, first, dim) for each in values]
    if any(each.dim() != first.dim() for each in spread):
        return gathered(func, name, (items,), {"dim": dim})
    return rows(
        torch.cat([each._local for each in spread], dim), joined([each._space for each in spread]), dim
    )


def _spread(value: Tensor, like: Rows, dim: int) -> Rows:
    """All rows that every rank has, shared out in equal pieces; as many as there are edges' loops, as vertices are."""
    comm, number = like._space.comm, value.shape[dim]
    numbers = like._space.ends
    space = numbers.spaces["target"] if numbers and numbers.spaces["target"].size == number else None
    if space is None:
        begin, end = (number * each // comm.world_size for each in (comm.rank, comm.rank + 1))
        space = Space(comm, ("spread", number), torch.arange(begin, end), number)
    return rows(plain(value).index_select(dim, space.positions.to(value.device)), space, dim)


def _edges(value: Any, like: Rows) -> Rows | None:
    """More edges, ``(2, n)`` ids that every rank has: each rank takes those into its vertices. Collective.

    None where a rank would need a vertex that no edge of it reads yet.
    """
    numbers = like._space.ends
    if type(value) is Rows:
        return None
    if numbers is None or numbers.exchange is None or value.dim() != 2:
        return None
    pair = PAIRS[like._ends or ""]
    source, target = (plain(value)[pair.index(end)].cpu() for end in ("source", "target"))
    targets = numbers.spaces["target"]
    mine = torch.isin(target, targets.positions).nonzero().flatten()
    order_t = torch.argsort(numbers.ids["target"], stable=True)
    order_s = torch.argsort(numbers.ids["source"], stable=True)
    t = order_t[torch.searchsorted(numbers.ids["target"][order_t], target[mine])]
    sorted_s = numbers.ids["source"][order_s]
    at = torch.searchsorted(sorted_s, source[mine]).clamp(max=max(len(sorted_s) - 1, 0))
    known = bool(len(mine) == 0 or (len(sorted_s) > 0 and torch.equal(sorted_s[at], source[mine])))
    if not all(like._space.exchange(known)):
        return None
    s = order_s[at] if len(mine) else at
    local = torch.stack([s, t] if pair[0] == "source" else [t, s]).to(like._local)
    # Where loops are added for all vertices, weights that are given for them are of the same space.
    loops = value.shape[1] == targets.size and torch.equal(target, torch.arange(targets.size))
    space = Space(
        like._space.comm,
        targets.root if loops else ("more", value.shape[1]),
        mine,
        value.shape[1],
        numbers,
    )
    return rows(local, space, 1, like._ends)

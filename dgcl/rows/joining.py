"""``cat`` and ``stack`` of tensors whose rows are divided over ranks.

Along another dimension rows stay where they are. Along the rows' dimension the result has a longer ``space``, in the
order of the tensors; plain tensors among them are all rows, and are shared out: edges to the ranks of their targets.
Called by `rule_table`. Free to change while scripts that append edges, or join vertices with edges, print the numbers
of one device (`tests/dgcl/rows/test_programs.py`, "edges" and "joined"), and ends stay the right way round
(`tests/dgcl/rows/test_edge_names.py`).
"""

from typing import Any

import torch
from torch import Tensor

from dgcl.rows.gathering import gathered
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import as_ids, fitting
from dgcl.rows.space import Space, joined
from dgcl.rows.tensor import PAIRS, Rows, plain, rows

_ENDS: dict[Any, str] = {pair: name for name, pair in PAIRS.items()}


def cat(call: Call) -> Any:
    """``cat`` and ``stack``."""
    items, dim = call.bound("tensors dim", dim=call.kwargs.get("axis", 0))
    first, stacks = call.first, call.name == "stack"
    number = first.dim()
    dim %= number + stacks
    axis = first._axis + (stacks and dim <= first._axis)
    ends = tuple(each._ends if type(each) is Rows else None for each in items)
    if dim == axis:
        return _behind(call, items, dim, ends)
    kept = None
    if dim == 0 and ends in _ENDS and (stacks or all(len(each) == 1 for each in items)):
        kept = _ENDS[ends]
    elif len({*ends}) == 1 and ends[0] not in PAIRS:
        kept = ends[0]
    items = items if kept else [as_ids(each) for each in items]
    place = first._axis - number
    local = [fitting(each, first._space, place) if each.dim() == number else plain(each) for each in items]
    return rows(call.func(local, dim=dim), first._space, axis, kept)


def _behind(call: Call, items: Any, dim: int, ends: tuple[str | None, ...]) -> Any:
    """Rows behind each other. Plain tensors among them are all rows of their own; edges stay with their targets."""
    pairs: set[Any] = {each for each in ends if each}
    parts: Any = None
    if len(pairs) == 1 and pairs <= {*PAIRS}:
        like = next(each for each in items if type(each) is Rows and each._ends)
        edges = [each if type(each) is Rows else _edges(each, like) for each in items]
        parts = edges if all(each is not None and each._ends for each in edges) else None
    if parts is None:
        parts = [as_ids(each) if type(each) is Rows else _spread(each, call.first, dim) for each in items]
        pairs = {None}
    if call.name == "stack" or any(each._axis != dim or each.dim() != call.first.dim() for each in parts):
        return gathered(call)
    local = torch.cat([each._local for each in parts], dim)
    return rows(local, joined([each._space for each in parts]), dim, pairs.pop())


def _spread(value: Tensor, like: Rows, dim: int) -> Rows:
    """All rows that every rank has, shared out: with the targets of edges where there are as many, else evenly."""
    comm, number, numbers = like._space.comm, value.shape[dim], like._space.ends
    space = numbers.spaces["target"] if numbers else None
    if space is None or space.size != number:
        begin, end = (number * each // comm.world_size for each in (comm.rank, comm.rank + 1))
        space = Space(comm, ("spread", number), torch.arange(begin, end), number)
    return rows(plain(value).index_select(dim, space.positions.to(value.device)), space, dim)


def _edges(value: Tensor, like: Rows) -> Rows | None:
    """More edges, ``(2, n)`` ids that every rank has: each rank takes those into its vertices. Collective.

    None where a rank would need a vertex that no edge of it reads yet.
    """
    numbers = like._space.ends
    if numbers is None or numbers.exchange is None:
        return None
    pair, targets = PAIRS[like._ends or ""], numbers.spaces["target"]
    ids = {end: plain(value)[pair.index(end)].cpu() for end in pair}
    mine = torch.isin(ids["target"], targets.positions).nonzero().flatten()
    local, known = {}, True
    for end in pair:
        of, order = numbers.ids[end].sort(stable=True)
        requested = ids[end][mine]
        at = torch.searchsorted(of, requested).clamp(max=max(len(of) - 1, 0))
        known = known and (len(mine) == 0 or (len(of) > 0 and torch.equal(of[at], requested)))
        local[end] = order[at] if len(of) else at
    if not all(like._space.exchange(known)):
        return None
    # Loops of all vertices are a space with them, as weights of loops are.
    loops = torch.equal(ids["target"], torch.arange(targets.size))
    root = targets.root if loops else ("more", value.shape[1])
    space = Space(like._space.comm, root, mine, value.shape[1], numbers)
    return rows(torch.stack([local[end] for end in pair]).to(like._local), space, 1, like._ends)

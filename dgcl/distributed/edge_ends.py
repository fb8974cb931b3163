"""Ends of edges in a forward of the user's own: rows that sources index are exchanged, vertices have their own numbers.

A function mode sees each call (:mod:`dgcl.distributed.interception`); what is made of an ``edge_index`` by taking,
joining and reshaping is remembered as its sources or heads, and what computes with numbers of sources is refused.
Compiled code is not seen.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.frameworks.edge_sets import EdgeSet, edge_set_of
from dgcl.nn.guards import see_count
from dgcl.nn.own_rows import ids_of_rows
from dgcl.ranks.context import context

_KEPT_BY = re.compile(
    "T|__getitem__|cat|clone|contiguous|cpu|cuda|data|detach|expand|expand_as|flatten|index_select|int|long"
    "|masked_select|repeat|repeat_interleave|reshape|squeeze|stack|t|to|unbind|unsqueeze|view|view_as"
)
_WRITING = re.compile("__setitem__|bincount|index_(add|copy|fill|put)_?|scatter(_add|_reduce)?_?")
_TAKING = re.compile("__getitem__|embedding|gather|index_select|take_along_dim")
_HARMLESS = re.compile("argsort|new_.*|.*_like")
_READING = re.compile("ge|gt|le|lt|numpy|tolist")
_SHAPE = re.compile(
    "data_ptr|device|dim|dtype|is_.*|__len__|layout|ndim|numel|requires_grad|shape|size|stride"
)
_ENDS = ["sources", "heads"]

#: Of tensors made of edges their set, and "ends", "sources" or "heads".
_roles = WeakTensorKeyDictionary()
#: What arange gave: numbers of rows.
_numbers = WeakTensorKeyDictionary()


@functools.cache
def name_of(func: Any) -> str:
    """The name of a function of torch; "" of what reads no values, which most calls do."""
    name = getattr(func, "__name__", "")
    name = func.__self__.__name__ if name == "__get__" else name
    return "" if _SHAPE.fullmatch(name) else name


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function of torch in a distributed model. Collective where sources index this rank's rows."""
    name = name_of(func)
    if not args and _TAKING.fullmatch(name):
        args = tuple(kwargs.pop(each) for each in ("input", "indices", "dim", "index") if each in kwargs)
    values = [*args, *kwargs.values()]
    integers = [each for each in tensors_in(values) if each.dtype in (torch.int32, torch.int64)]
    if not integers and name not in ("arange", "eye", "linspace"):
        return func(*args, **kwargs)
    place = int(name == "embedding")  # of rows that are taken
    takes = _TAKING.fullmatch(name) and _role(values[place]) is None
    if takes and isinstance(index := values[1 - place], Tensor) and _are_numbers(index, values[place], name):
        ids = ids_of_rows(context.communicator, len(index), len(values[place]))
        return func(*(ids if each is index and ids is not None else each for each in args), **kwargs)
    roles = [role for each in integers if (role := _role(each))]
    if not roles or roles[0][0].comm.message_edges is not None:
        out = func(*args, **kwargs)
        features = isinstance(out, Tensor) and out.is_floating_point() and not takes
        if features and all(map(_numbers.get, integers)):
            see_count(
                out,
                "computes with the numbers of {} rows, which begin anew on each rank: dispatch numbers with the data,"
                " as in data.ids = torch.arange(N), or rows of torch.eye(N)",
            )
        if name == "arange":
            _numbers[out] = True
        return out
    edges, end = next((role for role in roles if role[1] != "heads"), roles[0])
    if name == "max" and len(args) == 1 and not kwargs:  # by which vertices are counted
        return args[0].new_tensor(edges.count(end) - 1)
    writes = _WRITING.fullmatch(name) and (name == "bincount" or _role(args[0]) is None)
    if writes or takes:
        edges.comm.require_neighbourhoods(f"{name} by the {end} of edges")
    if writes and end != "heads":
        raise ValueError(
            f"{name} by the {end} of edges adds up out-edges or orders edges anew, and those of a vertex are on"
            " other ranks: dispatch the graph turned round, too, and add up by its heads; order edges before that"
        )
    ends = [role[1] for role in roles]
    mixed = len({*ends}) > 1
    if takes and not mixed:
        rows = _rows_at(values[place], edges, end, _dim(values))
        return func(*(rows if each is values[place] else each for each in args), **kwargs)
    out = None if takes else func(*args, **kwargs)
    results = out if isinstance(out, tuple) else (out,)
    if _KEPT_BY.fullmatch(name) and (not mixed or (name == "stack" and ends == _ENDS)):
        for at, each in enumerate(results):
            _roles[each] = edges, _end_of_result(name, values, end, at)
    elif takes or _reads_numbers(name, end, len(ends) == len(integers) > 1, results):
        raise ValueError(
            f"{name} of the {end} of edges reads numbers of vertices, which are this rank's, sources [owned | halo]:"
            " index rows by each end alone, or compute it before dgcl.dispatch, as rows of edges"
        )
    return out


def _are_numbers(index: Tensor, rows: Tensor, name: str) -> bool:
    """Whether an index is what arange gave, in the model or, if it is one of a table of all vertices, before."""
    of_all = name == "embedding" and len(rows) == getattr(context.communicator, "num_nodes", 0)
    if of_all and index not in _numbers and _role(index) is None:
        _numbers[index] = index.equal(torch.arange(index.numel()).to(index))
    return _numbers.get(index, False)


def _role(value: Any) -> tuple[EdgeSet, str] | None:
    edges = edge_set_of(value) if isinstance(value, Tensor) else None
    return _roles.get(value) if edges is None else (edges, "ends")


def _end_of_result(name: str, values: list[Any], end: str, place: int) -> str:
    """Which end a result is, of what was made of ``end``; both where it cannot be said."""
    if name == "stack":
        return "ends"
    if end != "ends" or name not in ("__getitem__", "unbind"):
        return end
    index = values[1] if name == "__getitem__" else place
    index = index[0] if isinstance(index, tuple) else index
    return _ENDS[index] if type(index) is int and index < 2 else end


def _reads_numbers(name: str, end: str, of_ends: bool, results: Any) -> bool:
    """Whether what a function gives depends on numbers of vertices, which are a rank's own.

    Args:
        name: The function's.
        end: What it takes.
        of_ends: It takes ends of edges alone, several.
        results: What it gives.
    """
    if name.strip("_") in ("eq", "ne"):  # rows that are owned have one number as sources and as heads
        return not of_ends
    if _READING.fullmatch(name):
        return True
    return (
        end != "heads"
        and not _HARMLESS.fullmatch(name)
        and any(
            isinstance(each, Tensor) and not (each.is_floating_point() and each.layout == torch.strided)
            for each in results
        )
    )


def _dim(values: list[Any]) -> int:
    """The dimension along which a function takes rows."""
    if isinstance(values[1], tuple):  # x[:, sources]
        return [isinstance(each, Tensor) for each in values[1]].index(True)
    return next((each for each in values if type(each) is int), 0)


def _rows_at(rows: Tensor, edges: EdgeSet, end: str, dim: int) -> Tensor:
    """Rows that ends of edges index."""
    length, comm = rows.shape[dim], edges.comm
    if length == comm.num_nodes != edges.num_owned and not comm.node_types:  # a table of all vertices
        return rows.index_select(dim, torch.cat([comm.owned_ids, comm.halo_ids]).to(rows.device))
    if end == "heads" or length == edges.num_sources != edges.num_owned:
        return rows
    if length != edges.num_owned:
        raise ValueError(
            f"rows that sources of edges index must be the {edges.num_owned} of this rank, which are exchanged (got"
            f" {length}): give degree, scatter, ... the size x.size(0)"
        )
    return edges.expand(rows, dim)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, in lists, dicts and data of PyG among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
        elif isinstance(getattr(value, "edge_index", None), Tensor):
            yield value.edge_index

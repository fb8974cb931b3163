"""Ends of edges in a forward of the user's own: rows that sources index are exchanged, vertices have their own numbers.

A function mode sees each call (:mod:`dgcl.distributed.interception`); what is made of an ``edge_index`` by taking,
joining and reshaping is remembered as its sources or heads. Compiled code is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.frameworks.edge_sets import EdgeSet, edge_set_of
from dgcl.nn.core_rows import ids_of_rows
from dgcl.ranks.context import context

_KEPT_BY = {
    "__getitem__", "cat", "clone", "contiguous", "expand", "expand_as", "index_select", "long", "masked_select",
    "reshape", "squeeze", "stack", "to", "unbind", "unsqueeze", "view"
}  # fmt: skip
_WRITING = {
    "__setitem__", "bincount", "index_add", "index_add_", "index_put_", "scatter", "scatter_", "scatter_add",
    "scatter_add_", "scatter_reduce", "scatter_reduce_"
}  # fmt: skip

_SEEN = _KEPT_BY | _WRITING | {"arange", "embedding", "max"}

#: Of tensors made of edges their set, and "edges", "sources" or "heads".
_roles = WeakTensorKeyDictionary()
#: What arange gave: numbers of rows.
_numbers = WeakTensorKeyDictionary()


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function of torch in a distributed model. Collective where sources index this rank's rows."""
    name = getattr(func, "__name__", "")
    if name not in _SEEN:
        return func(*args, **kwargs)
    integers = [each for each in _tensors([*args, *kwargs.values()]) if each.dtype == torch.int64]
    if name == "embedding" and len(args) > 1 and args[0] in _numbers:
        ids = ids_of_rows(context.communicator, len(args[0]), len(args[1]))
        return func(args[0] if ids is None else ids, *args[1:], **kwargs)
    edges, end = next((role for each in integers if (role := _role(each))), (None, ""))
    if edges is None or edges.comm.message_edges is not None:
        out = func(*args, **kwargs)
        if name == "arange":
            _numbers[out] = True
        return out
    if name == "max" and len(args) == 1 and not kwargs:  # by which vertices are counted
        return args[0].new_tensor(edges.count(end) - 1)
    takes = name in ("__getitem__", "index_select") and _role(args[0]) is None
    if end != "edges" and (takes or name in _WRITING):
        edges.comm.require_neighbourhoods(f"{name} by the {end} of edges")
    if end == "sources" and name in _WRITING:
        raise ValueError(
            f"{name} by the sources of edges adds up out-edges, which are on the ranks of their heads: dispatch the"
            " graph turned round, too, and add up by its heads"
        )
    if name == "cat" and {role[1] for each in integers if (role := _role(each))} == {"sources", "heads"}:
        raise ValueError(
            "cat of sources and heads of edges numbers rows of two kinds, [owned | halo] and owned: index rows by each,"
            " and join what that gives"
        )
    if end == "sources" and takes:
        index, dim = args[1], 0
        if isinstance(index, tuple):  # x[:, sources]
            dim = [isinstance(each, Tensor) for each in index].index(True)
        elif name == "index_select":
            dim = index
        args = _at_sources(args[0], edges, dim), *args[1:]
    out = func(*args, **kwargs)
    if name in _KEPT_BY:
        for place, each in enumerate(out if isinstance(out, tuple) else (out,)):
            _roles[each] = edges, _end_of_result(name, args, end, place)
    return out


def _role(value: Any) -> tuple[EdgeSet, str] | None:
    edges = edge_set_of(value) if isinstance(value, Tensor) else None
    return _roles.get(value) if edges is None else (edges, "edges")


def _end_of_result(name: str, args: tuple[Any, ...], end: str, place: int) -> str:
    """Which end a result is, of what was made of ``end``."""
    if name == "stack":
        return "edges"
    if end != "edges" or name not in ("__getitem__", "unbind"):
        return end
    index = args[1] if name == "__getitem__" else place
    index = index[0] if isinstance(index, tuple) else index
    return ("sources", "heads")[index] if isinstance(index, int) else end


def _at_sources(rows: Tensor, edges: EdgeSet, dim: int) -> Tensor:
    """Rows that sources index."""
    if rows.shape[dim] == edges.num_owned:
        return edges.expand(rows, dim)
    if rows.shape[dim] != edges.num_sources:
        raise ValueError(
            f"rows that sources of edges index must be the {edges.num_owned} of this rank, which are exchanged (got"
            f" {rows.shape[dim]}): give degree, scatter, ... the size x.size(0)"
        )
    return rows


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)

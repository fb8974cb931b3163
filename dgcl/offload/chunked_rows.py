"""Defines a tensor class for rows that are stored by chunks, and appear in the order of ``comm.owned_ids``.

A chunk's own rows must be one stretch of host memory, or a disk would read and write them in pieces. Which vertices are
in a chunk is known in :mod:`dgcl.offload` alone: to all other code such rows *mean* a tensor in the order of
``comm.owned_ids``. What reads memory past torch gets an error instead.
Called by `offload`, `layer_function`, `layer`, `chunked_losses` and `norms`. Free to change while operations,
gradients, changes in place and optimizers give what they give on an ordinary tensor
(`tests/dgcl/offload/test_rows.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from dgcl.nn.layer_arguments import require_dense
from dgcl.offload.host_store import HostStore
from dgcl.ranks.tensors import require_tensors
from dgcl.ranks.torch_private import disabled_torch_function, throw_on_data_pointer, tree_iter, tree_map_only

aten = torch.ops.aten

_ALIASES = {aten.detach.default, aten.alias.default}
_COPIES = {aten.clone.default, aten._to_copy.default}
_VIEWS_OF_A_DIMENSION = {
    aten.slice.Tensor,
    aten.select.int,
    aten.squeeze.dim,
    aten.unsqueeze.default,
}


@dataclass(frozen=True, eq=False)
class RowOrder:
    """The order in which one :class:`~dgcl.offload.offload.Offload` stores a rank's rows.

    Attributes:
        rows: (n,) int64, for each place of host memory the row of ``comm.owned_ids`` that is there.
        stretches: Places that are in the process's memory at a time: those of a chunk.
        host: Host memory.
    """

    rows: Tensor
    stretches: Sequence[slice] = ()
    host: HostStore = field(default_factory=HostStore)

    @cached_property
    def places(self) -> Tensor:
        """(n,) int64, for each row of ``comm.owned_ids`` its place."""
        return self.rows.argsort()

    def stored(self, rows: Tensor) -> Tensor:
        """The memory of rows, chunk by chunk: their own, or a copy of those that are stored otherwise."""
        if isinstance(rows, ChunkedRows) and rows.order is self:
            return rows.checked()
        return rows.detach().index_select(0, self.rows)

    def store(self, rows: Tensor) -> ChunkedRows:
        """The rows ``(n, *F)`` in host memory, differentiably: themselves, if that is where they are.

        Raises:
            TypeError: No tensor.
            ValueError: Another number of rows, or a sparse tensor.
            OSError: No room.
        """
        if isinstance(rows, ChunkedRows) and rows.order is self:
            return rows
        require_tensors(rows=rows)
        require_dense(rows=rows)
        if rows.dim() == 0 or len(rows) != len(self.rows):
            raise ValueError(
                f"rows must be those of this rank's {len(self.rows)} vertices (got shape {tuple(rows.shape)})"
            )
        return _Store.apply(rows, self)


# Torch asks it, below autograd, for each operation. An elementwise one, on such rows of the same order and on what is
# broadcast over rows, is done where they are stored; so are views of columns. Some rows are looked up where they are
# stored. For any other the rows are gathered into an ordinary tensor first; if the operation changes them, they are put
# back. No operation can so see the order, or mix two. Gradients are tensors like any others.
class ChunkedRows(Tensor):
    """Rows in the order of ``comm.owned_ids`` whose memory is chunk by chunk; see the module.

    Attributes:
        memory: ``(n, *F)`` the rows, in the order of places.
        order: Which row is where.
    """

    memory: Tensor
    order: RowOrder
    _allowed: list[int]  # changes that torch may have counted, one number for all views of the same memory

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, memory: Tensor, order: RowOrder, view_of: ChunkedRows | None = None) -> ChunkedRows:
        """The rows of this memory; as a view, it shares the count of changes of the rows that it is a view of."""
        wrapper = Tensor._make_wrapper_subclass(
            cls, memory.shape, strides=memory.stride(), dtype=memory.dtype, device=memory.device
        )
        throw_on_data_pointer(wrapper)  # it has none
        wrapper.memory, wrapper.order = memory, order
        wrapper._allowed = [0] if view_of is None else view_of._allowed
        return wrapper

    def in_owned_order(self) -> Tensor:
        """The same rows in an ordinary tensor, in the order of ``comm.owned_ids``; a copy, differentiable."""
        return _InOwnedOrder.apply(self)

    def checked(self) -> Tensor:
        """The memory.

        Raises:
            RuntimeError: A copy of some rows that torch takes for a view of them was changed.
        """
        if not self.is_inference() and self._version > self._allowed[0]:
            raise RuntimeError(
                "rows of an Offload were changed through a view of some rows, such as rows[1:3] or rows.T, which is a"
                " copy of them; write rows[1:3] = ..., or change rows.in_owned_order() and go on with that"
            )
        return self.memory

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            _refuse_memory()
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        if func._schema.is_mutable:
            return _change(func, args, kwargs, tensors)
        is_copy = func in _COPIES and kwargs.get("device") in (None, _CPU)
        if func in _ALIASES or is_copy or _is_elementwise(func, tensors):
            first = next(each for each in tensors if isinstance(each, ChunkedRows))
            view_of = first if func in _ALIASES else None
            result = func(*_stored(args), **_stored(kwargs))
            return tree_map_only(Tensor, lambda memory: ChunkedRows(memory, first.order, view_of), result)
        rows = args[0] if args else None
        if isinstance(rows, ChunkedRows) and sum(isinstance(each, ChunkedRows) for each in tensors) == 1:
            looked_up = _look_up(func, rows, args, kwargs)
            if looked_up is not None:
                return looked_up
        return func(*_gathered(args), **_gathered(kwargs))

    # What torch does without an operation that it asks for.

    def __deepcopy__(self, memo: dict[int, Any]) -> ChunkedRows:
        duplicate = self.detach().clone()
        duplicate = torch.nn.Parameter(duplicate) if isinstance(self, torch.nn.Parameter) else duplicate
        memo[id(self)] = duplicate.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __setitem__(self, index: Any, value: Any) -> None:
        changed = self.in_owned_order()
        changed[index] = value
        self.copy_(changed)

    def numpy(self, *, force: bool = False) -> Any:
        """A copy, which cannot be written to: the rows would not change."""
        array = self.in_owned_order().numpy(force=force)
        array.flags.writeable = False
        return array

    def tolist(self) -> Any:
        """The rows as lists."""
        return self.in_owned_order().tolist()

    def __dlpack__(self, *arguments: Any, **options: Any) -> Any:
        return self.in_owned_order().__dlpack__(*arguments, **options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.in_owned_order().__reduce_ex__(protocol)

    def data_ptr(self) -> NoReturn:
        """Refused."""
        _refuse_memory()

    untyped_storage = share_memory_ = data_ptr
    data = property(Tensor.data.__get__, lambda self, rows: _refuse_memory())  # type: ignore[attr-defined,assignment]


_CPU = torch.device("cpu")


def _refuse_memory() -> NoReturn:
    raise TypeError(
        "rows of an Offload are stored chunk by chunk and have no memory in the order of comm.owned_ids; pass"
        " rows.in_owned_order(), an ordinary tensor"
    )


def _gathered(tree: Any) -> Any:
    return tree_map_only(ChunkedRows, lambda rows: rows.checked().index_select(0, rows.order.places), tree)


def _stored(tree: Any) -> Any:
    return tree_map_only(ChunkedRows, ChunkedRows.checked, tree)


def _is_elementwise(func: Any, tensors: Sequence[Tensor]) -> bool:
    """Whether each row of the result comes from the same row of all chunked rows, wherever they are stored."""
    if torch.Tag.pointwise not in func.tags or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    chunked = [each for each in tensors if isinstance(each, ChunkedRows)]
    first = chunked[0]
    return all(each.order is first.order and each.dim() == first.dim() for each in chunked) and all(
        each.dim() < first.dim() or (each.dim() == first.dim() and len(each) == 1)
        for each in tensors
        if not isinstance(each, ChunkedRows)
    )


def _look_up(func: Any, rows: ChunkedRows, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What is read of some rows, or some columns, without gathering all; None: it must be."""
    memory, places = rows.checked(), rows.order.places
    if func in _VIEWS_OF_A_DIMENSION:
        if args[1:] and args[1] % (rows.dim() + (func is aten.unsqueeze.default)) > 0:
            return ChunkedRows(func(memory, *args[1:], **kwargs), rows.order, rows)
        if func is aten.select.int:
            return memory.select(0, int(places[args[2]]))
        if func is aten.slice.Tensor:
            chosen = func(places, *args[1:], **kwargs)
            if len(chosen) == len(
                places
            ):  # all of them, as torch before 2.5 asks for where columns are looked at
                return ChunkedRows(func(memory, *args[1:], **kwargs), rows.order, rows)
            return memory.index_select(0, chosen)
    elif func is aten.view.default and len(rows) and args[1] and args[1][0] == len(rows):
        return ChunkedRows(memory.view(args[1]), rows.order, rows)
    elif func is aten.index_select.default and args[1] % rows.dim() == 0:
        return memory.index_select(0, places[args[2]])
    elif func is aten.index.Tensor and (which := args[1][0]) is not None and which.dim() == 1:
        return func(memory, [places[which], *args[1][1:]])
    elif func._schema.name.startswith("aten::new_") or func._schema.name.endswith("_like"):
        return func(memory, *args[1:], **kwargs)  # of the same kind, in any order
    return None


def _change(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]) -> Any:
    """Carry out an operation that writes to some of its arguments."""
    written = [
        each
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for each in tree_iter(args[number] if number < len(args) else kwargs.get(argument.name))
        if isinstance(each, ChunkedRows)
    ]
    if len(written) == 1 and args[:1] and args[0] is written[0] and _is_elementwise(func, tensors):
        func(*_stored(args), **_stored(kwargs))
        _allow(written)
        return written[0]
    gathered = {id(each): _gathered(each) for each in tensors if isinstance(each, ChunkedRows)}
    args, kwargs = tree_map_only(ChunkedRows, lambda rows: gathered[id(rows)], (args, kwargs))
    result = func(*args, **kwargs)
    for rows in written:
        rows.memory.copy_(gathered[id(rows)].index_select(0, rows.order.rows))
    _allow(written)
    originals = {id(gathered[id(rows)]): rows for rows in written}
    return tree_map_only(Tensor, lambda each: originals.get(id(each), each), result)


def _allow(written: Sequence[ChunkedRows]) -> None:
    """Expect autograd to count one change of each more, which it does when the operation has returned."""
    for rows in written:
        if not rows.is_inference():
            rows._allowed[0] = max(rows._allowed[0], rows._version + 1)


class _InOwnedOrder(torch.autograd.Function):
    """The same rows, and the same gradient."""

    @staticmethod
    def forward(ctx: Any, rows: ChunkedRows) -> Tensor:
        return _gathered(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _Store(torch.autograd.Function):
    """The same rows; a gradient that is as ordinary as they are."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: RowOrder) -> ChunkedRows:
        memory = order.host.empty(tuple(rows.shape), rows.dtype, "inputs")
        for stretch in order.stretches:
            order.host.write(memory, stretch, rows.index_select(0, order.rows[stretch]))
        return ChunkedRows(memory, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad.in_owned_order() if isinstance(grad, ChunkedRows) else grad), None

"""Copies rows to given places of a tensor, or adds them to what is there, without a copy in between.

On the CPU compiled kernels do it, where both tensors are contiguous and of one type; otherwise torch's indexing. Rows
on their way to a device go through pinned memory.
Called by `host_store` and `layer`. Free to change while rows and sums are those of plain indexing, to the bit, whatever
their type (`tests/dgcl/offload/test_store.py`).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.kernels.row_moves import put_arrivals
from dgcl.kernels.rows import SUMMABLE, add_arrivals

_CPU = torch.device("cpu")
_SUM_CODES = {dtype: SUMMABLE.index(str(dtype)[6:]) for dtype in (torch.float32, torch.float64)}


def bytes_of_row(rows: Tensor) -> int:
    """Of rows ``(n, *F)``, however many there are."""
    return rows.shape[1:].numel() * rows.element_size()


def move_rows(target: Tensor, places: Tensor, source: Tensor, rows: Tensor | None = None) -> None:
    """``target[places] = source[rows]``, on the CPU without a copy between, to a device by pinned memory.

    Args:
        target, source: ``(n, *F)`` and ``(m, *F)``, without a graph.
        places, rows: ``(k,)`` int64, each in 0..n-1, none twice, and in 0..m-1; no ``rows``: all of ``source``.
    """
    if _fit(target, source):
        put_arrivals(*_moves(target, places, source, rows))
    else:  # what is on its way to the host could be read before it has come
        picked = _picked(source, rows, target.device)
        target[places.to(target.device)] = picked.to(target.device, non_blocking=target.device != _CPU)


def add_rows(target: Tensor, places: Tensor, source: Tensor, rows: Tensor | None = None) -> None:
    """``target[places] += source[rows]``, on the CPU as ``index_add_`` to the bit and faster; arguments likewise."""
    if target.dtype in _SUM_CODES and _fit(target, source):
        add_arrivals(_SUM_CODES[target.dtype], *_moves(target, places, source, rows))
    else:
        picked = _picked(source, rows, target.device)
        target.index_add_(0, places.to(target.device), picked.to(target.device))


def _fit(target: Tensor, source: Tensor) -> bool:
    """Whether both are one stretch of the CPU's memory, of one type, that the kernels can address."""
    return (
        target.device == source.device == _CPU
        and target.dtype == source.dtype
        and target.is_contiguous()
        and source.is_contiguous()
        and bytes_of_row(target) > 0
        and max(len(target), len(source)) < 2**31
    )


def _moves(target: Tensor, places: Tensor, source: Tensor, rows: Tensor | None) -> tuple[Any, ...]:
    """What the kernels take: of them places may be in any order, as no row lies beyond the target."""
    of = torch.arange(len(places), device="cpu") if rows is None else rows
    to_and_of = (each.numpy().astype(np.int32) for each in (places, of))
    return target.data_ptr(), len(target), *to_and_of, source.data_ptr(), bytes_of_row(target)


def _picked(source: Tensor, rows: Tensor | None, target: torch.device) -> Tensor:
    """``source[rows]``, pinned on its way to a device."""
    if rows is None:
        return source
    if target == source.device or source.device != _CPU:
        return source.index_select(0, rows.to(source.device))
    shape = len(rows), *source.shape[1:]
    pinned = torch.empty(shape, dtype=source.dtype, pin_memory=True, device="cpu")
    return torch.index_select(source, 0, rows, out=pinned)

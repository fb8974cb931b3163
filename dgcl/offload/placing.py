"""Rows put into places of a tensor, or added there: each is one copy of memory, or one sum, and no indexing."""

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


def put_rows(target: Tensor, places: Tensor, rows: Tensor) -> None:
    """``target[places] = rows``.

    Args:
        target: ``(n, *F)``, without a graph.
        places: ``(k,)`` int64, each in 0..n-1.
        rows: ``(k, *F)``, or ``(1, *F)`` for all places.
    """
    row_bytes = bytes_of_row(target)
    if row_bytes == 0 or not _fit(target, rows):
        # what is on its way to the host could be read before it has come
        target[places.to(target.device)] = rows.to(target.device, non_blocking=target.device != _CPU)
    else:
        _as_items(target, row_bytes)[places.numpy()] = _as_items(rows, row_bytes)


def move_rows(target: Tensor, places: Tensor, source: Tensor, rows: Tensor) -> None:
    """``target[places] = source[rows]``, on the CPU without a copy between, to a device by pinned memory.

    Args:
        target, source: ``(n, *F)`` and ``(m, *F)``, without a graph.
        places, rows: ``(k,)`` int64, each in 0..n-1 and in 0..m-1.
    """
    row_bytes = bytes_of_row(target)
    if row_bytes == 0 or not _fit(target, source) or max(len(target), len(source)) >= 2**31:
        put_rows(target, places, _picked(source, rows, target.device))
        return
    to, of = places.numpy().astype(np.int32), rows.numpy().astype(np.int32)
    # in any order: what the kernel wants of it is that rows beyond the target come last, and there are none
    put_arrivals(target.data_ptr(), len(target), to, of, source.data_ptr(), row_bytes)


def add_rows(target: Tensor, places: Tensor, source: Tensor, rows: Tensor | None = None) -> None:
    """``target[places] += source[rows]``, on the CPU as ``index_add_`` to the bit and faster.

    Args:
        target, source: ``(n, *F)`` and ``(m, *F)``, without a graph.
        places, rows: ``(k,)`` int64, each in 0..n-1, none twice, and in 0..m-1; no ``rows``: all of ``source``.
    """
    row_bytes = bytes_of_row(target)
    fits = target.dtype in _SUM_CODES and _fit(target, source) and max(len(target), len(source)) < 2**31
    if row_bytes == 0 or not fits:
        picked = source if rows is None else _picked(source, rows, target.device)
        target.index_add_(0, places.to(target.device), picked.to(target.device))
        return
    to = places.numpy().astype(np.int32)
    of = np.arange(len(to), dtype=np.int32) if rows is None else rows.numpy().astype(np.int32)
    code, addresses = _SUM_CODES[target.dtype], (target.data_ptr(), source.data_ptr())
    # in any order, as above
    add_arrivals(code, addresses[0], len(target), to, of, addresses[1], row_bytes)


def put_zeros(target: Tensor, places: Tensor) -> None:
    """``target[places] = 0``; arguments as for :func:`put_rows`."""
    put_rows(target, places, target.new_zeros((1, *target.shape[1:])))


def _fit(target: Tensor, source: Tensor) -> bool:
    """Whether both are one stretch of the CPU's memory, of one type."""
    return (
        target.device == source.device == _CPU
        and target.dtype == source.dtype
        and target.is_contiguous()
        and source.is_contiguous()
    )


def _picked(source: Tensor, rows: Tensor, target: torch.device) -> Tensor:
    """``source[rows]``, pinned on its way to a device."""
    if target == source.device or source.device != _CPU:
        return source.index_select(0, rows.to(source.device))
    shape = len(rows), *source.shape[1:]
    pinned = torch.empty(shape, dtype=source.dtype, pin_memory=True, device="cpu")
    return torch.index_select(source, 0, rows, out=pinned)


def _as_items(rows: Tensor, row_bytes: int) -> np.ndarray:
    """The same memory as a vector of one opaque item for each row."""
    return rows.detach().view(-1).view(torch.uint8).numpy().view(f"V{row_bytes}")

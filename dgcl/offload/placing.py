"""Rows put into places of a tensor: each is one copy of memory, which takes a fifth of the time of indexing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dgcl.kernels.row_moves import put_arrivals

__all__ = ["move_rows", "put_rows", "put_zeros"]


def put_rows(target: Tensor, places: Tensor, rows: Tensor) -> None:
    """``target[places] = rows``, on the CPU.

    Args:
        target: ``(n, *F)``, without a graph.
        places: ``(k,)`` int64, each in 0..n-1.
        rows: ``(k, *F)``, or ``(1, *F)`` for all places.
    """
    row_bytes = target.shape[1:].numel() * target.element_size()
    if row_bytes == 0 or rows.dtype != target.dtype or not (target.is_contiguous() and rows.is_contiguous()):
        target[places] = rows
    else:
        _as_items(target, row_bytes)[places.numpy()] = _as_items(rows, row_bytes)


def move_rows(target: Tensor, places: Tensor, source: Tensor, rows: Tensor) -> None:
    """``target[places] = source[rows]``, on the CPU, without a copy between.

    Args:
        target, source: ``(n, *F)`` and ``(m, *F)``, without a graph.
        places, rows: ``(k,)`` int64, each in 0..n-1 and in 0..m-1.
    """
    row_bytes = target.shape[1:].numel() * target.element_size()
    fits = target.dtype == source.dtype and target.is_contiguous() and source.is_contiguous()
    if row_bytes == 0 or not fits or max(len(target), len(source)) >= 2**31:
        put_rows(target, places, source.index_select(0, rows))
        return
    to, of = places.numpy().astype(np.int32), rows.numpy().astype(np.int32)
    # in any order: what the kernel wants of it is that rows beyond the target come last, and there are none
    put_arrivals(target.data_ptr(), len(target), to, of, source.data_ptr(), row_bytes)


def put_zeros(target: Tensor, places: Tensor) -> None:
    """``target[places] = 0``; arguments as for :func:`put_rows`."""
    put_rows(target, places, target.new_zeros((1, *target.shape[1:])))


def _as_items(rows: Tensor, row_bytes: int) -> np.ndarray:
    """The same memory as a vector of one opaque item for each row."""
    return rows.detach().view(-1).view(torch.uint8).numpy().view(f"V{row_bytes}")

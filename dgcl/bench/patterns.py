"""Test data of a benchmark, and the check that it arrived unchanged.

Expand carries arbitrary bits, which must arrive as they are, whatever number they stand for. Fold carries
small whole numbers, so small that every sum of them is exact in the element type, whatever the order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dgcl.bench import pattern_kernels as kernels
from dgcl.kernels.rows import SUMMABLE

#: Whole numbers up to this are exact.
_EXACT = {torch.float64: 1 << 53, torch.float32: 1 << 24, torch.float16: 1 << 11, torch.bfloat16: 1 << 8}
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: Names of the element types that a benchmark can send, those of nccl-tests included.
DTYPES = {name: getattr(torch, name) for name in SUMMABLE} | {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
}

#: What every byte of a buffer is set to before a result may be written there.
POISON = 0xFF


def _unsigned(rows: Tensor) -> np.ndarray:
    """The elements' bits, (rows, columns)."""
    size = rows.dtype.itemsize
    return rows.flatten(1).view(_SIGNED[size]).numpy().view(f"u{size}")


def _ones(dtype: torch.dtype) -> np.uint64:
    return np.uint64((1 << 8 * dtype.itemsize) - 1)


def fill_expand(rows: Tensor, vertices: np.ndarray, iteration: int) -> None:
    """Fill ``(len(vertices), width)`` rows to be sent in this iteration."""
    kernels.fill_bits(_unsigned(rows), vertices, iteration, _ones(rows.dtype))


def wrong_expand(found: Tensor, vertices: np.ndarray, iteration: int) -> int:
    """Count the elements that differ in any bit from what :func:`fill_expand` writes for these vertices."""
    return int(kernels.count_wrong_bits(_unsigned(found), vertices, iteration, _ones(found.dtype)))


def _below(dtype: torch.dtype, world_size: int) -> int:
    """A power of two such that ``world_size`` numbers below it have an exact sum.

    Raises:
        ValueError: There is none worth sending.
    """
    most = _EXACT.get(dtype, 1 << 8)  # integers wrap, exactly
    below = 1 << min((most // world_size).bit_length() - 1, 31) if dtype in _EXACT else most
    if below < 2:
        raise ValueError(
            f"dtype: sums over {world_size} ranks are not exact in {dtype} and cannot be verified; use a"
            " wider type"
        )
    return below


def fill_fold(rows: Tensor, vertices: np.ndarray, iteration: int, rank: int, world_size: int) -> None:
    """Fill ``(len(vertices), width)`` rows with what ``rank`` contributes to the sums of these vertices."""
    below = _below(rows.dtype, world_size)
    if rows.dtype in (torch.float32, torch.float64):
        kernels.fill_shares(rows.numpy(), vertices, iteration, rank, below)
        return
    whole = torch.empty(rows.shape, dtype=torch.int32)
    kernels.fill_shares(whole.numpy(), vertices, iteration, rank, below)
    rows.copy_(whole)


def wrong_fold(
    found: Tensor, vertices: np.ndarray, holders: np.ndarray, iteration: int, world_size: int
) -> int:
    """Count the elements that are not the sum of the contributions of all holders of a vertex.

    Args:
        found: ``(len(vertices), width)``.
        vertices: Their global ids.
        holders: ``(len(vertices),)`` uint64: the ranks that hold each vertex, its owner included, as bits.
        iteration, world_size: As in :func:`fill_fold`.
    """
    below = _below(found.dtype, world_size)
    values = found if found.dtype in (torch.float32, torch.float64) else found.to(torch.float32)
    mask = 0
    if not found.dtype.is_floating_point:
        values, mask = found, (1 << min(8 * found.dtype.itemsize, 62)) - 1
    return int(kernels.count_wrong_sums(values.numpy(), vertices, holders, iteration, below, mask))

"""Fills rows with values made of (vertex, column, call), and counts the elements that did not arrive unchanged.

Expand carries arbitrary bits, which must arrive as they are, whatever number they stand for. Fold carries whole
numbers, so small that every sum of them is exact in the element type, whatever the order. Both are made of a random
key of (vertex, call) and one of (column, call): a row in a wrong place, one of another call and one that was never
written differ in nearly every element.

Called by `lanes`, `measure`, `transports`, `dgcl/cli/bench` and others. Free to change while right rows pass, and one
flipped bit, another vertex, column or call, and poisoned memory do not (`tests/dgcl/bench/test_patterns.py`).
"""

import torch
from torch import Tensor

from dgcl.kernels.rows import SUMMABLE

_MIXERS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
#: Rows that are verified at a time: beside rows that fill a device there is no place for their like.
_BLOCK = 1024

#: Names of the element types that a benchmark can send, those of nccl-tests included.
DTYPES = {name: getattr(torch, name) for name in SUMMABLE} | {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
}

#: What every byte of a buffer is set to before a result may be written there.
POISON = 0xFF


def _keys(numbers: Tensor, call: int, kind: int) -> Tensor:
    """Random 64 bits for each number, by the steps of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (numbers + 1) * _MIXERS[0] + ((call * 256 + kind) * 0x9E3779B97F4A7C15) % (1 << 63)
    for shift, mixer in zip((30, 27), _MIXERS, strict=True):
        z = (z ^ (z >> shift)) * mixer
    return z ^ (z >> 31)


def _bits(vertices: Tensor, width: int, call: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys of rows and columns whose exclusive or is the rows' bits; never all ones, as poisoned memory is."""
    kind = getattr(torch, f"int{8 * dtype.itemsize}")
    columns = torch.arange(width, device=vertices.device)
    rows, columns = (_keys(each, call, number) & ~1 for number, each in enumerate((vertices, columns)))
    return rows.to(kind)[:, None], columns.to(kind)


def fill_expand(rows: Tensor, vertices: Tensor, call: int) -> None:
    """Fill ``(n, width)`` rows of these vertices, ``(n,)`` int64 on their device."""
    keys, columns = _bits(vertices, rows.shape[1], call, rows.dtype)
    torch.bitwise_xor(keys, columns, out=rows.view(keys.dtype))


def wrong_expand(rows: Tensor, vertices: Tensor, call: int) -> int:
    """Count the elements that differ in any bit from what :func:`fill_expand` writes."""
    keys, columns = _bits(vertices, rows.shape[1], call, rows.dtype)
    blocks = zip(rows.view(keys.dtype).split(_BLOCK), keys.split(_BLOCK), strict=True)
    return sum(int(torch.count_nonzero(mine != key ^ columns)) for mine, key in blocks)


def _shares(vertices: Tensor, width: int, call: int, rank: int, below: int) -> tuple[Tensor, Tensor]:
    """Whole numbers of rows and columns whose sum is what a rank contributes: from 1 to below - 1."""
    half = below // 2
    columns = torch.arange(width, device=vertices.device)
    return _keys(vertices, call, 2 + rank) % half + 1, _keys(columns, call, 1) % half


def _below(dtype: torch.dtype, world_size: int) -> int:
    """A power of two such that ``world_size`` numbers below it have an exact sum.

    Raises:
        ValueError: There is none worth sending.
    """
    if not dtype.is_floating_point:
        return 1 << 8  # integers wrap, exactly
    exact = int(2 / torch.finfo(dtype).eps)  # as all whole numbers up to this are
    below = 1 << min((exact // world_size).bit_length() - 1, 31)
    if below < 2:
        raise ValueError(
            f"dtype: sums over {world_size} ranks are not exact in {dtype} and cannot be verified; use a"
            " wider type"
        )
    return below


def fill_fold(rows: Tensor, vertices: Tensor, call: int, rank: int, world_size: int) -> None:
    """Fill ``(n, width)`` rows with what ``rank`` contributes to the sums of these vertices."""
    shares, columns = _shares(vertices, rows.shape[1], call, rank, _below(rows.dtype, world_size))
    torch.add(shares.to(rows.dtype)[:, None], columns.to(rows.dtype), out=rows)


def wrong_fold(rows: Tensor, vertices: Tensor, holders: Tensor, call: int) -> int:
    """Count the elements that are not the sum of the contributions of all holders of a vertex.

    Args:
        rows: ``(n, width)``.
        vertices: ``(n,)`` int64.
        holders: ``(P, n)`` bool: the ranks that hold each vertex, its owner included.
        call: As in :func:`fill_fold`.
    """
    below, total = _below(rows.dtype, len(holders)), torch.zeros_like(vertices)
    for rank, held in enumerate(holders):
        shares, columns = _shares(vertices, rows.shape[1], call, rank, below)
        total += shares * held
    kind = torch.float32 if rows.dtype.is_floating_point and rows.dtype.itemsize == 2 else rows.dtype
    sums, counts, columns = total.to(kind)[:, None], holders.sum(0).to(kind)[:, None], columns.to(kind)
    blocks = zip(*(each.split(_BLOCK) for each in (rows, counts, sums)), strict=True)
    return sum(int(torch.count_nonzero(mine.to(kind) != count * columns + of)) for mine, count, of in blocks)

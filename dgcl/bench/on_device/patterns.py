"""Rows that encode vertex, column and call, made and checked by torch on their device.

As in :mod:`dgcl.bench.patterns`: an expand carries arbitrary bits, a fold small whole numbers with exact sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_STEPS = (0x9E3779B97F4A7C15 - (1 << 64), 0x2545F4914F6CDD1D, 0x632BE59BD9B4E019)  # odd, of 64 bits
_SLICE = 1 << 24  # elements that are made at a time: they are int64 on the way
_MOST = 8  # a contribution is a whole number below this; its sums over 32 ranks are exact in every type


def _bits(vertices: Tensor, width: int, call: int, kind: torch.dtype) -> Tensor:
    columns = torch.arange(1, width + 1, device=vertices.device)
    mixed = (vertices[:, None] * _STEPS[0]) ^ (columns * _STEPS[1]) ^ (call * _STEPS[2] % (1 << 63))
    return ((mixed ^ (mixed >> 29)) * _STEPS[1] >> 17).to(kind)


def _whole(vertices: Tensor, width: int, call: int, rank: int) -> Tensor:
    columns = torch.arange(width, device=vertices.device)
    return (vertices[:, None] * 5 + columns * 3 + rank * 7 + call) % _MOST


def _slices(count: int, width: int) -> range:
    return range(0, count, max(1, _SLICE // max(width, 1)))


def fill_expand(rows: Tensor, vertices: Tensor, call: int) -> None:
    """Fill ``(n, width)`` rows of these vertices, int64, for a call."""
    kind = _INTEGERS[rows.dtype.itemsize]
    slices = _slices(*rows.shape)
    for begin in slices:
        part = slice(begin, begin + slices.step)
        rows[part].view(kind).copy_(_bits(vertices[part], rows.shape[1], call, kind))


def wrong_expand(found: Tensor, vertices: Tensor, call: int) -> int:
    """Count the elements that differ in any bit from what :func:`fill_expand` writes."""
    kind = _INTEGERS[found.dtype.itemsize]
    wrong, slices = 0, _slices(*found.shape)
    for begin in slices:
        part = slice(begin, begin + slices.step)
        right = _bits(vertices[part], found.shape[1], call, kind)
        wrong += int((found[part].view(kind) != right).sum())
    return wrong


def fill_fold(rows: Tensor, vertices: Tensor, call: int, rank: int) -> None:
    """Fill ``(n, width)`` rows with what ``rank`` contributes to the sums of these vertices."""
    slices = _slices(*rows.shape)
    for begin in slices:
        part = slice(begin, begin + slices.step)
        rows[part].copy_(_whole(vertices[part], rows.shape[1], call, rank))


def wrong_fold(found: Tensor, vertices: Tensor, holders: Tensor, call: int) -> int:
    """Count the elements that are not the sum of all holders' contributions.

    Args:
        found: ``(n, width)``.
        vertices: ``(n,)`` int64.
        holders: ``(P, n)`` bool: whether each rank holds each vertex.
        call: As in :func:`fill_fold`.
    """
    wrong, slices = 0, _slices(*found.shape)
    for begin in slices:
        part = slice(begin, begin + slices.step)
        sums = sum(
            _whole(vertices[part], found.shape[1], call, rank) * held[part, None]
            for rank, held in enumerate(holders)
        )
        assert isinstance(sums, Tensor)
        wrong += int((found[part] != sums.to(found.dtype)).sum())
    return wrong

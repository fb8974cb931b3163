"""Kernels that write and check numbers that depend on (vertex, column, iteration).

One SplitMix64 step (Steele, Lea and Flood, OOPSLA 2014) turns vertex and iteration into the key of a row, one
multiplication turns key and column into an element. A row that is in the wrong place, one of an earlier
iteration and one that was never written all differ in nearly every element.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import int64, njit, uint64

from dgcl.kernels.compiled import compiled

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


@njit(nogil=True, inline="always")
def _row_key(vertex: int, iteration: int) -> int:
    z = uint64(vertex) * _MIX_1 + (uint64(iteration) + uint64(1)) * _GOLDEN
    z = (z ^ (z >> uint64(30))) * _MIX_1
    z = (z ^ (z >> uint64(27))) * _MIX_2
    return z ^ (z >> uint64(31))


@njit(nogil=True, inline="always")
def _element(key: int, column: int) -> int:
    """32 random bits in the low half of a word."""
    return ((key + uint64(column) * _GOLDEN) * _MIX_2) >> uint64(32)


@njit(nogil=True, inline="always")
def _bits(key: int, column: int, mask: int) -> int:
    """Return the element's bits, never all ones: poisoned memory holds all ones."""
    value = _element(key, column)
    value = (value | (value << uint64(32))) & mask
    return value if value != mask else uint64(0)


@compiled
def fill_bits(out: np.ndarray, vertices: np.ndarray, iteration: int, mask: int) -> None:
    """Write the bits of every element into ``out`` (rows, columns), unsigned; ``mask`` is its type's ones."""
    for i in range(out.shape[0]):
        key = _row_key(vertices[i], iteration)
        for column in range(out.shape[1]):
            out[i, column] = _bits(key, column, uint64(mask))


@compiled
def count_wrong_bits(found: np.ndarray, vertices: np.ndarray, iteration: int, mask: int) -> int:
    """Count the elements of ``found`` that differ from what :func:`fill_bits` writes."""
    wrong = 0
    for i in range(found.shape[0]):
        key = _row_key(vertices[i], iteration)
        for column in range(found.shape[1]):
            wrong += uint64(found[i, column]) != _bits(key, column, uint64(mask))
    return wrong


@njit(nogil=True, inline="always")
def _share(key: int, rank: int, column: int, below: int) -> int:
    """What ``rank`` adds to an element: a whole number in [0, below); ``below`` is a power of two."""
    return _element(key ^ (uint64(rank + 1) * _MIX_1), column) & uint64(below - 1)


@compiled
def fill_shares(out: np.ndarray, vertices: np.ndarray, iteration: int, rank: int, below: int) -> None:
    """Write what ``rank`` contributes to the sums of these vertices."""
    for i in range(out.shape[0]):
        key = _row_key(vertices[i], iteration)
        for column in range(out.shape[1]):
            out[i, column] = int64(_share(key, rank, column, below))


@compiled
def count_wrong_sums(
    found: Any, vertices: np.ndarray, holders: np.ndarray, iteration: int, below: int, mask: int
) -> int:
    """Count the elements of ``found`` that are not the sum over the ranks in ``holders`` (bit masks).

    ``mask`` other than 0 compares the low bits only (integers wrap).
    """
    wrong = 0
    total = np.empty(found.shape[1], np.int64)
    for i in range(found.shape[0]):
        key = _row_key(vertices[i], iteration)
        total[:] = 0
        left, rank = uint64(holders[i]), 0
        while left != 0:
            if left & uint64(1):
                for column in range(found.shape[1]):
                    total[column] += int64(_share(key, rank, column, below))
            left >>= uint64(1)
            rank += 1
        if mask == 0:
            for column in range(found.shape[1]):
                wrong += found[i, column] != total[column]
        else:
            for column in range(found.shape[1]):
                wrong += (int64(found[i, column]) & mask) != (total[column] & mask)
    return wrong

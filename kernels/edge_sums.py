"""Sum rows over edges, and take dot products at edges: what a layer of a graph network does besides dense products.

At each head the rows of its edges' tails are added in the order of the edges, a block of columns at a time. The sums of
a block stay in registers over all edges of the head: each result is read and written once, and nothing holds a row per
edge. The rows of the edges to come are prefetched, those of later heads too; and results that lie apart. The bits of a
result depend neither on the block that a column falls into nor on how heads are divided among threads.

Edges are grouped by their heads: those of the i-th are ``indptr[i]:indptr[i + 1]`` of ``tails``, and its row is ``i``,
or ``heads[i]`` where that array is not empty. All rows are given by the address of row 0 and the bytes from one to the
next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import boolean, float32, float64, int32, int64, njit, void

from dgcl.kernels.compiled import compiled
from dgcl.kernels.copies import claim_row, prefetch_row
from dgcl.kernels.edge_blocks import (
    AHEAD,
    add_bfloat16,
    add_float16,
    add_float32,
    add_float64,
    dot_bfloat16,
    dot_float16,
    dot_float32,
    dot_float64,
)
from dgcl.kernels.memory import address_of, pointer_to

#: Bytes of sums that are held in registers: half of those that a processor with AVX2 has. Then narrower blocks.
_LARGE, _MIDDLE, _SMALL, _ONE = 256, 64, 16, 1

#: Prefetch distance of results that lie apart, in heads.
_HEADS_AHEAD = 8

_SUMS = void(
    *(int64, int64, int64, int64, int64[::1], int32[::1], int64, int64),
    *(int32[::1], int64, int64, int64, boolean),
)
_DOTS = void(
    *(int64, int64, int64, int64, int64, int64[::1], int32[::1]),
    *(int32[::1], int32[::1], int64, int64, int64),
)


@njit(nogil=True, inline="always")
def _sum_heads(
    add_block: Any, added_bytes: int, stored_bytes: int,
    out: int, out_stride: int, x: int, x_stride: int, indptr: np.ndarray, tails: np.ndarray,
    weights: int, weight_bytes: int, heads: np.ndarray, begin: int, end: int, width: int, adding: bool,
) -> None:  # fmt: skip
    """Write, or add, to ``out`` for heads ``begin:end`` the sums of ``width`` columns of ``x``, each edge's row times
    its weight: the one at address ``weights`` for the first edge, ``weight_bytes`` further for each one after it.

    ``out`` and weights are of the type that elements are added in. With ``weight_bytes`` 0 all edges have one weight.
    """
    large, middle, small = _LARGE // added_bytes, _MIDDLE // added_bytes, _SMALL // added_bytes
    first_tail, last = address_of(tails), indptr[end] - 1
    for i in range(begin, end):
        if len(heads) > 0:  # results lie apart
            claim_row(out + int64(heads[min(i + _HEADS_AHEAD, end - 1)]) * out_stride, width * added_bytes)
        target = out + (int64(heads[i]) if len(heads) > 0 else i) * out_stride
        first, past = indptr[i], indptr[i + 1]
        column = int64(0)
        while column < width:
            left = width - column
            # What is left at the end of a row is summed as part of a whole block where there is one, of which the
            # columns that were summed before are not written again.
            if left >= large or (left > middle and width >= large):
                start = min(column, width - large)
                add_block(
                    _LARGE, target + start * added_bytes, column - start, x + start * stored_bytes, x_stride,
                    first_tail, weights, weight_bytes, first, past, last, adding,
                )  # fmt: skip
                column = start + large
            elif left >= middle or (left > small and width >= middle):
                start = min(column, width - middle)
                add_block(
                    _MIDDLE, target + start * added_bytes, column - start, x + start * stored_bytes, x_stride,
                    first_tail, weights, weight_bytes, first, past, last, adding,
                )  # fmt: skip
                column = start + middle
            elif left >= small or (left > 1 and width >= small):
                start = min(column, width - small)
                add_block(
                    _SMALL, target + start * added_bytes, column - start, x + start * stored_bytes, x_stride,
                    first_tail, weights, weight_bytes, first, past, last, adding,
                )  # fmt: skip
                column = start + small
            else:
                add_block(
                    _ONE, target + column * added_bytes, int64(0), x + column * stored_bytes, x_stride,
                    first_tail, weights, weight_bytes, first, past, last, adding,
                )  # fmt: skip
                column += 1


@njit(nogil=True, inline="always")
def _dot_heads(
    dot: Any, sample: Any, stored_bytes: int,
    out: int, y: int, y_stride: int, x: int, x_stride: int, indptr: np.ndarray, tails: np.ndarray,
    heads: np.ndarray, edges: np.ndarray, begin: int, end: int, width: int,
) -> None:  # fmt: skip
    """Write for each edge of heads ``begin:end`` the dot product of its head's row of ``y`` and its tail's of ``x``, to
    place ``e`` of ``out`` for the e-th edge, or ``edges[e]`` where that array is not empty."""
    products = pointer_to(out, sample)
    last, row_bytes = indptr[end] - 1, width * stored_bytes
    for i in range(begin, end):
        row = y + (int64(heads[i]) if len(heads) > 0 else i) * y_stride
        for edge in range(indptr[i], indptr[i + 1]):
            prefetch_row(x + int64(tails[min(edge + AHEAD, last)]) * x_stride, row_bytes)
            place = int64(edges[edge]) if len(edges) > 0 else edge
            products[place] = dot(row, x + int64(tails[edge]) * x_stride, width)


def _sums(name: str, add_block: Any, added_bytes: int, stored_bytes: int) -> Callable[..., None]:
    """A function with the arguments of :func:`_sum_heads` from ``out`` on, which is called ``name`` here."""

    def sums(
        out: int, out_stride: int, x: int, x_stride: int, indptr: np.ndarray, tails: np.ndarray,
        weights: int, weight_bytes: int, heads: np.ndarray, begin: int, end: int, width: int, adding: bool,
    ) -> None:  # fmt: skip
        _sum_heads(
            add_block, added_bytes, stored_bytes, out, out_stride, x, x_stride, indptr, tails,
            weights, weight_bytes, heads, begin, end, width, adding,
        )  # fmt: skip

    sums.__qualname__ = name
    return compiled(_SUMS, inline=False)(sums)


def _dots(name: str, dot: Any, sample: Any, stored_bytes: int) -> Callable[..., None]:
    """A function with the arguments of :func:`_dot_heads` from ``out`` on, which is called ``name`` here."""

    def dots(
        out: int, y: int, y_stride: int, x: int, x_stride: int, indptr: np.ndarray, tails: np.ndarray,
        heads: np.ndarray, edges: np.ndarray, begin: int, end: int, width: int,
    ) -> None:  # fmt: skip
        _dot_heads(
            dot, sample, stored_bytes, out, y, y_stride, x, x_stride, indptr, tails, heads, edges, begin, end, width,
        )  # fmt: skip

    dots.__qualname__ = name
    return compiled(_DOTS)(dots)


sum_float32 = _sums("sum_float32", add_float32, 4, 4)
sum_float64 = _sums("sum_float64", add_float64, 8, 8)
sum_float16 = _sums("sum_float16", add_float16, 4, 2)
sum_bfloat16 = _sums("sum_bfloat16", add_bfloat16, 4, 2)

dots_float32 = _dots("dots_float32", dot_float32, float32(0), 4)
dots_float64 = _dots("dots_float64", dot_float64, float64(0), 8)
dots_float16 = _dots("dots_float16", dot_float16, float32(0), 2)
dots_bfloat16 = _dots("dots_bfloat16", dot_bfloat16, float32(0), 2)

#: For each type of x a function with the arguments of :func:`_sum_heads` from ``out`` on.
EDGE_SUMS: dict[str, Callable[..., None]] = {
    "float32": sum_float32,
    "float64": sum_float64,
    "float16": sum_float16,
    "bfloat16": sum_bfloat16,
}

#: For each type of x and y a function with the arguments of :func:`_dot_heads` from ``out`` on.
EDGE_DOTS: dict[str, Callable[..., None]] = {
    "float32": dots_float32,
    "float64": dots_float64,
    "float16": dots_float16,
    "bfloat16": dots_bfloat16,
}

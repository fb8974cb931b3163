"""Sums rows over edges, and takes dot products at edges: the sparse operations of a graph layer.

At each head (the vertex that edges lead to) the rows of its edges' tails are added in the order of the edges, a block
of columns at a time. Sums stay in registers over all edges of a head: each result is read and written once, and nothing
holds a row per edge. Results do not depend on how columns are split in blocks, nor on how threads share the heads.
Called by `dgcl/aggregation/grouped_edges`, `dgcl/frameworks/csr_ops`, `dgcl/transport/shared_memory/interpreter` and
`dgcl/cli/warmup`. Free to change while edges are added in their order, with results within rounding of a float64 loop
(`tests/kernels/test_edge_sums.py`).
"""

from collections.abc import Callable

import numpy as np
from numba import boolean, float32, float64, int32, int64, void

from dgcl.kernels.compiled import compiled
from dgcl.kernels.copies import claim_row, prefetch_row
from dgcl.kernels.edge_blocks import AHEAD, FLOATS, Floats, block_sum, row_product
from dgcl.kernels.memory import address_of, pointer_to

#: Bytes of sums that are held in registers: half of those that a processor with AVX2 has. Then narrower blocks.
_LARGE, _HALF, _MIDDLE, _SMALL, _ONE = 256, 128, 64, 16, 1

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


# Edges are grouped by their heads: those of the i-th are ``indptr[i]:indptr[i + 1]`` of ``tails``, and its row is
# ``i``, or ``heads[i]`` where that array is not empty. All rows are given by the address of row 0 and the bytes
# from one to the next.


def _sums(name: str, floats: Floats) -> Callable[..., None]:
    """A function of one type of x, which is called ``name`` here."""
    sizes = _LARGE, _HALF, _MIDDLE, _SMALL, _ONE
    add_large, add_half, add_middle, add_small, add_one = (block_sum(floats, size) for size in sizes)
    added_bytes, stored_bytes = floats.added_bytes, floats.stored_bytes
    large, half, middle, small = (size // added_bytes for size in sizes[:4])

    def sums(
        out: int, out_stride: int, x: int, x_stride: int, indptr: np.ndarray, tails: np.ndarray,
        weights: int, weight_bytes: int, heads: np.ndarray, begin: int, end: int, width: int, adding: bool,
    ) -> None:  # fmt: skip
        """Write, or add, to ``out`` for heads ``begin:end`` the sums of ``width`` columns of ``x``, each edge's row
        times its weight: the one at address ``weights`` for the first edge, ``weight_bytes`` further for each after it.

        ``out`` and weights are of the type that elements are added in. With ``weight_bytes`` 0 all edges have one
        weight.
        """
        first_tail, last = address_of(tails), indptr[end] - 1
        for i in range(begin, end):
            if len(heads) > 0:  # results lie apart
                claim_row(
                    out + int64(heads[min(i + _HEADS_AHEAD, end - 1)]) * out_stride, width * added_bytes
                )
            row = out + (int64(heads[i]) if len(heads) > 0 else i) * out_stride
            edges = x_stride, first_tail, weights, weight_bytes, indptr[i], indptr[i + 1], last, adding
            column = int64(0)
            while column < width:
                # What is left at the end of a row is summed as part of a whole block where there is one, of which the
                # columns that were summed before are not written again.
                left = width - column
                if width >= large and left > half:
                    start = min(column, width - large)
                    add_large(row + start * added_bytes, column - start, x + start * stored_bytes, *edges)
                    column = start + large
                elif width >= half and left > middle:
                    start = min(column, width - half)
                    add_half(row + start * added_bytes, column - start, x + start * stored_bytes, *edges)
                    column = start + half
                elif width >= middle and left > small:
                    start = min(column, width - middle)
                    add_middle(row + start * added_bytes, column - start, x + start * stored_bytes, *edges)
                    column = start + middle
                elif width >= small and left > 1:
                    start = min(column, width - small)
                    add_small(row + start * added_bytes, column - start, x + start * stored_bytes, *edges)
                    column = start + small
                else:
                    add_one(row + column * added_bytes, int64(0), x + column * stored_bytes, *edges)
                    column += 1

    sums.__qualname__ = name
    return compiled(_SUMS, inline=False)(sums)


def _dots(name: str, floats: Floats) -> Callable[..., None]:
    """A function of one type of x and y, which is called ``name`` here."""
    dot, stored_bytes = row_product(floats), floats.stored_bytes
    sample = float64(0) if floats.added_bytes == 8 else float32(0)

    def dots(
        out: int, y: int, y_stride: int, x: int, x_stride: int, indptr: np.ndarray, tails: np.ndarray,
        heads: np.ndarray, edges: np.ndarray, begin: int, end: int, width: int,
    ) -> None:  # fmt: skip
        """Write for each edge of heads ``begin:end`` the dot product of its head's row of ``y`` and its tail's of
        ``x``, to place ``e`` of ``out`` for the e-th edge, or ``edges[e]`` where that array is not empty."""
        products = pointer_to(out, sample)
        last, row_bytes = indptr[end] - 1, width * stored_bytes
        for i in range(begin, end):
            row = y + (int64(heads[i]) if len(heads) > 0 else i) * y_stride
            for edge in range(indptr[i], indptr[i + 1]):
                prefetch_row(x + int64(tails[min(edge + AHEAD, last)]) * x_stride, row_bytes)
                place = int64(edges[edge]) if len(edges) > 0 else edge
                products[place] = dot(row, x + int64(tails[edge]) * x_stride, width)

    dots.__qualname__ = name
    return compiled(_DOTS)(dots)


#: By types of x, for sums, and of x and y, for dot products.
EDGE_SUMS = {name: _sums(f"sum_{name}", floats) for name, floats in FLOATS.items()}
EDGE_DOTS = {name: _dots(f"dots_{name}", floats) for name, floats in FLOATS.items()}
# The cache of machine code finds functions by their names in the module.
sum_float32, sum_float64, sum_float16, sum_bfloat16 = EDGE_SUMS.values()
dots_float32, dots_float64, dots_float16, dots_bfloat16 = EDGE_DOTS.values()

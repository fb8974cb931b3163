"""Scores of edges by heads of attention, from the rows of both ends: ``vector . leaky_relu(y + x)`` (GATv2), and slopes.

For each edge and head of attention the score is one dot product, and its gradient by a row is the vector times the
slopes of the rectifier: 1 where ``y + x`` is above 0. Slopes are computed anew from both rows, so that nothing of
edges x heads x width is held. Arrays of edges are (heads of attention, E), a head's after the other's.

Edges are grouped by one end, as in :mod:`dgcl.kernels.edge_sums`: those of the i-th row ``y`` are
``indptr[i]:indptr[i + 1]`` of ``others``, their rows of ``x``. A row's sum is made in the order of its edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import int32, int64, void

from dgcl.kernels.compiled import compiled
from dgcl.kernels.copies import prefetch_row
from dgcl.kernels.edge_blocks import AHEAD, SCORES
from dgcl.kernels.memory import pointer_to

_Kernel = Callable[..., None]


def _kernels(name: str) -> tuple[_Kernel, _Kernel]:
    stored_bytes, added_bytes, number, score, add_slopes = SCORES[name]
    sample = number(0)
    rows = (int64, int64, int64, int64, int64[::1], int32[::1])

    def scores(
        out: int, y: int, y_stride: int, x: int, x_stride: int, indptr: np.ndarray, others: np.ndarray,
        vector: int, slope: Any, begin: int, end: int, num_heads: int, width: int,
    ) -> None:  # fmt: skip
        """Write to ``out`` (num_heads, E) the scores of the edges of rows ``begin:end`` of ``num_heads * width``."""
        results, last, num_edges = pointer_to(out, sample), indptr[end] - 1, len(others)
        row_bytes = num_heads * width * stored_bytes
        for i in range(begin, end):
            for edge in range(indptr[i], indptr[i + 1]):
                prefetch_row(x + int64(others[min(edge + AHEAD, last)]) * x_stride, row_bytes)
                for head in range(num_heads):
                    before = head * width
                    results[head * num_edges + edge] = score(
                        y + i * y_stride + before * stored_bytes,
                        x + int64(others[edge]) * x_stride + before * stored_bytes,
                        width, vector + before * added_bytes, slope,
                    )  # fmt: skip

    def slopes(
        out: int, y: int, y_stride: int, x: int, x_stride: int, indptr: np.ndarray, others: np.ndarray,
        order: np.ndarray, grad: int, slope: Any, begin: int, end: int, num_heads: int, width: int,
    ) -> None:  # fmt: skip
        """Add to ``out`` for rows ``begin:end`` the slopes at their edges times ``grad`` (num_heads, E), of which
        the e-th edge here is the e-th, or that in place ``order[e]`` where that array is not empty."""
        grads, last, num_edges = pointer_to(grad, sample), indptr[end] - 1, len(others)
        row_bytes = num_heads * width * stored_bytes
        for i in range(begin, end):
            for edge in range(indptr[i], indptr[i + 1]):
                prefetch_row(x + int64(others[min(edge + AHEAD, last)]) * x_stride, row_bytes)
                place = int64(order[edge]) if len(order) > 0 else edge
                for head in range(num_heads):
                    before = head * width
                    add_slopes(
                        out + (i * num_heads * width + before) * added_bytes,
                        y + i * y_stride + before * stored_bytes,
                        x + int64(others[edge]) * x_stride + before * stored_bytes,
                        width, grads[head * num_edges + place], slope,
                    )  # fmt: skip

    of_scores = void(int64, *rows, int64, number, int64, int64, int64, int64)
    of_slopes = void(int64, *rows, int32[::1], int64, number, int64, int64, int64, int64)
    for function, what in ((scores, "scores"), (slopes, "slopes")):
        function.__qualname__ = f"{what}_{name}"
    return compiled(of_scores)(scores), compiled(of_slopes)(slopes)


scores_float32, slopes_float32 = _kernels("float32")
scores_float64, slopes_float64 = _kernels("float64")
scores_float16, slopes_float16 = _kernels("float16")
scores_bfloat16, slopes_bfloat16 = _kernels("bfloat16")

#: For each type of rows the functions ``scores`` and ``slopes``; rows of 16 bits have results of float32.
EDGE_SCORES: dict[str, tuple[_Kernel, _Kernel]] = {
    "float32": (scores_float32, slopes_float32),
    "float64": (scores_float64, slopes_float64),
    "float16": (scores_float16, slopes_float16),
    "bfloat16": (scores_bfloat16, slopes_bfloat16),
}

"""Scores of edges by heads of attention, from the rows of both ends: ``vector . leaky_relu(y + x)`` (GATv2), and slopes.

The gradient of a score by either row is the vector times the slopes of the rectifier: 1 where ``y + x`` is above 0.
Slopes are computed anew from both rows, so that nothing of edges x heads x width is held.

Edges are grouped by one end, as in :mod:`dgcl.kernels.edge_sums`: those of row i of ``y`` are
``indptr[i]:indptr[i + 1]`` of ``others``, their rows of ``x``. Rows are (rows, H, D), values of edges (H, E), all of
one type.
"""

from __future__ import annotations

import numpy as np

from dgcl.kernels.compiled import compiled
from dgcl.kernels.copies import prefetch_row
from dgcl.kernels.edge_blocks import AHEAD
from dgcl.kernels.memory import address_of


# Columns are added in lanes side by side; NaN and infinity stay what they are.
@compiled(allocates=False, fastmath={"reassoc", "contract", "nsz"})
def scores(
    y: np.ndarray, x: np.ndarray, indptr: np.ndarray, others: np.ndarray, vector: np.ndarray, slope: float,
    out: np.ndarray, begin: int, end: int,
) -> None:  # fmt: skip
    """Write to ``out`` the scores of the edges of rows ``begin:end``."""
    below, row_bytes, last = vector.dtype.type(slope), x.strides[0], len(others) - 1
    for i in range(begin, end):
        for edge in range(indptr[i], indptr[i + 1]):
            prefetch_row(address_of(x) + np.intp(others[min(edge + AHEAD, last)]) * row_bytes, row_bytes)
            for head in range(len(vector)):
                own, other, weight = y[i, head], x[np.intp(others[edge]), head], vector[head]
                total = weight.dtype.type(0)
                for c in range(len(own)):
                    z = own[c] + other[c]
                    total += weight[c] * (z if z > 0 else z * below)
                out[head, edge] = total


@compiled(allocates=False)
def slopes(
    y: np.ndarray, x: np.ndarray, indptr: np.ndarray, others: np.ndarray, order: np.ndarray, grad: np.ndarray,
    slope: float, out: np.ndarray, begin: int, end: int,
) -> None:  # fmt: skip
    """Add to rows ``begin:end`` of ``out`` for each edge its ``grad`` times slopes; the e-th edge here has place
    ``order[e]`` in ``grad``, or e where that array is empty."""
    factor, row_bytes, last = grad.dtype.type(slope), x.strides[0], len(others) - 1
    for i in range(begin, end):
        for edge in range(indptr[i], indptr[i + 1]):
            prefetch_row(address_of(x) + np.intp(others[min(edge + AHEAD, last)]) * row_bytes, row_bytes)
            place = np.intp(order[edge]) if len(order) else edge
            for head in range(len(grad)):
                own, other, total = y[i, head], x[np.intp(others[edge]), head], out[i, head]
                above = grad[head, place]
                below = above * factor
                for c in range(len(own)):
                    total[c] += above if own[c] + other[c] > 0 else below

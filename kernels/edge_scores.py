"""Computes GATv2's attention scores of edges, and the sums that their gradients need.

The score of an edge is ``vector . leaky_relu(y + x)``, of the rows y and x of its two ends. Its gradient by either row
is the vector times the slopes of leaky_relu: 1 where ``y + x`` is above 0, ``slope`` elsewhere. Slopes are computed
anew from both rows, so no array of edges x heads x width is kept (heads: of attention).
Called by `dgcl/frameworks/csr_ops`. Free to change while scores and gradients agree with a row for each edge in float64
(`tests/dgcl/frameworks/test_csr.py`).
"""

import numpy as np

from dgcl.kernels.compiled import compiled
from dgcl.kernels.copies import prefetch_row
from dgcl.kernels.edge_blocks import AHEAD
from dgcl.kernels.memory import address_of


# Columns are added in lanes side by side; NaN and infinity stay what they are.
@compiled(allocates=False, fastmath={"reassoc", "contract", "nsz"})
def scores_or_slopes(
    y: np.ndarray, x: np.ndarray, indptr: np.ndarray, others: np.ndarray, order: np.ndarray, vector: np.ndarray,
    slope: float, values: np.ndarray, out: np.ndarray, begin: int, end: int,
) -> None:  # fmt: skip
    """Write the scores of the edges of rows ``begin:end`` to ``values``; or add to ``out``, if it has rows, at each
    edge its value times slopes.

    Args:
        y, x, vector, out: (rows, H, D), and (H, D), of one type.
        indptr, others: Of row i of ``y`` the edges are ``indptr[i]:indptr[i + 1]`` of ``others``, their rows of ``x``.
        order: Where the e-th edge stands in ``values``; empty: it is the e-th.
        slope: Of the rectifier, below 0.
        values: (H, E).
    """
    factor, row_bytes, last, forward = vector.dtype.type(slope), x.strides[0], len(others) - 1, len(out) == 0
    for i in range(begin, end):
        for edge in range(indptr[i], indptr[i + 1]):
            prefetch_row(address_of(x) + np.intp(others[min(edge + AHEAD, last)]) * row_bytes, row_bytes)
            place = np.intp(order[edge]) if len(order) else edge
            for head in range(len(vector)):
                own, other = y[i, head], x[np.intp(others[edge]), head]
                if forward:
                    weight, total = vector[head], vector.dtype.type(0)
                    for c in range(len(own)):
                        z = own[c] + other[c]
                        total += weight[c] * (z if z > 0 else z * factor)
                    values[head, place] = total
                else:
                    sums, above = out[i, head], values[head, place]
                    below = above * factor
                    for c in range(len(own)):
                        sums[c] += above if own[c] + other[c] > 0 else below

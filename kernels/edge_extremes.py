"""Finds the largest or smallest element over the edges of each head, column by column, and its tail.

A head is the vertex that edges lead to, a tail the one that they come from: edges of head i are ``indptr[i]:indptr[i +
1]`` of ``tails``. Of equal elements the one with the smallest id wins, whatever the order of the edges; NaN wins over
every number.
Called by `dgcl/aggregation/extreme_kernels`. Free to change while elements and tails are those of a plain Python loop,
ties and NaN included (`tests/kernels/test_edge_extremes.py`).
"""

import numpy as np

from dgcl.kernels.compiled import compiled


@compiled
def extremes(
    x: np.ndarray,
    indptr: np.ndarray,
    tails: np.ndarray,
    ids: np.ndarray,
    largest: bool,
    out: np.ndarray,
    winner: np.ndarray,
) -> None:
    """Write to ``out`` and ``winner`` (heads, F) the extremes of ``x`` (tails, F) and the tails that they are of.

    ``ids`` (tails, F), or (tails, 1) for all columns, break ties. Zeros and -1 where a head has no edge.
    """
    step = 1 if ids.shape[1] > 1 else 0
    for i in range(len(out)):
        for c in range(out.shape[1]):
            out[i, c] = 0
            winner[i, c] = -1
        for e in range(indptr[i], indptr[i + 1]):
            tail = tails[e]
            for c in range(out.shape[1]):
                best, value, won = out[i, c], x[tail, c], winner[i, c]
                if won < 0:
                    better = True
                elif value == best or (value != value and best != best):
                    better = ids[tail, c * step] < ids[won, c * step]
                elif value != value or best != best:  # NaN
                    better = value != value
                else:
                    better = (value > best) == largest
                if better:
                    out[i, c] = value
                    winner[i, c] = tail


@compiled
def scatter_rows(grad: np.ndarray, winner: np.ndarray, out: np.ndarray) -> None:
    """Add each element of ``grad`` (heads, F) to the row of ``out`` (tails, F) that ``winner`` (heads, F) names."""
    for i in range(len(grad)):
        for c in range(grad.shape[1]):
            if winner[i, c] >= 0:
                out[winner[i, c], c] += grad[i, c]

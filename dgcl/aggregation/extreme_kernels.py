"""Finds the largest or smallest elements over each head's edges, and scatters gradients to where they came from.

A kernel on the CPU (:mod:`dgcl.kernels.edge_extremes`), torch's operations on devices. An element's *winner* is the
tail that it came from. Where a head has no edge it is -1 on the CPU; on devices it is the number of tails, where a row
of zeros is appended.
Called by `aggregator`, `extremes`, `contribution_exchange` and `dgcl/cli/warmup`. Free to change while the smallest id
wins among equals, NaN is beyond all else, and gradients go to winners (`tests/dgcl/aggregation/test_extremes.py`), with
the same bits on devices (`tests/dgcl/pretended/test_pretended.py`).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.kernels.edge_extremes import extremes, scatter_rows

_MOST = 1 << 24  # elements of a temporary of all edges


class Segments:
    """Edges grouped by their heads.

    Args:
        indptr: ``(heads + 1,)``, where each head's edges begin.
        tails: ``(E,)``.
        device: Where rows are.
    """

    def __init__(self, indptr: NDArray[np.int64], tails: NDArray[np.int32], device: torch.device) -> None:
        self._indptr, self._tails, self._num_heads = indptr, tails, len(indptr) - 1
        if device.type != "cpu":
            ends = np.repeat(np.arange(self._num_heads), np.diff(indptr)), tails.astype(np.int64)
            self._ends = [torch.from_numpy(each).to(device)[:, None] for each in ends]

    def extremes(self, x: Tensor, ids: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
        """``(heads, F)`` the extremes of ``x`` ``(tails, F)`` and their winners; zeros where a head has no edge.

        Of equal elements the one with the smallest id wins: ``ids`` has ``(tails, F)``, or ``(tails, 1)`` for all
        columns. NaN is beyond all else.
        """
        if x.device.type == "cpu":
            out = x.new_empty(self._num_heads, x.shape[1])
            winner = torch.empty(out.shape, dtype=torch.int32, device="cpu")
            extremes(x.numpy(), self._indptr, self._tails, ids.numpy(), largest, out.numpy(), winner.numpy())
            return out, winner
        step = max(_MOST // max(len(self._tails), 1), 1)
        pieces = zip(x.split(step, 1), ids.expand(-1, x.shape[1]).split(step, 1), strict=True)
        out, winner = (
            torch.cat(each, 1)
            for each in zip(*(self._extremes(*each, largest) for each in pieces), strict=True)
        )
        return out, winner

    def _extremes(self, x: Tensor, ids: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
        shape = self._num_heads, x.shape[1]
        heads, tails = (each.expand(-1, x.shape[1]) for each in self._ends)
        keys, values = (ids.gather(0, tails), tails), x.gather(0, tails)
        least = x.new_full(shape, -torch.inf if largest else torch.inf)
        best = least.scatter_reduce(0, heads, values, "amax" if largest else "amin")
        remaining = (values == best.gather(0, heads)) | values.isnan()
        for key in keys:
            nobody = torch.iinfo(key.dtype).max
            places = torch.where(remaining, key, nobody)
            winner = places.new_full(shape, nobody).scatter_reduce(0, heads, places, "amin")
            remaining = remaining & (places == winner.gather(0, heads))
        winner = winner.clamp(max=len(x))
        return torch.cat([x, x.new_zeros(1, x.shape[1])]).gather(0, winner), winner


def scatter(grad: Tensor, winner: Tensor, num_rows: int) -> Tensor:
    """``(num_rows, F)``: each element of ``grad`` ``(heads, F)`` added to the row that is its winner, heads ascending.

    On CUDA the order is fixed under ``torch.use_deterministic_algorithms(True)`` alone.
    """
    if grad.device.type != "cpu":
        return grad.new_zeros(num_rows + 1, grad.shape[1]).scatter_add_(0, winner, grad)[:num_rows]
    rows = grad.new_zeros(num_rows, grad.shape[1])
    scatter_rows(grad.numpy(), winner.numpy(), rows.numpy())
    return rows


def prepare() -> None:
    """Compile for float32 and float64, so that no peer waits for it in a call."""
    segments = Segments(np.zeros(1, np.int64), np.zeros(0, np.int32), torch.device("cpu"))
    for dtype in (torch.float32, torch.float64):
        rows = torch.zeros(0, 1, dtype=dtype, device="cpu")
        scatter(*segments.extremes(rows, rows.long(), True), 0)

"""Maxima and minima over in-edges, column by column: exact where a rank has all in-edges of its vertices.

Halo rows are expanded, the extremes found where the in-edges are, and in the backward each element's gradient goes to
the row that it came from. Of equal elements that of the smallest global id wins, for any number of ranks. On a grid of
depth 1 the in-edges of a slice are on one rank, which may not be the owner: then a fold, of one contributor for each
row, brings the result to its place.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from dgcl.kernels.edge_extremes import extremes, scatter_rows
from dgcl.relation.local_graph import LocalGraph
from dgcl.transport.base import Transport

__all__ = ["prepare", "reduce_extremes"]


class _Reducing(Protocol):
    """What the reduction needs of a communicator: the rank's edges, and what moves its rows."""

    local: LocalGraph
    transport: Transport


def prepare() -> None:
    """Compile for float32 and float64, so that no peer waits for it in a call."""
    indices = torch.zeros(1, dtype=torch.int32).numpy()
    wide = torch.zeros(1, dtype=torch.int64).numpy()
    for dtype in (torch.float32, torch.float64):
        rows, winner = torch.zeros(0, 1, dtype=dtype).numpy(), torch.zeros(0, 1, dtype=torch.int32).numpy()
        extremes(rows, wide, indices, wide, True, rows, winner)
        scatter_rows(rows, winner, rows)


def reduce_extremes(
    x: Tensor, comm: _Reducing, exchanges: tuple[int | None, int | None], largest: bool
) -> Tensor:
    """``(num_owned, F)``: for each owned row the largest, or smallest, elements of its in-neighbours' rows.

    Args:
        x: ``(num_owned, F)`` floating point on the CPU; 16-bit floats are compared as float32, which is exact.
        comm: The communicator.
        exchanges: The numbers of the exchanges that bring halo rows, and results to their owners; None: no rank sends
            a row.
        largest: Maxima; else minima.

    Returns:
        Of x's type; zeros where a vertex has no in-edge. Differentiable once.
    """
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    out: Tensor = _Extremes.apply(x.float() if narrow else x, comm, exchanges, largest)
    return out.to(x.dtype)


class _Extremes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, comm: _Reducing, exchanges: tuple[int | None, int | None], largest: bool
    ) -> Tensor:
        local, (expand, fold) = comm.local, exchanges
        rows = x.contiguous()
        if expand is not None:
            rows = comm.transport.expand(rows, expand)
        out = x.new_empty(local.num_heads, x.shape[1])
        winner = torch.empty(out.shape, dtype=torch.int32)
        extremes(
            rows.numpy(), local.indptr, local.indices, local.local_ids, largest, out.numpy(), winner.numpy()
        )
        ctx.comm, ctx.exchanges, ctx.num_rows = comm, exchanges, len(rows)
        ctx.save_for_backward(winner)
        return out if fold is None else comm.transport.fold(out, fold)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (winner,) = ctx.saved_tensors
        expand, fold = ctx.exchanges
        grad = grad.resolve_neg().contiguous()
        if fold is not None:
            grad = ctx.comm.transport.expand(grad, fold)
        rows = grad.new_zeros(ctx.num_rows, grad.shape[1])
        scatter_rows(grad.numpy(), winner.numpy(), rows.numpy())
        return rows if expand is None else ctx.comm.transport.fold(rows, expand), None, None, None

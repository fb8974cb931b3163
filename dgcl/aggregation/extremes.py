"""Maxima and minima over in-edges, column by column: exact where a rank has all in-edges of its vertices.

Halo rows are expanded, the extremes found where the heads are, and in the backward each element's gradient goes to the
row that it came from. Of equal elements that of the smallest global id wins, for any number of ranks.
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


def reduce_extremes(x: Tensor, comm: _Reducing, exchange: int, largest: bool) -> Tensor:
    """``(num_owned, F)``: for each owned row the largest, or smallest, elements of its in-neighbours' rows.

    Args:
        x: ``(num_owned, F)`` floating point on the CPU; 16-bit floats are compared as float32, which is exact.
        comm: The communicator.
        exchange: The number of the exchange that brings halo rows.
        largest: Maxima; else minima.

    Returns:
        Of x's type; zeros where a vertex has no in-edge. Differentiable once.
    """
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    out: Tensor = _Extremes.apply(x.float() if narrow else x, comm, exchange, largest)
    return out.to(x.dtype)


class _Extremes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: _Reducing, exchange: int, largest: bool) -> Tensor:
        local = comm.local
        rows = comm.transport.expand(x.contiguous(), exchange)
        out, winner = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int32)
        extremes(
            rows.numpy(), local.indptr, local.indices, local.local_ids, largest, out.numpy(), winner.numpy()
        )
        ctx.comm, ctx.exchange, ctx.num_rows = comm, exchange, len(rows)
        ctx.save_for_backward(winner)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (winner,) = ctx.saved_tensors
        rows = grad.new_zeros(ctx.num_rows, grad.shape[1])
        scatter_rows(grad.resolve_neg().contiguous().numpy(), winner.numpy(), rows.numpy())
        return ctx.comm.transport.fold(rows, ctx.exchange), None, None, None

"""Maxima and minima over in-edges, column by column: exact wherever edges are summed.

Halo rows are expanded, the extremes found where the edges are, and in the backward each element's gradient goes to
the row that it came from. Of equal elements that of the smallest global id wins, for any number of ranks.

Where a row's edges are on several ranks, each of these sends the row's owner what it found and the ids that it is of
(:mod:`dgcl.aggregation.contributions`), and the owner compares; a gradient goes back to the rank that won. On a grid of
depth 1 the in-edges of a slice are on one rank, which may not be the owner: then a fold, of one contributor for each
row, brings the result to its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.aggregation.aggregating import Aggregating
from dgcl.aggregation.contributions import Contributions
from dgcl.aggregation.once import once_differentiable
from dgcl.kernels.edge_extremes import extremes, scatter_rows
from dgcl.ranks.tensors import is_transformed, mark_of
from dgcl.transport.steps import FOR_MAX, FOR_MIN

__all__ = ["prepare", "reduce_extremes"]


def prepare() -> None:
    """Compile for float32 and float64, so that no peer waits for it in a call."""
    indices = torch.zeros(1, dtype=torch.int32, device="cpu").numpy()
    wide = torch.zeros(1, dtype=torch.int64, device="cpu").numpy()
    for dtype in (torch.float32, torch.float64):
        rows, winner = (
            torch.zeros(0, 1, dtype=dtype, device="cpu").numpy(),
            torch.zeros(0, 1, dtype=torch.int32, device="cpu").numpy(),
        )
        extremes(rows, wide, indices, wide[:, None], True, rows, winner)
        scatter_rows(rows, winner, rows)


def reduce_extremes(
    x: Tensor,
    comm: Aggregating,
    exchanges: tuple[int | None, int | None, Contributions | None],
    largest: bool,
) -> Tensor:
    """``(num_owned, F)``: for each owned row the largest, or smallest, elements of its in-neighbours' rows.

    Args:
        x: ``(num_owned, F)`` floating point on the CPU; 16-bit floats are compared as float32, which is exact.
        comm: The communicator.
        exchanges: The numbers of the exchanges that bring halo rows, and the only rank's results for a row to its
            owner; the one that brings all ranks' results. None: no rank sends a row.
        largest: Maxima; else minima.

    Returns:
        Of x's type; zeros where a vertex has no in-edge. Differentiable once.

    Raises:
        NotImplementedError: Under ``torch.func``.
    """
    if is_transformed():
        raise NotImplementedError(
            "maxima and minima of an aggregator cannot run under torch.func (grad, vmap, jvp); use torch.autograd.grad"
        )
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    out: Tensor = _Extremes.apply(x.float() if narrow else x, comm, exchanges, largest)
    return out.to(x.dtype)


class _Extremes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        comm: Aggregating,
        exchanges: tuple[int | None, int | None, Contributions | None],
        largest: bool,
    ) -> Tensor:
        local, (expand, fold, contributions) = comm.local, exchanges
        rows = x.contiguous()
        if expand is not None:
            halo = comm.transport.begin_expand(rows, expand, wait=True, purpose=_purpose(largest)).wait()
            rows = torch.cat([rows, halo])
        out = x.new_empty(local.num_heads, x.shape[1])
        winner = torch.empty(out.shape, dtype=torch.int32, device="cpu")
        ids = local.local_ids[:, None]
        extremes(rows.numpy(), local.indptr, local.indices, ids, largest, out.numpy(), winner.numpy())
        ctx.comm, ctx.exchanges, ctx.num_rows = comm, exchanges, len(rows)
        if contributions is not None:
            out, won = _best(out, winner, comm, contributions, largest)
            ctx.save_for_backward(mark_of(comm), winner, won)
            return out
        ctx.save_for_backward(mark_of(comm), winner)
        return out if fold is None else comm.transport.fold(out, fold)

    @staticmethod
    @once_differentiable("a maximum or minimum over edges")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        _, winner, *won = ctx.saved_tensors
        expand, fold, contributions = ctx.exchanges
        grad = grad.resolve_neg().contiguous()
        if contributions is not None:
            grad = _grad_of_found(grad, won[0], len(winner), ctx.comm, contributions)
        elif fold is not None:
            grad = ctx.comm.transport.expand(grad, fold)
        rows = grad.new_zeros(ctx.num_rows, grad.shape[1])
        scatter_rows(grad.numpy(), winner.numpy(), rows.numpy())
        return rows if expand is None else ctx.comm.transport.fold(rows, expand), None, None, None


def _purpose(largest: bool) -> int:
    return FOR_MAX if largest else FOR_MIN


def _best(
    found: Tensor, winner: Tensor, comm: Aggregating, contributions: Contributions, largest: bool
) -> tuple[Tensor, Tensor]:
    """Compare what this rank and others found for its owned rows.

    Args:
        found: ``(num_heads, F)`` for owned rows, then for others'.
        winner: The same, the local rows that it is of.
        comm: The communicator.
        contributions: The exchange.
        largest: Maxima; else minima.

    Returns:
        ``(num_owned, F)`` results; ``(M, F)`` int32 the candidates that they are of.
    """
    num_owned, width, rows = comm.local.num_owned, found.shape[1], contributions.rows
    sent = contributions.sent + num_owned
    ids = torch.from_numpy(np.append(comm.local.local_ids, -1))  # what is of no edge, -1, is of no id
    # What is found travels together with the ids that it is of, which as integers arrive bit by bit.
    word = torch.int32 if found.element_size() == 4 else torch.int64
    kind = word if comm.num_nodes * comm.grid.slices < 2**31 else torch.int64
    found_ids = ids[winner[sent]].to(kind).view(word)
    items = comm.transport.begin_expand(
        torch.cat([found[sent].view(word), found_ids], 1),
        contributions.exchange,
        wait=True,
        purpose=_purpose(largest),
    ).wait()
    values = torch.cat([found[rows], items[:, :width].contiguous().view(found.dtype)])
    of_ids = torch.cat([ids[winner[rows]], items[:, width:].contiguous().view(kind).long()])
    best, won = (
        values.new_empty(len(rows), width),
        torch.empty(len(rows), width, dtype=torch.int32, device="cpu"),
    )
    indptr, candidates = contributions.indptr, contributions.candidates
    extremes(values.numpy(), indptr, candidates, of_ids.numpy(), largest, best.numpy(), won.numpy())
    return found[:num_owned].index_copy(0, rows, best), won


def _grad_of_found(
    grad: Tensor, won: Tensor, num_heads: int, comm: Aggregating, contributions: Contributions
) -> Tensor:
    """``(num_heads, F)``: the gradient of what this rank found, from that of its owned rows' results."""
    num_owned, rows = len(grad), contributions.rows
    of_candidates = grad.new_zeros(len(rows) + contributions.num_items, grad.shape[1])
    scatter_rows(grad[rows].numpy(), won.numpy(), of_candidates.numpy())
    returned = grad.new_zeros(num_heads - num_owned, grad.shape[1])
    folding = comm.transport.begin_fold(of_candidates[len(rows) :], contributions.exchange, wait=True)
    folding.wait(returned)  # each row has one contributor: nothing is added twice
    out = grad.new_empty(num_heads, grad.shape[1])
    out[:num_owned] = grad
    out[rows] = of_candidates[: len(rows)]
    out[contributions.sent + num_owned] = returned
    return out

"""Maxima and minima over in-edges, element by element, with gradients, whichever ranks have the edges.

Ranks that have the edges get the halo rows and find extremes; a gradient goes to the row that its element came from. Of
equal elements that of the smallest global id wins, for any number of ranks. Where several ranks have a row's edges,
each sends the owner what it found and the ids (:mod:`dgcl.aggregation.contribution_exchange`); the owner compares, and
the gradient goes to the rank that won. On a grid of depth 1 one rank has all in-edges of a slice, and is perhaps not
the owner: then a fold, of one contributor for each row, brings the result there.
Called by `aggregator`. Free to change while values, ties and gradients are those of plain Python on the whole graph
(`tests/dgcl/aggregation/test_extremes.py`; grids: `tests/dgcl/grid/test_aggregation.py`).
"""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from dgcl.aggregation.aggregating import Aggregating
from dgcl.aggregation.contribution_exchange import Contributions
from dgcl.aggregation.extreme_kernels import Segments, scatter
from dgcl.aggregation.once import once_differentiable
from dgcl.ranks.tensors import mark_of, refuse_transforms
from dgcl.transport.steps import FOR_MAX, FOR_MIN

#: Of each communicator its edges; the ids of its local rows, and -1 behind them for what is of no edge.
_edges: WeakKeyDictionary[Any, tuple[Segments, Tensor]] = WeakKeyDictionary()


def reduce_extremes(
    x: Tensor,
    comm: Aggregating,
    exchanges: tuple[int | None, int | None, Contributions | None],
    largest: bool,
) -> Tensor:
    """``(num_owned, F)``: for each owned row the largest, or smallest, elements of its in-neighbours' rows.

    Args:
        x: ``(num_owned, F)`` floating point; 16-bit floats are compared as float32, which is exact.
        comm: The communicator.
        exchanges: The numbers of the exchanges that bring halo rows, and the only rank's results for a row to its
            owner; the one that brings all ranks' results. None: no rank sends a row.
        largest: Maxima; else minima.

    Returns:
        Of x's type; zeros where a vertex has no in-edge. Differentiable once.

    Raises:
        NotImplementedError: Under ``torch.func``.
    """
    refuse_transforms("maxima and minima of an aggregator")
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
        expand, fold, contributions = exchanges
        if comm not in _edges:
            local, device = comm.local, comm.device
            ids = torch.from_numpy(np.append(local.local_ids, -1)[:, None]).to(device)
            _edges[comm] = Segments(local.indptr, local.indices, device), ids
        segments, ids = _edges[comm]
        rows = x.contiguous()
        if expand is not None:
            halo = comm.transport.begin_expand(rows, expand, wait=True, purpose=_purpose(largest)).wait()
            rows = torch.cat([rows, halo])
        out, winner = segments.extremes(rows, ids, largest)
        ctx.comm, ctx.exchanges, ctx.num_rows = comm, exchanges, len(rows)
        if contributions is not None:
            out, won = _best(out, ids[:, 0], winner, comm, contributions, largest)
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
        rows = scatter(grad, winner, ctx.num_rows)
        return rows if expand is None else ctx.comm.transport.fold(rows, expand), None, None, None


def _purpose(largest: bool) -> int:
    return FOR_MAX if largest else FOR_MIN


def _best(
    extremes: Tensor,
    ids: Tensor,
    winner: Tensor,
    comm: Aggregating,
    contributions: Contributions,
    largest: bool,
) -> tuple[Tensor, Tensor]:
    """Compare what this rank and others found for its owned rows.

    Args:
        extremes: ``(num_heads, F)`` for owned rows, then for others'.
        ids: ``(num_local + 1,)`` of local rows, and -1.
        winner: As of ``extremes``, the local rows that it is of.
        comm: The communicator.
        contributions: The exchange.
        largest: Maxima; else minima.

    Returns:
        ``(num_owned, F)`` results; ``(M, F)`` the candidates that they are of.
    """
    num_owned, width, rows = comm.local.num_owned, extremes.shape[1], contributions.rows
    sent = contributions.sent + num_owned
    # What is found travels together with the ids that it is of, which as integers arrive bit by bit.
    word = torch.int32 if extremes.element_size() == 4 else torch.int64
    kind = word if comm.num_nodes * comm.grid.slices < 2**31 else torch.int64
    found_ids = ids[winner[sent]].to(kind).view(word)
    items = comm.transport.begin_expand(
        torch.cat([extremes[sent].view(word), found_ids], 1),
        contributions.exchange,
        wait=True,
        purpose=_purpose(largest),
    ).wait()
    values = torch.cat([extremes[rows], items[:, :width].contiguous().view(extremes.dtype)])
    of_ids = torch.cat([ids[winner[rows]], items[:, width:].contiguous().view(kind).long()])
    best, won = contributions.candidates.extremes(values, of_ids, largest)
    return extremes[:num_owned].index_copy(0, rows, best), won


def _grad_of_found(
    grad: Tensor, won: Tensor, num_heads: int, comm: Aggregating, contributions: Contributions
) -> Tensor:
    """``(num_heads, F)``: the gradient of what this rank found, from that of its owned rows' results."""
    num_owned, rows = len(grad), contributions.rows
    of_candidates = scatter(grad[rows], won, len(rows) + contributions.num_items)
    returned = grad.new_zeros(num_heads - num_owned, grad.shape[1])
    folding = comm.transport.begin_fold(of_candidates[len(rows) :], contributions.exchange, wait=True)
    folding.wait(returned)  # each row has one contributor: nothing is added twice
    out = grad.new_empty(num_heads, grad.shape[1])
    out[:num_owned] = grad
    out[rows] = of_candidates[: len(rows)]
    out[contributions.sent + num_owned] = returned
    return out

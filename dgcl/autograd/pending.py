"""Exchanges of halo rows alone for autograd, with a start and a separate wait.

:func:`dgcl.graph_allgather` returns owned and halo rows as one tensor. Here only halo rows are returned, and gradients
of halo rows are added to those of owned rows in place. Between start and wait a rank can compute on the rows it has
(:mod:`dgcl.transport.shared_memory.started`).
Called by users, `dgcl/api`, `dgcl/bench/transports` and `dgcl/communicator`. Free to change while halo rows are the
owners' bit for bit, their gradients are added to owned rows, and rows that change before the wait, a second call before
it, or a dropped exchange are errors (`tests/dgcl/autograd/test_pending.py`).
"""

from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.once import once_differentiable
from dgcl.autograd.operators import Exchanging
from dgcl.ranks.tensors import mark_of, refuse_transforms
from dgcl.transport.base import StartedExpand


class PendingRows:
    """Halo rows that are under way; call :meth:`wait` before any other call on the communicator.

    The given rows must not change until then. If it is dropped without a wait, the communicator fails, because peers
    would wait for this rank.
    """

    def __init__(self, comm: Exchanging, rows: Tensor, exchange: int) -> None:
        refuse_transforms("an exchange of halo rows alone")
        self._comm, self._given, self._exchange = comm, rows, exchange
        self._rows: Tensor | None = None
        self._started: StartedExpand | None = comm.transport.begin_expand(rows.detach(), exchange)

    def wait(self) -> Tensor:
        """Wait for the halo rows and return them, ``(num_halo, *F)``; later calls return the same tensor.

        They are differentiable once in the rows that were given.

        Raises:
            CommError: A peer is lost, late, or makes another call.
            ValueError: The communicator was closed meanwhile, or this process is a fork of the rank's.
            RuntimeError: The rows were changed in place meanwhile.
        """
        if self._rows is None:
            assert self._started is not None
            self._rows, self._started = self._started.wait(), None
        if torch.is_grad_enabled() and self._given.requires_grad and self._rows.grad_fn is None:
            self._rows = _HaloRows.apply(self._given, self._rows, self._comm, self._exchange)
        return self._rows


def _in_parts(rows: Tensor) -> Tensor:
    """The same rows, of complex numbers as their parts, whose sums are those of the numbers."""
    return torch.view_as_real(rows) if rows.is_complex() else rows


def _check_into(into: Tensor, halo_rows: Tensor) -> None:
    """Raise unless rows can be added to ``into`` in place."""
    if into.dtype != halo_rows.dtype:
        raise TypeError(f"into must be of the type of halo_rows, {halo_rows.dtype} (got {into.dtype})")
    if into.is_conj():
        raise ValueError(
            "into is a conjugate that is not carried out, and has no memory to add to; resolve_conj() it"
        )
    if into.shape[1:] != halo_rows.shape[1:]:
        raise ValueError(
            f"into must have rows of the shape of halo_rows, {tuple(halo_rows.shape[1:])}"
            f" (got {tuple(into.shape[1:])})"
        )


def fold_halo(comm: Exchanging, halo_rows: Tensor, into: Tensor, exchange: int = 0) -> Tensor:
    """Add rows ``(num_halo, *F)`` to their owners' rows ``into`` ``(num_owned, *F)``, in place. Collective."""
    refuse_transforms("fold_halo")
    _check_into(into, halo_rows)
    comm.transport.begin_fold(_in_parts(halo_rows.resolve_conj()), exchange, wait=True).wait(_in_parts(into))
    return into


class _HaloRows(torch.autograd.Function):
    """Connects halo rows in the autograd graph to the owned rows from which they were made."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, halo: Tensor, comm: Exchanging, exchange: int) -> Tensor:
        ctx.comm, ctx.exchange, ctx.shape = comm, exchange, rows.shape
        ctx.save_for_backward(mark_of(comm))
        return halo.detach()  # no view, which could not be changed in place

    @staticmethod
    @once_differentiable("an exchange of halo rows alone")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        total = ctx.comm.transport.empty(ctx.shape, grad.dtype).zero_()  # new memory takes longer to fill
        return fold_halo(ctx.comm, grad, total, ctx.exchange), None, None, None

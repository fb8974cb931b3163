"""Halo rows alone: exchanges that leave owned rows where they are, and that are started and finished apart.

:func:`dgcl.graph_allgather` returns owned and halo rows as one tensor, so it copies the owned ones. Here only
halo rows are returned, and gradients of halo rows are added to those of owned rows in place; so nothing is
touched but what travels. Between start and wait a rank can compute on what it has.

At the start everything is sent whose receiver is ready; the rest when the result is waited for. No thread
works in between: with a rank for each core there is none to spare.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dgcl.kernels.rows import add_arrivals
from dgcl.transport.shared_memory.abort_guard import AbortGuard
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.engine import EXPAND, FOLD

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


class PendingRows:
    """Halo rows on their way; :meth:`wait` for them before any other call on the communicator.

    The rows that were given must not change until then. Dropped without being waited for, it fails the
    communicator, because peers would wait for this rank.
    """

    def __init__(self, comm: Communicator, rows: Tensor) -> None:
        self._comm, self._given = comm, rows
        self._rows: Tensor | None = None
        self._exchange: StartedExpand | None = None
        if comm._exchange is not None:  # a baseline, which knows nothing of starting
            self._rows = comm._expand_now(_as_it_reads(rows.detach()))[comm.num_owned :]
        else:
            self._exchange = StartedExpand(comm, rows.detach())

    def wait(self) -> Tensor:
        """``(num_halo, *F)``, differentiable once in the rows that were given; the same tensor every time.

        Raises:
            CommError: A peer is lost, late, or makes another call.
            ValueError: The communicator was closed meanwhile, or this process is a fork of the rank's.
            RuntimeError: The rows were changed in place meanwhile.
        """
        if self._rows is None:
            assert self._exchange is not None
            self._rows = self._exchange.finish()
        if torch.is_grad_enabled() and self._given.requires_grad and self._rows.grad_fn is None:
            self._rows = _HaloRows.apply(self._given, self._rows, self._comm)
        return self._rows


class StartedExpand:
    """An expand of halo rows that is under way, or, with ``wait``, done."""

    def __init__(self, comm: Communicator, rows: Tensor, wait: bool = False) -> None:
        runtime, program = comm._runtime, comm._program
        self._comm, self._source = comm, rows
        self._version = None if wait else _version(rows)  # who waits gives nobody time to change them
        self._given = _as_it_reads(rows).contiguous()
        runtime.check_usable()
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        # Halo rows and, behind them, relay rows: the engine counts both from the first row that is not owned.
        block = runtime.allocate((program.num_halo + program.num_relay) * kind.row_bytes)
        segment, offset = block.segment, block.offset
        places = (
            (segment, offset - program.num_owned * kind.row_bytes),
            (segment, offset + program.num_halo * kind.row_bytes),
        )
        buffers = (self._given.data_ptr(), program.num_owned, block.address)
        self._over = False
        with AbortGuard(runtime):
            self._call = runtime.start(runtime.tasks[EXPAND], kind, places, buffers)
            # Made now, while peers are busy, and not when all wait for the last rank.
            self._halo = comm._as_tensor(block, (program.num_halo, *rows.shape[1:]), rows.dtype)
            self._call.given = None if wait else self._given
            self._done = runtime.drive(self._call, wait)

    def finish(self) -> Tensor:
        """``(num_halo, *F)``."""
        comm = self._comm
        comm._runtime.check_present()
        if self._version is not None and _version(self._source) != self._version:
            comm.fail("rows of a started exchange were changed before they were sent")
            raise RuntimeError(
                "rows were changed in place between the start of their exchange and wait(); change a copy"
            )
        with AbortGuard(comm._runtime, self._call.number):
            if not self._done:
                self._done = comm._runtime.drive(self._call)
            self._over = True
            comm._runtime.record(self._call)
        return self._halo

    def __del__(self) -> None:
        if not self.__dict__.get("_over", True) and not self.__dict__.get("_done", False):
            self._comm.fail("rows of a started exchange were dropped and nobody waited for them")


class StartedFold:
    """A fold of halo rows that is under way, or, with ``wait``, has arrived: their owners will add them to what they
    have. Dropped before it is finished, it fails the communicator, because peers would wait for this rank."""

    def __init__(self, comm: Communicator, halo_rows: Tensor, wait: bool = False) -> None:
        runtime, program = comm._runtime, comm._program
        self._comm, self._given = comm, _as_it_reads(halo_rows).contiguous()
        kind = row_type(halo_rows.dtype, math.prod(halo_rows.shape[1:]))
        assert kind.sum_code >= 0, halo_rows.dtype
        runtime.check_usable()
        self._arrivals = runtime.allocate(program.num_arrivals * kind.row_bytes)
        place = (self._arrivals.segment, self._arrivals.offset)
        # The engine counts rows from the first owned one; it reads none of those.
        first = self._given.data_ptr() - program.num_owned * kind.row_bytes
        buffers = (first, program.num_local, self._arrivals.address)
        self._over = False
        with AbortGuard(runtime):
            self._call = runtime.start(runtime.tasks[FOLD], kind, (place, place), buffers)
            self._call.given = None if wait else self._given
            self._done = runtime.drive(self._call, wait)

    def __del__(self) -> None:
        if not self.__dict__.get("_over", True):
            self._comm.fail("a started fold was dropped before it was finished")

    def finish(self, into: Tensor) -> Tensor:
        """Add what has arrived to ``into`` ``(num_owned, *F)``, contiguous, in place."""
        runtime, program, kind = self._comm._runtime, self._comm._program, self._call.row_type
        runtime.check_present()
        with AbortGuard(runtime, self._call.number):
            if not self._done:
                self._done = runtime.drive(self._call)
            add_arrivals(
                kind.sum_code,
                into.data_ptr(),
                program.num_owned,
                program.arrival_rows,
                program.arrival_slots,
                self._arrivals.address,
                kind.row_bytes,
            )
            self._over = True
            runtime.pool.release(self._arrivals)
            runtime.record(self._call)
        if not into.is_inference():
            torch.autograd.graph.increment_version(into)  # autograd must know that it was written to
        return into


def fold_halo(comm: Communicator, halo_rows: Tensor, into: Tensor) -> Tensor:
    """Add rows ``(num_halo, *F)`` to their owners' rows ``into`` ``(num_owned, *F)``, in place. Collective."""
    if into.shape[1:] != halo_rows.shape[1:]:
        raise ValueError(
            f"into must have rows of the shape of halo_rows, {tuple(halo_rows.shape[1:])}"
            f" (got {tuple(into.shape[1:])})"
        )
    if into.is_complex():  # the sum of complex numbers is that of their parts
        fold_halo(comm, torch.view_as_real(halo_rows.resolve_conj()), torch.view_as_real(into))
        return into
    if comm._exchange is None and into.is_contiguous():
        return StartedFold(comm, halo_rows, wait=True).finish(into)
    zeros = torch.zeros_like(into)
    return into.add_(comm._fold_now(torch.cat([zeros, halo_rows])))


def _as_it_reads(rows: Tensor) -> Tensor:
    """Rows whose memory holds what they read as: lazy conjugation and negation are carried out."""
    return rows.resolve_conj().resolve_neg()


def _version(rows: Tensor) -> int | None:
    """How often rows were changed in place; None in inference mode, which does not count."""
    return None if rows.is_inference() else rows._version


class _HaloRows(torch.autograd.Function):
    """Ties halo rows to the owned rows that they were made from."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, halo: Tensor, comm: Communicator) -> Tensor:
        ctx.comm, ctx.shape = comm, rows.shape
        return halo.view_as(halo)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return fold_halo(ctx.comm, grad, grad.new_zeros(ctx.shape)), None, None

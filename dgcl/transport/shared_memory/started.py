"""Exchanges of halo rows alone, with a start and a separate wait.

An expand returns owned and halo rows as one tensor, so it copies the owned ones. Here an expand returns only halo
rows, and a fold adds to owned rows in place, so no other rows are touched. Between start and wait a rank can compute
on the rows it has.

The start sends everything whose receiver is ready; the wait sends the rest. No thread works in between: with one rank
per core no core is free for it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.kernels.row_moves import put_arrivals
from dgcl.kernels.rows import add_arrivals
from dgcl.transport.row_checks import version_of
from dgcl.transport.shared_memory.abort_guard import AbortGuard
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.engine import EXPAND, FOLD
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.results import as_tensor
from dgcl.transport.shared_memory.sequence import CallSequence


class StartedExpand:
    """An expand of halo rows that is under way, or, with ``wait``, done.

    The given rows must not change until it is over. If it is dropped before that, the communicator fails, because
    peers would wait for this rank.
    """

    def __init__(
        self, runtime: Runtime, rows: Tensor, exchange: int = 0, wait: bool = False, purpose: int = 0
    ) -> None:
        program = runtime.programs[exchange]
        self._runtime, self._source = runtime, rows
        self._version = None if wait else version_of(rows)  # a caller that waits cannot change them meanwhile
        self._given = _materialised(rows).contiguous()
        runtime.check_usable()
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        # Halo rows, then relay rows: the engine counts both from the first row that is not owned.
        task = runtime.tasks[2 * exchange + EXPAND]
        block = runtime.allocate(task.room * kind.row_bytes)
        segment, offset = block.segment, block.offset
        places = (
            (segment, offset - program.num_owned * kind.row_bytes),
            (segment, offset + program.num_halo * kind.row_bytes),
        )
        buffers = (self._given.data_ptr(), program.num_owned, block.address)
        self._over = False
        with AbortGuard(runtime):
            self._call = runtime.start(task, kind, places, buffers, purpose)
            # Made now, while peers are busy, and not later, when all ranks wait for the last one.
            self._halo = as_tensor(runtime.pool, block, (program.num_halo, *rows.shape[1:]), rows.dtype)
            self._call.given = None if wait else self._given
            self._done = runtime.run(self._call, wait)

    def wait(self) -> Tensor:
        """Wait for the halo rows and return them, ``(num_halo, *F)``.

        Raises:
            CommError: A peer is lost, late, or makes another call.
            ValueError: The communicator was closed meanwhile, or this process is a fork of the rank's.
            RuntimeError: The rows were changed in place meanwhile.
        """
        runtime = self._runtime
        runtime.check_present()
        if self._version is not None and version_of(self._source) != self._version:
            _fail(runtime, "rows of a started exchange were changed before they were sent")
            raise RuntimeError(
                "rows were changed in place between the start of their exchange and wait(); change a copy"
            )
        with AbortGuard(runtime, self._call.number):
            if not self._done:
                self._done = runtime.run(self._call)
            self._over = True
            runtime.record(self._call)
        return self._halo

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not exiting() and not self.__dict__.get("_over", True) and not self.__dict__.get("_done", False):
            _fail(self._runtime, "rows of a started exchange were dropped and nobody waited for them")


class StartedFold:
    """A fold of halo rows that is under way, or, with ``wait``, has arrived.

    If it is dropped before the wait, the communicator fails, because peers would wait for this rank.
    """

    def __init__(
        self, runtime: Runtime, halo_rows: Tensor, exchange: int = 0, wait: bool = False, purpose: int = 0
    ) -> None:
        program = runtime.programs[exchange]
        self._runtime, self._program = runtime, program
        self._given = _materialised(halo_rows).contiguous()
        kind = row_type(halo_rows.dtype, math.prod(halo_rows.shape[1:]))
        assert kind.sum_code >= 0, halo_rows.dtype
        runtime.check_usable()
        task = runtime.tasks[2 * exchange + FOLD]
        self._arrivals = runtime.allocate(task.room * kind.row_bytes)
        place = (self._arrivals.segment, self._arrivals.offset)
        # The engine counts rows from the first owned one; it reads none of those.
        first = self._given.data_ptr() - program.num_owned * kind.row_bytes
        buffers = (first, program.num_local, self._arrivals.address)
        self._over = False
        with AbortGuard(runtime):
            self._call = runtime.start(task, kind, (place, place), buffers, purpose)
            self._call.given = None if wait else self._given
            self._done = runtime.run(self._call, wait)

    def wait(self, into: Tensor, fresh: Tensor | None = None) -> Tensor:
        """Add the arriving rows to ``into``, ``(num_owned, *F)``, in place, in a fixed order; return ``into``.

        With ``fresh`` (:class:`dgcl.transport.base.StartedFold`) they are written there instead.

        Raises:
            CommError, ValueError: As :meth:`StartedExpand.wait`.
        """
        runtime, program, kind = self._runtime, self._program, self._call.row_type
        sums = into if into.is_contiguous() else into.contiguous()
        runtime.check_present()
        with AbortGuard(runtime, self._call.number):
            if not self._done:
                self._done = runtime.run(self._call)
            places = (program.num_owned, program.arrival_rows, program.arrival_slots)
            came = (self._arrivals.address, kind.row_bytes)
            if fresh is None:
                add_arrivals(kind.sum_code, sums.data_ptr(), *places, *came)
            else:
                put_arrivals(sums.data_ptr(), *places, *came)
            self._over = True
            runtime.pool.release(self._arrivals)
            runtime.record(self._call)
        if sums is not into:
            return into.copy_(sums)
        if not into.is_inference():
            torch.autograd.graph.increment_version(into)  # autograd must know that it was written to
        return into

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not exiting() and not self.__dict__.get("_over", True):
            _fail(self._runtime, "a started fold was dropped before it was finished")


class FoldAtOnce:
    """A fold of halo rows whose caller waits at once: one compiled step, or else a :class:`StartedFold`."""

    def __init__(self, step: CallSequence, halo_rows: Tensor, start: Callable[[], StartedFold]) -> None:
        self._step, self._start = step, start
        self._given = _materialised(halo_rows).contiguous()

    def wait(self, into: Tensor, fresh: Tensor | None = None) -> Tensor:
        """As :meth:`StartedFold.wait`."""
        if fresh is None and into.is_contiguous() and self._step.run(self._given, into, self._given):
            return into
        return self._start().wait(into, fresh)


def _fail(runtime: Runtime, reason: str) -> None:
    runtime.fail(CommError(f"rank {runtime.rank}: {reason}"))


def _materialised(rows: Tensor) -> Tensor:
    """The rows with lazy conjugation and negation carried out, so that memory holds their values."""
    return rows.resolve_conj().resolve_neg()

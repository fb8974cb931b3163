"""The transport of ranks that compute on the CPU: takes and returns tensors, and calls the runtime."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.program.model import Program
from dgcl.ranks.torch_private import profiler_enabled
from dgcl.transport.describe import profiled
from dgcl.transport.memory import MemoryReport, predict_memory
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.engine import EXPAND, FOLD
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.repeated import MOST_KINDS, RepeatedCalls
from dgcl.transport.shared_memory.results import as_tensor
from dgcl.transport.shared_memory.sequence import TYPES, CallSequence
from dgcl.transport.shared_memory.started import FoldAtOnce, StartedExpand, StartedFold
from dgcl.transport.shared_memory.tasks import CallRecord
from dgcl.transport.steps import FOLDED, PARTIAL, Begin, Step, Wait


class SharedMemoryTransport:
    """Moves rows in host memory: shared memory between processes of a host, the network channel between hosts.

    Attributes:
        runtime: Executes the programs.
        bytes_sent: ``(E, 2, P)`` int64, by exchange, verb and peer.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.bytes_sent = runtime.bytes_sent
        self._repeated = RepeatedCalls(runtime)
        self._find_expand, self._find_fold = self._repeated.find_expand, self._repeated.find_fold
        self._fold_steps: dict[object, CallSequence | None] = {}  # of halo rows alone, by kind

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_owned, *F)`` owned rows to ``(num_local, *F)`` owned and halo rows."""
        if profiler_enabled():
            with profiled(self.runtime.programs[exchange], "expand", rows):
                return self._expand(rows, exchange)
        repeated = self._find_expand((exchange, rows.shape, rows.dtype))
        if repeated is not None and rows.is_contiguous():
            result = repeated.expand(rows)
            if result is not None:
                return result
        result = self._expand(rows, exchange)
        if repeated is None:
            self._repeated.remember(exchange, EXPAND, rows)
        return result

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_local, *F)`` rows, only read, to the ``(num_owned, *F)`` sums over all ranks that hold them."""
        if profiler_enabled():
            with profiled(self.runtime.programs[exchange], "fold", rows):
                return self._fold(rows, exchange)
        repeated = self._find_fold((exchange, rows.shape, rows.dtype))
        if repeated is not None:
            result = repeated.fold(rows.contiguous())
            if result is not None:
                return result
        result = self._fold(rows, exchange)
        if repeated is None:
            self._repeated.remember(exchange, FOLD, rows)
        return result

    def _expand(self, rows: Tensor, exchange: int) -> Tensor:
        runtime = self.runtime
        program = runtime.programs[exchange]
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        block = runtime.expand_buffer(kind, exchange)
        result = as_tensor(runtime.pool, block, (program.num_local, *rows.shape[1:]), rows.dtype)
        own = rows.data_ptr()
        if not rows.is_contiguous():
            result[: program.num_owned].copy_(rows)
            own = 0
        runtime.expand(block, kind, own, exchange)
        return result

    def _fold(self, rows: Tensor, exchange: int) -> Tensor:
        runtime = self.runtime
        rows, kind = rows.contiguous(), row_type(rows.dtype, math.prod(rows.shape[1:]))
        block = runtime.fold(rows.data_ptr(), kind, exchange)
        shape = (runtime.programs[exchange].num_owned, *rows.shape[1:])
        return as_tensor(runtime.pool, block, shape, rows.dtype)

    def begin_expand(
        self, rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedExpand:
        """Start an expand that returns only halo rows; with ``wait`` the caller waits at once.

        ``purpose`` (:data:`dgcl.transport.steps.FOR_SUM`) is compared where calls of ranks are.
        """
        return StartedExpand(self.runtime, rows, exchange, wait, purpose)

    def begin_fold(
        self, halo_rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedFold | FoldAtOnce:
        """Start a fold of ``(num_halo, *F)`` halo rows only; with ``wait`` the caller waits at once."""
        start = functools.partial(StartedFold, self.runtime, halo_rows, exchange, wait, purpose)
        step = self._fold_step(halo_rows, exchange, purpose) if wait else None
        return start() if step is None else FoldAtOnce(step, halo_rows, start)

    def _fold_step(self, rows: Tensor, exchange: int, purpose: int) -> CallSequence | None:
        kind = exchange, rows.shape[1:], rows.dtype, purpose
        if kind not in self._fold_steps:
            if len(self._fold_steps) >= MOST_KINDS:
                self._fold_steps.clear()
            begin = Begin(FOLD, exchange, PARTIAL, FOLDED, purpose)
            steps: list[Step] = [begin, Wait(begin)]
            self._fold_steps[kind] = self.sequence(steps, math.prod(rows.shape[1:]), rows.dtype)
        return self._fold_steps[kind]

    def sequence(
        self, steps: Sequence[Step], width: int, dtype: torch.dtype, windows: tuple[int, int] | None = None
    ) -> CallSequence | None:
        """What carries out steps that repeat; None: they are carried out one by one."""
        if dtype not in TYPES or not width or self.runtime.network is not None:
            return None
        return CallSequence(self.runtime, steps, width, dtype, windows)

    def add_exchanges(self, programs: Mapping[str, Program], counted: int) -> int:
        """Add exchanges whose bytes count as another's; return the first one's number. Collective, between calls."""
        return self.runtime.add_exchanges(programs, counted)

    def describe(self) -> list[str]:
        """For each rank how rows travel to and from it, and why."""
        return self.runtime.reasons

    def memory(
        self, widths: Sequence[int | tuple[int, int]], dtype: torch.dtype, **kinds: Any
    ) -> MemoryReport:
        """Predict the bytes of buffers and tables; see :func:`dgcl.transport.memory.predict_memory`."""
        return predict_memory(self.runtime.programs, widths, dtype, **kinds)

    def synchronize(self) -> None:
        """Do nothing: calls return when they are done."""

    def record_stream(self, rows: Tensor, stream: int) -> None:
        """Do nothing: the CPU has no streams."""

    @property
    def failure(self) -> CommError | None:
        """Why it is unusable; None if it is not, or was closed."""
        return self.runtime.failure

    def fail(self, error: CommError) -> None:
        """Make the transport unusable and tell the peers why."""
        self.runtime.fail(error)

    def close(self) -> None:
        """Close the communicator. Idempotent, not collective; results of earlier calls stay valid."""
        self.runtime.close()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor from the pool; its memory returns to the pool when its storage dies."""
        block = self.runtime.pool.allocate(math.prod(shape) * dtype.itemsize)
        return as_tensor(self.runtime.pool, block, shape, dtype)

    # For benchmarks.

    def fill_free(self, byte: int) -> None:
        """Overwrite all free memory of the pool, so that a read of memory that was never written is noticed."""
        self.runtime.pool.fill_free(byte)

    def record_calls(self, recorder: Callable[[CallRecord], None] | None) -> None:
        """Pass the times of every call from now on to ``recorder``; None stops this."""
        self.runtime.record_calls(recorder)

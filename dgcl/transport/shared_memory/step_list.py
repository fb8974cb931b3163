"""Runs a prepared list of steps, calls and sums between them, for rows of one shape and type.

An expand (owned rows to the ranks that need them) is begin, send, copy, wait; a fold, its adjoint, is begin, wait,
reduce. An aggregation is a longer list; a started exchange stops before its wait. What does not change from one run to
the next is prepared once (:mod:`dgcl.transport.shared_memory.step_table`) and carried out by compiled code
(:mod:`dgcl.transport.shared_memory.interpreter`); buffers come from the pool each time. So nothing is looked up or
converted between rows and result.
Called by `started` and `transport`. Free to change while a call enters few Python functions, and the bits are the same
whether Python sees the calls or not (`tests/dgcl/transport/shared_memory/test_step_list.py`).
"""

import functools
import math
import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor
from torch.profiler import record_function

from dgcl.kernels.compiled import entry_point
from dgcl.transport import base
from dgcl.transport.common.dtypes import in_memory, row_type
from dgcl.transport.common.pool import Block, size_of_block
from dgcl.transport.shared_memory import interpreter
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.step_table import StepTable
from dgcl.transport.shared_memory.tasks import Call
from dgcl.transport.steps import GIVEN, NUM_BUFFERS, PARTIAL, RESULT, Step

#: Arguments of the interpreter: rows, result, partial sums, two blocks.
_ROWS, _RESULT, _PARTIAL, _BLOCKS = range(4)


@functools.lru_cache(256)
def _array_like(shape: tuple[int, ...], element: DTypeLike) -> tuple[tuple[int, ...], DTypeLike]:
    """Shape and type of arrays, one object for equal ones."""
    return shape, element


class Run(NamedTuple):
    """A run of a list that is under way.

    Attributes:
        number: Of the call before its first one.
        result: The result.
        arguments: Of the interpreter.
        scratch: What returns to the pool at its end.
    """

    number: int
    result: Tensor
    arguments: tuple[int, ...]
    scratch: Block | None


# A run is *attended* where Python must see its calls: a profiler, a start without a wait, errors. The interpreter
# then leaves the steps of calls to Runtime, as it does with a call that cannot go on. What must hold, whether a run
# is attended or not, also where some ranks attend and others do not: rows are copied bit by bit and summed in a fixed
# order, with relays, empty parts, windows and several threads; and after Ctrl-C between any two steps, or where a
# rank is late, lost, out of memory or makes another call, every rank gets the reason.
class StepList(base.StepList):
    """Calls of one communicator, and sums between them, for rows of one shape and type.

    Args:
        runtime: The communicator's.
        steps: What is carried out.
        shape, dtype: Of a row.
        windows: Rows that FIRST and SECOND have place for, in one piece of memory; None: there are no windows.
        result: The buffer that a run allocates and returns, and the number of its rows; None: the caller gives RESULT.
        label: For a profiler.

    Attributes:
        num_partial: Rows of PARTIAL, which the caller gives where sums are written there; else None.
    """

    def __init__(
        self,
        runtime: Runtime,
        steps: Sequence[Step],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        windows: tuple[int, int] | None = None,
        result: tuple[int, int] | None = None,
        label: str = "",
    ) -> None:
        self._label = label
        self._runtime, self._pool, self._dtype = runtime, runtime.pool, dtype
        self._kind = kind = row_type(dtype, math.prod(shape))
        table = self._table = StepTable(runtime, steps, math.prod(shape), dtype)
        self.num_partial, self._steps, self._length = table.num_partial, table.steps, len(table.steps)
        #: The first wait: a started exchange stops before it.
        self._stop = (
            int(np.argmax(table.steps[:, interpreter.KIND] == interpreter.WAIT)) if table.tasks else 0
        )
        self._buffers = np.zeros((NUM_BUFFERS, 4), np.int64)
        self._words = np.zeros(interpreter.NUM_WORDS, np.int64)
        self._words[: interpreter.POLICY] = [
            *(self._steps.ctypes.data, self._length, self._buffers.ctypes.data),
            *(kind.row_bytes, kind.sum_code, math.prod(shape), dtype == torch.float64),
        ]
        self._address, self._policy = self._words.ctypes.data, (0, 0, 0, 0, 0)
        self._run_steps = entry_point(interpreter.run_steps)
        self._prepare_result(shape, result)
        blocks = table.divide(windows)
        assert len(blocks) <= 2
        sizes = [size for size, _ in blocks] + [0, 0]
        self._sizes = sizes[0], sizes[1]
        for number, (_, inside) in enumerate(blocks):
            for buffer, shift in inside:
                self._enter_buffer(buffer, _BLOCKS + number, True, shift)

    def run(
        self, rows: Tensor, out: Tensor | None = None, partial: Tensor | None = None, started: bool = False
    ) -> Any:
        """Carry the steps out, and return the result.

        Args:
            rows: The rows, contiguous.
            out: RESULT, contiguous, where the caller gives it.
            partial: ``(num_partial, width)``, if that is not None.
            started: Stop before the first wait, and return the :class:`Run`; :meth:`finish` carries out the rest.

        Raises:
            CommError: A peer is lost, late, or makes another call.
            ValueError: No call can be made now.
        """
        runtime, pool, me = self._runtime, self._pool, threading.get_ident()
        attended, last = started or not runtime.is_plain, self._stop if started else self._length
        if attended or os.getpid() != runtime.process or runtime.holder.setdefault("thread", me) != me:
            runtime.check_usable()
        number = runtime.call_number
        try:
            if runtime.wait_policy is not self._policy:
                self._policy = runtime.wait_policy
                self._words[interpreter.POLICY : interpreter.POLICY + 5] = self._policy
            result = rows
            if out is not None:
                place = out.data_ptr()
            elif self._result_size:
                block = pool.take(self._result_size)
                prepared = block.prepared
                if prepared is None or prepared[0] is not self._like:
                    prepared = self._prepare(block)
                array = prepared[1].view()
                pool.release_with(array, block)
                result, place = torch.from_numpy(array), block.place
                if self._view is not None:
                    result = result.view(self._view)
            else:
                place = 0
            first, second = self._sizes
            scratch = pool.take(first) if first else None
            other = pool.take(second) if second else None
            arguments = (
                rows.data_ptr(),
                place,
                0 if partial is None else partial.data_ptr(),
                0 if scratch is None else scratch.place,
                0 if other is None else other.place,
            )
            number = runtime.call_number  # a signal's handler may have made calls
            if not attended:
                runtime.call_number = number + len(
                    self._table.tasks
                )  # the numbers are taken, whoever calls meanwhile
            step = self._run_steps(self._address, 0, last, attended, number, *arguments)
            if step != last:
                with record_function(self._label) if attended and self._label else nullcontext():
                    self._go_on(step, last, attended, number, arguments)
            if started:
                if runtime.under_way is not None:
                    runtime.under_way.rows = rows
                return Run(number, result, arguments, scratch)
            runtime.under_way = None  # compiled code may have ended what it could not end before
            runtime.call_number = max(runtime.call_number, number + len(self._table.tasks))
            if scratch is not None:
                pool.release(scratch)
            if other is not None:
                pool.release(other)
        except BaseException as error:
            runtime.stop(error, number + 1)
            raise
        finally:
            runtime.holder.clear()
        if out is None:
            return result
        if not out.is_inference():
            torch.autograd.graph.increment_version(out)  # autograd must know that it was written to
        return out

    def finish(self, run: Run, out: Tensor | None = None) -> None:
        """Carry out the steps from the first wait on, of a run of a list that differs in those alone."""
        runtime = self._runtime
        runtime.check_present()
        runtime.lock.acquire()
        arguments = run.arguments
        try:
            if out is not None:
                arguments = arguments[0], out.data_ptr(), *arguments[2:]
            self._go_on(self._stop, self._length, True, run.number, arguments)
            if run.scratch is not None:
                self._pool.release(run.scratch)
            if out is not None and not out.is_inference():
                torch.autograd.graph.increment_version(out)
        except BaseException as error:
            runtime.stop(error, run.number + 1)
            raise
        finally:
            runtime.holder.clear()

    def is_done(self, run: Run) -> bool:
        """Whether the call of a started run is over."""
        call = self._runtime.under_way
        return call is None or call.number != run.number + 1

    def _go_on(self, step: int, last: int, attended: bool, number: int, arguments: tuple[int, ...]) -> None:
        """Carry out steps ``step`` to ``last``, of which the first is Python's, or one of sums."""
        while step < last:
            kind = int(self._steps[step, interpreter.KIND])
            if kind <= interpreter.WAIT:
                self._attend(kind, step, attended, number, arguments)
            elif kind == interpreter.OUTSIDE:
                target, source = self._steps[step, [interpreter.TARGET, interpreter.SOURCE]]
                self._table.in_threads[step](*self._buffers[[target, source], interpreter.ADDRESS].tolist())
            step = self._run_steps(
                self._address, step + (kind != interpreter.SUM), last, attended, number, *arguments
            )

    def _attend(self, kind: int, step: int, attended: bool, number: int, arguments: tuple[int, ...]) -> None:
        """Carry out a step of a call, which compiled code has left or could not end."""
        runtime, ordinal = self._runtime, int(self._steps[step, interpreter.CALL])
        task, call = self._table.tasks[ordinal - 1], runtime.under_way
        is_mine = call is not None and call.number == number + ordinal
        if kind != interpreter.BEGIN and attended and not is_mine:
            return  # it is over
        if call is None or not is_mine:
            call = Call(task, number + ordinal, self._table.tags[ordinal - 1], task.label)
        runtime.under_way = call
        if kind == interpreter.BEGIN:
            run = functools.partial(self._run_steps, self._address, step, step + 1, False, number)
            runtime.start(call, lambda: run(*arguments))
        else:
            runtime.call_number = call.number
            runtime.run(call, wait=kind == interpreter.WAIT)
            runtime.check_usable(call)  # the lock was released

    def _enter_buffer(self, buffer: int, argument: int, is_place: bool, shift: int = 0) -> None:
        at = interpreter.BUFFER + 3 * buffer
        self._words[at : at + 3] = argument, is_place, shift

    def _prepare_result(self, shape: tuple[int, ...], result: tuple[int, int] | None) -> None:
        """Where the buffers are that come from the caller, and what the result is like."""
        self._enter_buffer(GIVEN, _ROWS, False)
        self._enter_buffer(RESULT, _RESULT, False)
        self._enter_buffer(PARTIAL, _PARTIAL, False)
        self._result_size, self._view = 0, None
        if result is not None:
            buffer, num_rows = result
            element, self._view = in_memory(self._dtype)
            self._like = _array_like((num_rows, *shape), element)
            self._result_size = size_of_block(self._table.capacities.pop(buffer) * self._kind.row_bytes)
            self._enter_buffer(buffer, _RESULT, True)

    def _prepare(self, block: Block) -> tuple[object, np.ndarray]:
        """An array over a block: each run gives away a view of it."""
        block.prepared = self._like, np.ndarray(*self._like, block.segment.memory.data, block.offset)
        return block.prepared

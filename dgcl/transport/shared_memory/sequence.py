"""Steps of an aggregation that repeat, carried out by compiled code.

What does not change from one aggregation to the next is prepared once, for rows of one width and type; buffers come
from the pool each time, as for calls one by one. Whatever is out of the ordinary takes the general way: from the start,
or, where the engine (:mod:`dgcl.transport.shared_memory.step_engine`) stops at a call, for this call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from dgcl.kernels.compiled import entry_point
from dgcl.ranks.torch_private import profiler_enabled
from dgcl.transport.shared_memory import step_engine as engine
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.engine import EXPAND
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.pool import Block, size_of_block
from dgcl.transport.shared_memory.tasks import Call, Task
from dgcl.transport.shared_memory.waits import pack_tag
from dgcl.transport.shared_memory.whole_call import pack_words
from dgcl.transport.steps import (
    FIRST,
    FOLDED,
    GIVEN,
    NUM_BUFFERS,
    PARTIAL,
    RESULT,
    SECOND,
    Begin,
    EdgePart,
    Step,
    Sum,
    Wait,
)

#: Types of rows that are summed as they are, without being rounded.
TYPES: Final = (torch.float32, torch.float64)

_ALIGNMENT: Final = 256


class CallSequence:
    """Calls of one communicator, and sums between them.

    Args:
        runtime: The communicator's.
        steps: What is carried out.
        width, dtype: Of rows, one of ``TYPES``.
        windows: Rows that FIRST and SECOND have place for, in one piece of memory; None: there are no windows.

    Attributes:
        num_partial: Rows of PARTIAL, which the caller gives where sums are written there; else None.
    """

    def __init__(
        self,
        runtime: Runtime,
        steps: Sequence[Step],
        width: int,
        dtype: torch.dtype,
        windows: tuple[int, int] | None = None,
    ) -> None:
        self._runtime, self._width, self._dtype = runtime, width, dtype
        self._kind = row_type(dtype, width)
        self._tasks: list[Task] = []  # of the calls, in their order
        self._tags: list[int] = []
        self._parts: list[EdgePart] = []
        self._in_threads: dict[int, Callable[[int, int], None]] = {}
        self._rooms: dict[int, int] = {}
        self.num_partial: int | None = None
        self._calls: dict[Begin, list[int]] = {}
        rows: list[list[int]] = []
        for step in steps:
            if isinstance(step, Sum):
                rows += self._sum(step, len(rows))
            elif isinstance(step, Begin):
                rows.append(self._call(step))
            elif isinstance(step, Wait):
                rows += self._wait(step)
        self._steps = np.zeros((len(rows), engine.NUM_COLUMNS), np.int64)
        for place, row in enumerate(rows):
            self._steps[place, : len(row)] = row
        self._blocks = self._divide(windows)
        self._placed: list[Block] = []  # the blocks that ``_buffers`` tells of
        self._buffers = np.zeros((NUM_BUFFERS + 1, 4), np.int64)
        self._run_steps = entry_point(engine.run_steps)
        self._tables = self._steps.ctypes.data, len(rows), self._buffers.ctypes.data
        self._kind_of_rows = width, dtype == torch.float64
        self._maps: object = None
        self._words: list[np.ndarray] = []

    def run(self, x: Tensor, out: Tensor, partial: Tensor | None = None) -> bool:
        """Carry the steps out; False, and nothing is done, where they must be carried out one by one.

        Args:
            x: ``(num_owned, width)``, contiguous.
            out: The result, contiguous, of the same type.
            partial: ``(num_partial, width)``, if that is not None.

        Raises:
            CommError: A peer is lost, late, or makes another call.
        """
        runtime = self._runtime
        if not runtime.is_plain or os.getpid() != runtime.process or profiler_enabled():
            return False
        holder = runtime.holder
        me = threading.get_ident()
        if holder.setdefault("thread", me) != me:
            return False
        number = runtime.call_number
        try:
            blocks = [runtime.pool.take(size) for size, _ in self._blocks]
            if blocks != self._placed:  # the pool mostly gives the same ones
                self._place(blocks)
            self._buffers[GIVEN, -1], self._buffers[RESULT, -1] = x.data_ptr(), out.data_ptr()
            if partial is not None:
                self._buffers[PARTIAL, -1] = partial.data_ptr()
            self._carry_out(number)
            runtime.call_number = number + len(self._tasks)
            for block in blocks:
                runtime.pool.release(block)
        except BaseException as error:
            runtime.stop(error, number + 1)
            raise
        finally:
            holder.clear()
        if not out.is_inference():
            torch.autograd.graph.increment_version(out)  # autograd must know that it was written to
        return True

    def _carry_out(self, number: int) -> None:
        runtime, steps, buffers = self._runtime, self._steps, self._buffers
        step = 0
        while True:
            if runtime.peers.maps is not self._maps:
                self._pack()
            step = self._run_steps(*self._tables, step, number, *self._kind_of_rows, *runtime.wait_policy)
            if step == len(steps):
                return
            kind = steps[step, engine.KIND]
            if kind == engine.SUM:  # there may be a signal
                continue
            if kind == engine.OUTSIDE:
                target, source = steps[step, [engine.SUM_TARGET, engine.SUM_SOURCE]]
                self._in_threads[step](int(buffers[target, -1]), int(buffers[source, -1]))
            else:
                self._go_on(step, number)
            step += 1

    def _go_on(self, step: int, number: int) -> None:
        """Begin, or wait for, a call the general way, where the engine has stopped."""
        runtime, buffers, words = self._runtime, self._buffers, self._steps[step].tolist()
        ordinal, source = words[engine.CALL_NUMBER], words[engine.CALL_SOURCE]
        task, number = self._tasks[ordinal - 1], number + ordinal
        first = int(buffers[source, -1]) + words[engine.CALL_SHIFT]
        arrivals = int(buffers[words[engine.CALL_ARRIVALS], -1])
        of_engine = (first, words[engine.CALL_ROWS], arrivals)
        runtime.under_way = Call(task, number, self._tags[ordinal - 1], self._kind, of_engine)
        runtime.call_number = number
        runtime.run(runtime.under_way, wait=words[engine.KIND] == engine.WAIT)
        runtime.under_way = None  # also if it is not over: the tables of the task say what is done of it
        runtime.check_usable()  # the lock was released

    def _sum(self, step: Sum, place: int) -> list[list[int]]:
        """The rows of the table for a sum, of which the first has number ``place``."""
        part = step.edges.part(step.weight, self._width, self._dtype, add=step.add, piece=step.piece)
        self._parts.append(part)
        if not step.add and step.target == PARTIAL:
            self.num_partial = step.edges.num_heads
        elif not step.add and step.target != RESULT:
            self._need(step.target, step.edges.num_heads)
        rows = []
        if len(part.missing):
            rows.append([engine.ZERO, step.target, *_address(part.missing)])
        if part.begin < part.end:
            kind = engine.SUM
            if part.in_threads is not None:
                kind = engine.OUTSIDE
                self._in_threads[place + len(rows)] = part.in_threads
            edges = [*_address(part.indptr), *_address(part.tails), *_address(part.heads)]
            numbers = [part.weights.data_ptr(), part.weight_bytes, part.begin, part.end, int(step.add)]
            rows.append([kind, step.target, step.source, *edges, *numbers])
        return rows

    def _call(self, begin: Begin) -> list[int]:
        """The row of the table for the begin of a call, without the words of the call."""
        program, row_bytes = self._runtime.programs[begin.exchange], self._kind.row_bytes
        task = self._runtime.tasks[2 * begin.exchange + begin.verb]
        self._tasks.append(task)
        self._tags.append(pack_tag(begin.verb, self._kind, begin.exchange, begin.purpose))
        self._need(begin.arrivals, task.room)
        own = program.num_owned * row_bytes
        if begin.verb == EXPAND:  # as StartedExpand and StartedFold, which say why
            numbers = [0, program.num_owned, begin.arrivals, -own, program.num_halo * row_bytes]
        else:
            numbers = [-own, program.num_local, begin.arrivals, 0, 0]
        row = [engine.BEGIN, 0, 0, len(self._tasks), begin.verb, begin.source, *numbers]
        self._calls[begin] = row
        return row

    def _wait(self, wait: Wait) -> list[list[int]]:
        """The rows of the table for the end of a call."""
        begin = wait.begun
        over = [engine.WAIT, *self._calls[begin][1:]]
        if begin.verb == EXPAND:
            return [over]
        program, kind = (
            self._runtime.programs[begin.exchange],
            engine.ADD if wait.fresh is None else engine.PUT,
        )
        arrived = [*_address(program.arrival_rows), *_address(program.arrival_slots)]
        row = [kind, begin.arrivals, program.num_owned, *arrived, self._kind.sum_code, RESULT]
        return [over, row]

    def _need(self, buffer: int, num_rows: int) -> None:
        self._rooms[buffer] = max(self._rooms.get(buffer, 0), num_rows)

    def _divide(self, windows: tuple[int, int] | None) -> list[tuple[int, list[tuple[int, int]]]]:
        """For each block of the pool its bytes, and the buffers in it, each with its place there."""
        rooms = dict(self._rooms)
        blocks: list[tuple[int, list[tuple[int, int]]]] = []
        if windows is not None:
            first, second = (self._bytes(room) for room in windows)
            assert rooms.pop(FIRST, 0) <= windows[0]
            assert rooms.pop(SECOND, 0) <= windows[1]
            inside = [(FIRST, 0), (SECOND, first)]
            if rooms.get(FOLDED, windows[1] + 1) <= windows[1]:  # by then nothing is in SECOND any more
                del rooms[FOLDED]
                inside.append((FOLDED, first))
            blocks.append((first + second, inside))
        blocks += [(self._bytes(room), [(buffer, 0)]) for buffer, room in rooms.items()]
        return [(size_of_block(size), inside) for size, inside in blocks]

    def _bytes(self, num_rows: int) -> int:
        return -(-num_rows * self._kind.row_bytes // _ALIGNMENT) * _ALIGNMENT

    def _place(self, blocks: list[Block]) -> None:
        """Note where buffers are, as the engine takes it."""
        for block, (_, inside) in zip(blocks, self._blocks, strict=True):
            segment = block.segment
            for buffer, place in inside:
                offset = block.offset + place
                self._buffers[buffer] = [segment.base, segment.size, offset, segment.address + offset]
        self._placed = blocks

    def _pack(self) -> None:
        """Prepare the words of calls, anew when segments of peers were mapped that need a larger table."""
        runtime, kind, maps = self._runtime, self._kind, self._runtime.peers.maps
        self._words = [
            pack_words(
                task,
                maps,
                runtime.bytes_sent[task.counted, task.verb],
                runtime.step_addresses,
                (tag, kind.row_bytes, kind.sum_code),
                (runtime.programs[task.exchange].num_owned, runtime.programs[task.exchange].num_local),
                runtime.wait_policy,
            )
            for task, tag in zip(self._tasks, self._tags, strict=True)
        ]
        for step in self._steps:
            if step[engine.KIND] in (engine.BEGIN, engine.WAIT):
                words = self._words[step[engine.CALL_NUMBER] - 1]
                step[engine.CALL_WORDS : engine.CALL_WORDS + 2] = _address(words)
        self._maps = maps


def _address(array: np.ndarray) -> tuple[int, int]:
    """Where a contiguous array is, and its length."""
    assert array.flags.c_contiguous
    return array.ctypes.data, len(array)

"""Converts a list of steps into the table of integers that the compiled interpreter reads.

Columns are those of :mod:`dgcl.transport.shared_memory.interpreter`. An expand reads the owned rows where the caller
has them, while they are copied to the result; where rows are relayed, it reads the copies. It also sizes the buffers.
Called by `step_list`. Free to change while a list gives the bits of its steps one by one, with relays, windows and
several threads (`tests/dgcl/aggregation/test_steps.py`), and whole calls are right
(`tests/dgcl/transport/shared_memory/test_executor.py`).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from dgcl.transport.common.calls import pack_tag
from dgcl.transport.common.dtypes import row_type
from dgcl.transport.common.pool import size_of_block
from dgcl.transport.shared_memory import interpreter
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.tasks import Task
from dgcl.transport.steps import (
    EXPAND,
    FIRST,
    FOLD,
    FOLDED,
    PARTIAL,
    RESULT,
    SECOND,
    Begin,
    EdgePart,
    Step,
    Sum,
    Wait,
)


class StepTable:
    """The table of a list of steps.

    Args:
        runtime: The communicator's.
        steps: What is carried out.
        width, dtype: Of rows.

    Attributes:
        steps: ``(n, NUM_COLUMNS)``, the table.
        tasks, tags: Of the calls, in their order.
        in_threads: Makes the sums of a step that several threads carry out, by the step's number.
        capacities: Rows that buffers must have place for.
        num_partial: Rows of PARTIAL, which the caller gives where sums are written there; else None.
    """

    def __init__(self, runtime: Runtime, steps: Sequence[Step], width: int, dtype: torch.dtype) -> None:
        self._runtime, self._width, self._dtype, self._kind = runtime, width, dtype, row_type(dtype, width)
        self.tasks: list[Task] = []
        self.tags: list[int] = []
        self.in_threads: dict[int, Callable[[int, int], None]] = {}
        self.capacities: dict[int, int] = {}
        self.num_partial: int | None = None
        self._parts: list[EdgePart] = []  # kept alive
        self._calls: dict[Begin, list[int]] = {}
        rows: list[list[int]] = []
        for step in steps:
            if isinstance(step, Sum):
                rows += self._sum(step, len(rows))
            elif isinstance(step, Begin):
                rows += self._begin(step)
            elif isinstance(step, Wait):
                rows += self._wait(step)
        self.steps = np.zeros((len(rows), interpreter.NUM_COLUMNS), np.int64)
        for place, row in enumerate(rows):
            self.steps[place, : len(row)] = row

    def _sum(self, step: Sum, place: int) -> list[list[int]]:
        """The rows of the table for a sum, of which the first has number ``place``."""
        part = step.edges.part(step.weight, self._width, self._dtype, add=step.add)
        self._parts.append(part)
        if not step.add and step.target == PARTIAL:
            self.num_partial = step.edges.num_heads
        elif not step.add and step.target != RESULT:
            self._need(step.target, step.edges.num_heads)
        rows = []
        if len(part.missing):
            rows.append([interpreter.ZERO, step.target, step.source, *_address(part.missing)])
        if num_heads := len(part.indptr) - 1:
            kind = interpreter.SUM
            if part.in_threads is not None:
                kind = interpreter.OUTSIDE
                self.in_threads[place + len(rows)] = part.in_threads
            edges = [*_address(part.indptr), *_address(part.tails), *_address(part.heads)]
            numbers = [part.weights.data_ptr(), part.weight_bytes, 0, num_heads, int(step.add)]
            rows.append([kind, step.target, step.source, *edges, *numbers])
        return rows

    def _begin(self, begin: Begin) -> list[list[int]]:
        """The rows of the table for the begin of a call."""
        runtime, row_bytes, exchange = self._runtime, self._kind.row_bytes, begin.exchange
        program, task = runtime.programs[exchange], runtime.tasks[2 * exchange + begin.verb]
        self.tasks.append(task)
        self.tags.append(pack_tag(begin.verb, self._kind, exchange, begin.purpose))
        own, arrivals, source = program.num_owned * row_bytes, begin.arrivals, begin.source
        relay, after = (arrivals, 0), []
        if begin.verb == FOLD:
            # The engine counts rows from the first owned one; of halo rows alone it reads none of those.
            rows, second, place = (
                (source, 0 if begin.whole else -own, program.num_local),
                (arrivals, 0),
                relay,
            )
            self._need(arrivals, task.capacity)
        elif begin.whole:
            self._need(arrivals, program.num_local)
            rows, second, place = (source, 0, program.num_owned), (arrivals, own), (arrivals, 0)
            if program.num_relay:  # own rows are sent from where they are copied to
                self._need(FIRST, program.num_relay)
                relay = FIRST, 0
                rows, second = (arrivals, 0, program.num_local), relay
            after = [[interpreter.COPY, arrivals, source, own]]
        else:  # halo rows, then relay rows: the engine counts both from the first row that is not owned
            self._need(arrivals, task.capacity)
            rows, second = (source, 0, program.num_owned), (arrivals, 0)
            place, relay = (arrivals, -own), (arrivals, program.num_halo * row_bytes)
        words = [*_address(task.words), len(self.tasks), self.tags[-1], task.streamed_from(row_bytes)]
        row = [*words, *rows, *second, *place, *relay]
        self._calls[begin] = row
        table = [[interpreter.BEGIN, *row]]
        if rows[0] == source and not (begin.whole and begin.verb == FOLD):
            table.append([interpreter.SEND, *row])
        return table + after

    def _wait(self, wait: Wait) -> list[list[int]]:
        """The rows of the table for the end of a call."""
        begin = wait.begun
        over = [interpreter.WAIT, *self._calls[begin]]
        if begin.verb == EXPAND:
            return [over]
        program = self._runtime.programs[begin.exchange]
        arrived = [*_address(program.arrival_rows), *_address(program.arrival_slots)]
        kind = interpreter.REDUCE if begin.whole else interpreter.ADD
        if begin.whole:
            self._need(RESULT, program.num_owned)
        return [over, [kind, RESULT, begin.arrivals, program.num_owned, *arrived, begin.source]]

    def _need(self, buffer: int, num_rows: int) -> None:
        self.capacities[buffer] = max(self.capacities.get(buffer, 0), num_rows)

    def divide(self, windows: tuple[int, int] | None) -> list[tuple[int, list[tuple[int, int]]]]:
        """For each block of the pool its bytes, and the buffers in it, each with its place there."""
        capacities = dict(self.capacities)
        blocks: list[tuple[int, list[tuple[int, int]]]] = []
        if windows is not None:
            first, second = (size_of_block(rows * self._kind.row_bytes) for rows in windows)
            assert capacities.pop(FIRST, 0) <= windows[0]
            assert capacities.pop(SECOND, 0) <= windows[1]
            inside = [(FIRST, 0), (SECOND, first)]
            if capacities.get(FOLDED, windows[1] + 1) <= windows[1]:  # by then nothing is in SECOND any more
                del capacities[FOLDED]
                inside.append((FOLDED, first))
            blocks.append((first + second, inside))
        row_bytes = self._kind.row_bytes
        return blocks + [
            (size_of_block(rows * row_bytes), [(buffer, 0)]) for buffer, rows in capacities.items()
        ]


def _address(array: np.ndarray) -> tuple[int, int]:
    """Where a contiguous array is, and its length."""
    assert array.flags.c_contiguous
    return array.ctypes.data, len(array)

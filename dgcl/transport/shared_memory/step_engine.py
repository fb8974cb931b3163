"""Carries out steps of an aggregation, calls and sums between them, without coming back to Python.

A step is a row of a table of words, which does not change from one aggregation to the next: addresses of tables, and
numbers of *buffers*, whose places are given anew each time. Where a step cannot go on (a segment must be mapped, a
peer makes another call, a wait takes long), the engine returns its number; Python looks after it and has the next one
carried out (:mod:`dgcl.transport.shared_memory.sequence`). It also returns after a while of sums, for Ctrl-C.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import boolean, carray, int32, int64, njit, uint8

from dgcl.kernels.compiled import compiled
from dgcl.kernels.edge_sums import sum_float32, sum_float64
from dgcl.kernels.memory import monotonic_nanoseconds, pointer_to
from dgcl.kernels.row_moves import put_arrivals
from dgcl.kernels.rows import add_arrivals
from dgcl.transport.shared_memory.engine import DONE, WAITING
from dgcl.transport.shared_memory.whole_call import advance_call, begin_call
from dgcl.transport.steps import NUM_BUFFERS

#: What a step is: sums; rows that become zeros; a call that begins; its wait; its rows added to others, or put; what
#: Python does.
SUM, ZERO, BEGIN, WAIT, ADD, PUT, OUTSIDE = range(7)

#: Columns of the table, by kind of step; an array is two, its address and its length.
KIND: Final = 0
SUM_TARGET, SUM_SOURCE, SUM_INDPTR, SUM_TAILS, SUM_HEADS, SUM_WEIGHTS, SUM_STEP, SUM_BEGIN, SUM_END, SUM_ADDS = (
    1, 2, 3, 5, 7, 9, 10, 11, 12, 13,
)  # fmt: skip
ZERO_TARGET, ZERO_ROWS = 1, 2
CALL_WORDS, CALL_NUMBER, CALL_VERB, CALL_SOURCE, CALL_SHIFT, CALL_ROWS, CALL_ARRIVALS, CALL_FIRST, CALL_SECOND = (
    1, 3, 4, 5, 6, 7, 8, 9, 10,
)  # fmt: skip
PUT_SOURCE, PUT_COUNT, PUT_ROWS, PUT_SLOTS, PUT_CODE, PUT_TARGET = 1, 2, 3, 5, 7, 8
NUM_COLUMNS: Final = 14

#: Columns of a buffer: base and size of its segment, its place there, and its address.
_BASE, _SIZE, _PLACE, _ADDRESS = range(4)

#: Nanoseconds of sums after which Python has a look at signals.
_PAUSE: Final = 20_000_000


@njit(nogil=True, inline="always")
def _array(step: np.ndarray, column: int, sample: Any) -> Any:
    return carray(pointer_to(step[column], sample), (step[column + 1],))


@njit(nogil=True)
def _sum(step: np.ndarray, buffers: np.ndarray, width: int, wide: bool) -> None:
    """Carry out a step of sums."""
    out, x = buffers[step[SUM_TARGET], _ADDRESS], buffers[step[SUM_SOURCE], _ADDRESS]
    indptr, tails = _array(step, SUM_INDPTR, int64(0)), _array(step, SUM_TAILS, int32(0))
    heads, weights, size = _array(step, SUM_HEADS, int32(0)), step[SUM_WEIGHTS], step[SUM_STEP]
    begin, end, adds = step[SUM_BEGIN], step[SUM_END], step[SUM_ADDS] != 0
    if wide:
        row = 8 * width
        sum_float64(out, row, x, row, indptr, tails, weights, size, heads, begin, end, width, adds)
    else:
        row = 4 * width
        sum_float32(out, row, x, row, indptr, tails, weights, size, heads, begin, end, width, adds)


@njit(nogil=True)
def _call(step: np.ndarray, buffers: np.ndarray, number: int, policy: tuple[int, int, int, int, int]) -> int:
    """Begin a call, or go on with it; return the engine's status."""
    words, verb = _array(step, CALL_WORDS, int64(0)), step[CALL_VERB]
    arrivals = buffers[step[CALL_ARRIVALS]]
    if step[KIND] == BEGIN:
        first = arrivals[_BASE], arrivals[_SIZE], arrivals[_PLACE] + step[CALL_FIRST], int64(0)
        second = arrivals[_BASE], arrivals[_SIZE], arrivals[_PLACE] + step[CALL_SECOND], int64(0)
        begin_call(words, number, first, second)
    source = buffers[step[CALL_SOURCE], _ADDRESS] + step[CALL_SHIFT]
    return advance_call(words, verb, number, (source, step[CALL_ROWS], arrivals[_ADDRESS]), policy)


# Python calls it with numbers alone, which is what it can hand over fastest.
@compiled(int64(*[int64] * 6, boolean, *[int64] * 5))
def run_steps(
    table: int, num_steps: int, places: int, first: int, number: int, width: int, wide: bool,
    spin: int, share: int, expensive: int, num_sleeps: int, nanoseconds: int,
) -> int:  # fmt: skip
    """Carry out steps from ``first`` on, and return which one is not done, or their number.

    Sums that are not done are what the next call carries out. A call is begun or under way, and a step that is OUTSIDE
    has not begun.

    Args:
        table: Address of the steps, ``(num_steps, NUM_COLUMNS)``.
        num_steps: How many they are.
        places: Address of the ``(NUM_BUFFERS + 1, 4)`` places of buffers; the last row is scratch.
        first: The first step.
        number: Of the call before the first one.
        width: Elements of a row.
        wide: They are float64; else float32.
        spin, share, expensive, num_sleeps, nanoseconds: How to wait
            (:data:`dgcl.transport.shared_memory.wait_policy.WaitPolicy`).
    """
    steps = carray(pointer_to(table, int64(0)), (num_steps, NUM_COLUMNS))
    buffers = carray(pointer_to(places, int64(0)), (NUM_BUFFERS + 1, 4))
    policy = (spin, share, expensive, num_sleeps, nanoseconds)
    row_bytes = width * (8 if wide else 4)
    clock = places + 32 * NUM_BUFFERS
    until = monotonic_nanoseconds(clock) + _PAUSE
    for i in range(first, num_steps):
        step, kind = steps[i], steps[i, KIND]
        if kind == SUM:
            if monotonic_nanoseconds(clock) > until:
                return i
            _sum(step, buffers, width, wide)
        elif kind == ZERO:
            for row in _array(step, ZERO_ROWS, int64(0)):
                address = buffers[step[ZERO_TARGET], _ADDRESS] + row * row_bytes
                carray(pointer_to(address, uint8(0)), (row_bytes,))[:] = 0
        elif kind == BEGIN:
            status = _call(step, buffers, number + step[CALL_NUMBER], (0, 0, 0, 0, 0))
            if status != DONE and status != WAITING:
                return i
        elif kind == WAIT:
            status = _call(step, buffers, number + step[CALL_NUMBER], policy)
            if status != DONE:
                return i
        elif kind == OUTSIDE:
            return i
        else:
            target, source = buffers[step[PUT_TARGET], _ADDRESS], buffers[step[PUT_SOURCE], _ADDRESS]
            rows, slots = _array(step, PUT_ROWS, int32(0)), _array(step, PUT_SLOTS, int32(0))
            if kind == ADD:
                add_arrivals(step[PUT_CODE], target, step[PUT_COUNT], rows, slots, source, row_bytes)
            else:
                put_arrivals(target, step[PUT_COUNT], rows, slots, source, row_bytes)
    return num_steps

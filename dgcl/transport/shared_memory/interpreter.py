"""Compiled loop that carries out a list of steps (calls, copies, sums) without returning to Python.

A step is a row of a table of words, which does not change from one run of the list to the next: addresses of tables,
and numbers of *buffers*, whose places are given anew each time (:mod:`dgcl.transport.shared_memory.step_list`). It
returns the number of a step that cannot go on (a segment must be mapped, a peer makes another call, a wait takes long):
Python sees to it, and has the steps after it carried out. ``attended``, it leaves all steps of calls to Python. It also
returns after a while of sums, for Ctrl-C.
Called by `step_list`, `step_table`, `dgcl/aggregation/grouped_edges` and `dgcl/transport/precompile`. Free to change
while lists give the bits of their steps one by one, and Ctrl-C is heard (`tests/dgcl/aggregation/test_steps.py`).
"""

import numpy as np
from numba import boolean, carray, int32, int64, njit, uint8

from dgcl.kernels.compiled import compiled
from dgcl.kernels.copies import STREAMED, write_bytes
from dgcl.kernels.edge_sums import sum_float32, sum_float64
from dgcl.kernels.memory import load_word, monotonic_nanoseconds, pointer_to
from dgcl.kernels.rows import add_arrivals, sum_rows
from dgcl.transport.shared_memory import engine
from dgcl.transport.shared_memory.engine import array_at
from dgcl.transport.steps import NUM_BUFFERS

# What a step does. BEGIN: begins a call, its senders hear where to write; SEND: sends what can be sent at once; WAIT:
# sends the rest, and waits until all has arrived; COPY: copies rows, past the caches where they are many; SUM: sums
# rows over edges; ZERO: sets rows to zero; REDUCE: sums rows and what has arrived for them, into another buffer; ADD:
# adds what has arrived to rows; OUTSIDE: is Python's.
BEGIN, SEND, WAIT, COPY, SUM, ZERO, REDUCE, ADD, OUTSIDE = range(9)

#: Columns of the table: the kind; the buffers that a step writes and reads; then, by kind, numbers and arrays, which
#: are two words, address and length.
KIND, TARGET, SOURCE, NUMBERS = range(4)
#: Of a call: address and length of its task's words; its place among the list's calls; its tag; bytes from which on its
#: sends are written past the caches; where the rows lie that are read, how many they are, and those that follow; the
#: places of its buffer and of its relay rows. A place is a buffer, and bytes from its start.
TASK, CALL, TAG, STREAMED_FROM, ROWS, NUM_ROWS, SECOND, PLACE, RELAY = 1, 3, 4, 5, 6, 8, 9, 11, 13
#: Of a sum: heads, tails and where each head's begin; weights, and bytes of one; the heads that are summed; whether
#: sums are added.
INDPTR, TAILS, HEADS, WEIGHTS, WEIGHT_BYTES, FIRST_HEAD, LAST_HEAD, ADDS = 3, 5, 7, 9, 10, 11, 12, 13
#: Of what has arrived: how many rows the target has, which of them it is for, where it lies; rows to begin with.
COUNT, ARRIVAL_ROWS, ARRIVAL_SLOTS, OWN = 3, 4, 6, 8
NUM_COLUMNS = 15

#: Words of a list: addresses of its table and of its buffers; bytes of a row, code of its element type, elements;
#: whether these are float64 (else float32); how to wait
#: (:data:`dgcl.transport.shared_memory.engine.WaitPolicy`); then for each buffer the argument that says where it
#: is, whether that is a place (of four words), and bytes from there.
TABLE, NUM_STEPS, BUFFERS, ROW_BYTES, SUM_CODE, WIDTH, IS_DOUBLE, POLICY, _CLOCK, BUFFER = (
    0, 1, 2, 3, 4, 5, 6, 7, 12, 14,
)  # fmt: skip
NUM_WORDS = BUFFER + 3 * NUM_BUFFERS
#: Words of a place, of a block's too: base and size of its segment, its offset there, and its address.
_BASE, _SIZE, _OFFSET, ADDRESS = range(4)

#: Nanoseconds of sums after which Python has a look at signals.
_PAUSE = 20_000_000


@njit(nogil=True)
def _find_buffers(words: np.ndarray, buffers: np.ndarray, arguments: tuple[int, ...]) -> None:
    """Enter where the buffers are."""
    for i in range(NUM_BUFFERS):
        at = BUFFER + 3 * i
        place, shift = arguments[words[at]], words[at + 2]
        if words[at + 1] == 0:
            buffers[i, ADDRESS] = place + shift
        elif place != 0:
            for word in range(4):
                buffers[i, word] = load_word(place + 8 * word) + (shift if word >= _OFFSET else 0)


@njit(nogil=True)
def _begin(words: np.ndarray, step: np.ndarray, buffers: np.ndarray, number: int) -> None:
    """Enter what a call needs into the words of its task, and begin it."""
    task = array_at(step, TASK, int64(0))
    task[engine.ROW_BYTES], task[engine.SUM_CODE] = words[ROW_BYTES], words[SUM_CODE]
    task[engine.STREAMED_FROM], task[engine.SOURCE_ROWS] = step[STREAMED_FROM], step[NUM_ROWS]
    task[engine.SOURCE] = buffers[step[ROWS], ADDRESS] + step[ROWS + 1]
    task[engine.SECOND] = buffers[step[SECOND], ADDRESS] + step[SECOND + 1]
    task[engine.TAG] = step[TAG]
    for i in range(2):
        buffer, shift = step[PLACE + 2 * i], step[PLACE + 2 * i + 1]
        line = engine.LINE + 1 + 3 * i
        task[line], task[line + 1] = buffers[buffer, _BASE], buffers[buffer, _SIZE]
        task[line + 2] = buffers[buffer, _OFFSET] + shift
    engine.begin(task, number)


@njit(nogil=True)
def _sum(words: np.ndarray, step: np.ndarray, out: int, x: int) -> None:
    """Carry out a step of sums over edges."""
    width, row = words[WIDTH], words[ROW_BYTES]
    indptr, tails = array_at(step, INDPTR, int64(0)), array_at(step, TAILS, int32(0))
    heads, weights, size = array_at(step, HEADS, int32(0)), step[WEIGHTS], step[WEIGHT_BYTES]
    begin, end, adds = step[FIRST_HEAD], step[LAST_HEAD], step[ADDS] != 0
    if words[IS_DOUBLE]:
        sum_float64(out, row, x, row, indptr, tails, weights, size, heads, begin, end, width, adds)
    else:
        sum_float32(out, row, x, row, indptr, tails, weights, size, heads, begin, end, width, adds)


@njit(nogil=True)
def _use_arrivals(words: np.ndarray, step: np.ndarray, buffers: np.ndarray, target: int, source: int) -> None:
    """Carry out REDUCE or ADD."""
    rows, slots = array_at(step, ARRIVAL_ROWS, int32(0)), array_at(step, ARRIVAL_SLOTS, int32(0))
    count, code, row_bytes = step[COUNT], words[SUM_CODE], words[ROW_BYTES]
    if step[KIND] == REDUCE:
        own = buffers[step[OWN], ADDRESS]
        sum_rows(code, target, own, 0, count, rows, slots, 0, source, row_bytes, STREAMED)
    else:
        add_arrivals(code, target, count, rows, slots, source, row_bytes)


# Python calls it with numbers alone, which is what it can hand over fastest.
@compiled(int64(int64, int64, int64, boolean, *[int64] * 6))
def run_steps(
    address: int, first: int, last: int, attended: bool, number: int,
    rows: int, result: int, partial: int, block: int, other: int,
) -> int:  # fmt: skip
    """Carry out steps ``first`` to ``last``, and return which one is not done, or ``last``.

    Sums that are not done are what the next run carries out. A step of a call that is not attended was begun.

    Args:
        address: Of the words of the list.
        first, last: The first step, and the one behind the last.
        attended: Stop before each step of a call.
        number: Of the call before the list's first one.
        rows, result, partial, block, other: Addresses, or addresses of places, of buffers.
    """
    words = carray(pointer_to(address, int64(0)), (NUM_WORDS,))
    steps = carray(pointer_to(words[TABLE], int64(0)), (words[NUM_STEPS], NUM_COLUMNS))
    buffers = carray(pointer_to(words[BUFFERS], int64(0)), (NUM_BUFFERS, 4))
    _find_buffers(words, buffers, (rows, result, partial, block, other))
    policy = words[POLICY], words[POLICY + 1], words[POLICY + 2], words[POLICY + 3], words[POLICY + 4]
    row_bytes, clock = words[ROW_BYTES], address + 8 * _CLOCK
    until, over = int64(0), False
    for i in range(first, last):
        step, kind = steps[i], steps[i, KIND]
        if kind <= WAIT:
            if attended:
                return i
            if kind == BEGIN:
                _begin(words, step, buffers, number + step[CALL])
                continue
            if not over:
                task = array_at(step, TASK, int64(0))
                status = engine.advance(task, policy if kind == WAIT else engine.AT_ONCE)
                if status != engine.DONE and (kind == WAIT or status != engine.WAITING):
                    return i
                over = status == engine.DONE
            if kind == WAIT:
                over = False
            continue
        target, source = buffers[step[TARGET], ADDRESS], buffers[step[SOURCE], ADDRESS]
        if kind == COPY:
            if target != source:
                write_bytes(target, source, step[NUMBERS])
        elif kind == SUM:
            now = monotonic_nanoseconds(clock)
            if until == 0:
                until = now + _PAUSE
            elif now > until:
                return i
            _sum(words, step, target, source)
        elif kind == ZERO:
            for row in array_at(step, NUMBERS, int64(0)):
                carray(pointer_to(target + row * row_bytes, uint8(0)), (row_bytes,))[:] = 0
        elif kind == OUTSIDE:
            return i
        else:
            _use_arrivals(words, step, buffers, target, source)
    return last

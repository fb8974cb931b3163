"""The tables in device memory that the CUDA kernels read.

Launches are prepared once and repeated with the same parameters: the addresses of these tables, which live as long as
the communicator, and the size of a row. What differs from call to call is read from memory: the number of the call is
counted on the device, and the addresses of its buffers are taken from a ring in the host's memory.

Called by this folder and `dgcl/transport/cuda/`. Free to change while results are bit for bit those of
plain Python (`tests/kernels/test_cuda_shapes.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# =========  ===============================================================================================
# table      what
# =========  ===============================================================================================
# state      int64 words of one communicator: the number of the call, whether to skip
# addresses  int64 words, buffers by *slot*: this rank's rows, relay rows, arrivals, each peer's buffers, ...
# ring       the addresses of several calls, in the host's memory
# tasks      :data:`TASK` records: rows for one peer, gathered or summed
# blocks     :data:`BLOCK` records: which thread block works on which share of which task
# flags      :data:`FLAG` records: words to wait for or to raise
# lines      int64 words: addresses of the words that count this rank's calls
# =========  ===============================================================================================


def _record(*names: str, kind: str = "i8") -> np.dtype:
    return np.dtype([(name, kind) for name in names])


def _place(record: np.dtype, name: str) -> int:
    return int(record.fields[name][1])  # type: ignore[index]


#: What one launch does for one peer. ``source``, ``second`` and ``target`` are slots.
#:
#: Gather: rows ``table[first:first + count]`` go to rows ``[to, to + count)`` at ``target``; a row below
#: ``near_rows`` lies at ``source``, others, counted from ``near_rows``, at ``second``.
#:
#: Sum: the sums of local rows ``[first, first + count)`` go to rows ``[to, to + count)`` at ``target``; own
#: rows lie at ``source`` (none when it is -1), arrivals at ``second``.
TASK = _record("source", "second", "target", "first", "to", "count", "near_rows", "spare")

#: Thread block i of a launch is the ``part``-th of the ``parts`` that work on ``task``.
BLOCK = _record("task", "part", "parts", "spare", kind="i4")

#: A flag at ``address``; its value in call n is ``n * multiplier + offset``.
FLAG = _record("address", "multiplier", "offset", "spare")

#: Words of the state.
CALL = 0  # number of the current call; the first is 1
SKIP = 8  # not 0: the host said stop, do nothing
ABORT = 16  # address of a word that the host sets to stop the device (page-locked memory)
STATE_BYTES = 128

TASK_BYTES = TASK.itemsize
TASK_SOURCE = _place(TASK, "source")
TASK_SECOND = _place(TASK, "second")
TASK_TARGET = _place(TASK, "target")
TASK_FIRST = _place(TASK, "first")
TASK_TO = _place(TASK, "to")
TASK_COUNT = _place(TASK, "count")
TASK_NEAR_ROWS = _place(TASK, "near_rows")

BLOCK_BYTES = BLOCK.itemsize
BLOCK_PART = _place(BLOCK, "part")
BLOCK_PARTS = _place(BLOCK, "parts")

FLAG_BYTES = FLAG.itemsize
FLAG_ADDRESS = _place(FLAG, "address")
FLAG_MULTIPLIER = _place(FLAG, "multiplier")
FLAG_OFFSET = _place(FLAG, "offset")

#: Threads of the block of a flag kernel.
FLAG_THREADS = 32


class Begin(NamedTuple):
    """The parameters of the kernel :func:`dgcl.kernels.cuda_flags.begin`."""

    state: int
    ring: int = 0
    ring_length: int = 1
    addresses: int = 0
    num_slots: int = 0
    lines: int = 0
    num_lines: int = 0
    awaited: int = 0
    num_awaited: int = 0


class SignalWait(NamedTuple):
    """The parameters of the kernel :func:`dgcl.kernels.cuda_flags.signal_wait`."""

    state: int
    raised: int = 0
    num_raised: int = 0
    awaited: int = 0
    num_awaited: int = 0
    ended: int = 0
    num_ended: int = 0


def records(kind: np.dtype, rows: list[dict[str, Any]]) -> np.ndarray:
    """A table of records; fields that a row leaves out are 0."""
    table = np.zeros(len(rows), kind)
    for place, row in enumerate(rows):
        for name, value in row.items():
            table[name][place] = value
    return table


def arrival_pointers(arrival_rows: np.ndarray, num_rows: int) -> np.ndarray:
    """``(num_rows + 1,)`` int32: the arrivals of local row i are ``[pointers[i], pointers[i + 1])``.

    Args:
        arrival_rows: int32, sorted: the local row that each arrival is added to.
        num_rows: Local rows, relay rows included.
    """
    return np.searchsorted(arrival_rows, np.arange(num_rows + 1)).astype(np.int32)

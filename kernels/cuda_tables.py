"""The tables in device memory that the CUDA kernels read.

A captured CUDA graph repeats a launch with the same parameters. So what differs from call to call (its number, the
addresses of its buffers) is not a parameter: kernels read it from device memory. Parameters are the addresses of these
tables, which live as long as the communicator, and the size of a row.

=========  ===============================================================================================
table      what
=========  ===============================================================================================
state      int64 words of one communicator: the number of the call, whether to skip, what it waits for
addresses  int64 words, buffers by *slot*: this rank's rows, relay rows, arrivals, each peer's buffers, ...
tasks      :data:`TASK` records: rows for one peer, gathered or summed
blocks     :data:`BLOCK` records: which thread block works on which share of which task
flags      :data:`FLAG` records: words to wait for or to raise
lines      int64 words: addresses of the ready lines that this rank writes
maps       :data:`MAP` records: a peer's segments and where they are mapped here
=========  ===============================================================================================
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np


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
TASK: Final = _record("source", "second", "target", "first", "to", "count", "near_rows", "spare")

#: Thread block i of a launch is the ``part``-th of the ``parts`` that work on ``task``.
BLOCK: Final = _record("task", "part", "parts", "spare", kind="i4")

#: A flag at ``address``; its value in call n is ``n * multiplier + offset``. A flag that is waited for may
#: be the call number of a peer's ready line: then ``maps`` is where to find this peer's MAP records and
#: ``num_maps`` how many they are, and the line's two buffers are entered in slots ``target`` and ``target +
#: 1``.
FLAG: Final = _record("address", "multiplier", "offset", "target", "maps", "num_maps", "peer", "stage")

#: Segment ``base`` of a peer, of ``size`` bytes, is mapped here at ``address``; 0: a free place.
MAP: Final = _record("base", "size", "address")

#: Words of the state.
CALL: Final = 0  # number of the current call; the first is 1
SKIP: Final = 8  # not 0: something went wrong, do nothing
ABORT: Final = 16  # address of a word that the host sets to stop the device (page-locked memory)
WAITING: Final = 24  # 1 + the place of the flag that is being waited for; 0: none
FAULT: Final = 32  # why SKIP was set: one of the codes below
WHERE: Final = 40  # the place of the flag where it was noticed
STATE_BYTES: Final = 128

#: Codes of FAULT: the host said stop; a peer makes another call; the host said stop while a peer's buffer was
#: in a segment not mapped here.
ABORTED: Final = 1
DISAGREES: Final = 2
UNMAPPED: Final = 3

#: What the host writes to every flag that a device may be waiting for, after the abort word.
FLAG_MAX: Final = 2**63 - 1

TASK_BYTES: Final = TASK.itemsize
TASK_SOURCE: Final = _place(TASK, "source")
TASK_SECOND: Final = _place(TASK, "second")
TASK_TARGET: Final = _place(TASK, "target")
TASK_FIRST: Final = _place(TASK, "first")
TASK_TO: Final = _place(TASK, "to")
TASK_COUNT: Final = _place(TASK, "count")
TASK_NEAR_ROWS: Final = _place(TASK, "near_rows")

BLOCK_BYTES: Final = BLOCK.itemsize
BLOCK_PART: Final = _place(BLOCK, "part")
BLOCK_PARTS: Final = _place(BLOCK, "parts")

FLAG_BYTES: Final = FLAG.itemsize
FLAG_ADDRESS: Final = _place(FLAG, "address")
FLAG_MULTIPLIER: Final = _place(FLAG, "multiplier")
FLAG_OFFSET: Final = _place(FLAG, "offset")
FLAG_TARGET: Final = _place(FLAG, "target")
FLAG_MAPS: Final = _place(FLAG, "maps")
FLAG_NUM_MAPS: Final = _place(FLAG, "num_maps")

MAP_BYTES: Final = MAP.itemsize
MAP_SIZE: Final = _place(MAP, "size")
MAP_ADDRESS: Final = _place(MAP, "address")


#: Threads of the block of a flag kernel.
FLAG_THREADS: Final = 32

#: The last parameters of the kernel ``begin``, which differ from call to call: this rank's buffers.
NUM_ENTERED: Final = 11


class Begin(NamedTuple):
    """The parameters of the kernel :func:`dgcl.kernels.cuda_flags.begin` before the last :data:`NUM_ENTERED`."""

    state: int
    addresses: int = 0
    words: int = 0
    num_words: int = 0
    lines: int = 0
    num_lines: int = 0
    ready: int = 0
    num_ready: int = 0
    awaited: int = 0
    num_awaited: int = 0


class SignalWait(NamedTuple):
    """The parameters of the kernel :func:`dgcl.kernels.cuda_flags.signal_wait`."""

    state: int
    raised: int = 0
    num_raised: int = 0
    addresses: int = 0
    tag: int = 0
    ready: int = 0
    num_ready: int = 0
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

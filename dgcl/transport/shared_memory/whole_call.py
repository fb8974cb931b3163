"""A whole call in one compiled step: tell the senders where to write, send, wait, copy own rows or add.

What of a call does not change from one to the next with the same row shape and dtype is prepared once, as one array
of words: addresses and lengths of the task's arrays, and the numbers that the ranks must agree on. So nothing is
looked up, built or converted between "here are rows" and "here is the result". Only where something is out of the
ordinary (a segment must be mapped, a peer makes another call, a wait takes long) the step returns early, with all that
is done noted in the task's arrays; :meth:`dgcl.transport.shared_memory.calls.CallRunner.run` goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import boolean, carray, int32, int64, njit, types, uint8

from dgcl.kernels.compiled import compiled
from dgcl.kernels.copies import STREAMED, write_bytes
from dgcl.kernels.memory import pointer_to
from dgcl.kernels.rows import sum_rows
from dgcl.transport.shared_memory.engine import ALL, DONE, EXPAND, FOLD, WAITING, advance, announce

if TYPE_CHECKING:
    from dgcl.transport.shared_memory.tasks import Task
    from dgcl.transport.shared_memory.wait_policy import WaitPolicy

# The arrays by number: eight of sends from 0 on, two of receives, three tables, three of lines, three maps, and these.
_RECEIVES, _TABLES, _LINES, _MAPS = 8, 10, 13, 16
_WAKE_WORDS, _SENT, _RECEIVED, _MOVED, _WHERE, _YIELDS, _SCRATCH, _OWN_READY, _OWN_SENDERS = range(19, 28)
_NUM_ARRAYS: Final = 28
# Single words, behind the address and length of each array.
_MAPS_WIDTH, _WAKE_WORD, _CALL_WORD, _NUM_STAGES, _TAG, _ROW_BYTES, _SUM_CODE, _STREAMED = range(
    2 * _NUM_ARRAYS, 2 * _NUM_ARRAYS + 8
)
_OWNED, _LOCAL, _POLICY, _LINE = _STREAMED + 1, _STREAMED + 2, _STREAMED + 3, _STREAMED + 8
_NUM_WORDS: Final = _LINE + 7  # last, a ready line without its call


def pack_words(
    task: Task,
    maps: Sequence[np.ndarray],
    moved: np.ndarray,
    addresses: tuple[int, int, int],
    agreed: tuple[int, int, int],
    num_rows: tuple[int, int],
    policy: WaitPolicy,
) -> np.ndarray:
    """The words of a call; the arrays must live, where they are, as long as these are used.

    Args:
        task: The verb's.
        maps: What is mapped of each peer (:func:`dgcl.transport.shared_memory.engine.advance`).
        moved: ``(P,)`` int64, bytes written to each peer; added to.
        addresses: Of this rank's wake word and of the call on its control page; and K, the stages that a call counts.
        agreed: Tag, bytes of a row, code of the element type.
        num_rows: Owned rows, and local rows.
        policy: How to wait.
    """
    arrays = [*task.sends, *task.receives, *task.tables, *task.lines, *maps, task.wake_words]
    arrays += [
        task.sent,
        task.received,
        moved,
        task.where,
        task.yields,
        task.scratch,
        task.own_ready,
        task.own_senders,
    ]
    assert len(arrays) == _NUM_ARRAYS
    assert all(array.flags.c_contiguous for array in arrays)
    words = np.zeros(_NUM_WORDS, np.int64)
    words[: 2 * _NUM_ARRAYS : 2] = [array.ctypes.data for array in arrays]
    words[1 : 2 * _NUM_ARRAYS : 2] = [len(array) for array in arrays]
    numbers = (maps[0].shape[1], *addresses, *agreed, task.streamed_from(agreed[1]), *num_rows, *policy)
    words[_MAPS_WIDTH:_LINE] = numbers
    return words


@njit(nogil=True, inline="always")
def _narrow(words: np.ndarray, i: int) -> Any:
    return carray(pointer_to(words[2 * i], int32(0)), (words[2 * i + 1],))


@njit(nogil=True, inline="always")
def _wide(words: np.ndarray, i: int) -> Any:
    return carray(pointer_to(words[2 * i], int64(0)), (words[2 * i + 1],))


@njit(nogil=True, inline="always")
def _table(words: np.ndarray, i: int, columns: int) -> Any:
    return carray(pointer_to(words[2 * i], int64(0)), (words[2 * i + 1], columns))


@njit(nogil=True, inline="always")
def _marks(words: np.ndarray, i: int) -> Any:
    return carray(pointer_to(words[2 * i], uint8(0)), (words[2 * i + 1],))


@njit(nogil=True)
def begin_call(words: np.ndarray, number: int, place: tuple[int, ...], passing: tuple[int, ...]) -> None:
    """Mark nothing as done, and tell the senders where to write."""
    _marks(words, _SENT)[:] = 0
    _marks(words, _RECEIVED)[:] = 0
    line = words[_LINE:]
    line[0] = words[_TAG]
    for i in range(3):
        line[1 + i] = place[i]
        line[4 + i] = passing[i]
    announce(_wide(words, _OWN_READY), _wide(words, _OWN_SENDERS), words[_CALL_WORD], number, line)


@compiled(inline=False)  # once, not for every constant that a caller gives it
def advance_call(
    words: np.ndarray,
    verb: int,
    number: int,
    buffers: tuple[int, int, int],
    policy: tuple[int, int, int, int, int],
) -> int:
    """Advance the call as the policy allows."""
    width = words[_MAPS_WIDTH]
    return advance(
        (
            verb,
            number,
            words[_NUM_STAGES],
            words[_TAG],
            words[_ROW_BYTES],
            words[_SUM_CODE],
            words[_STREAMED],
        ),
        buffers,
        (
            _narrow(words, 0),
            _narrow(words, 1),
            _table(words, 2, 2),
            _table(words, 3, 2),
            _table(words, 4, 2),
            _wide(words, 5),
            _narrow(words, 6),
            _table(words, 7, 2),
        ),
        (_narrow(words, _RECEIVES), _narrow(words, _RECEIVES + 1)),
        (_narrow(words, _TABLES), _narrow(words, _TABLES + 1), _narrow(words, _TABLES + 2)),
        (_wide(words, _LINES), _wide(words, _LINES + 1), _wide(words, _LINES + 2)),
        (_table(words, _MAPS, width), _table(words, _MAPS + 1, width), _table(words, _MAPS + 2, width)),
        _wide(words, _WAKE_WORDS),
        words[_WAKE_WORD],
        _marks(words, _SENT),
        _marks(words, _RECEIVED),
        _wide(words, _MOVED),
        _wide(words, _WHERE),
        carray(pointer_to(words[0], int64(0)), (0, 2)),
        policy,
        _wide(words, _YIELDS),
        _wide(words, _SCRATCH),
        ALL,
    )


@compiled(types.UniTuple(int64, 3)(int64, int64, int64, int64, int64, int64, boolean))
def expand_buffers(
    rows: int, num_owned: int, num_local: int, row_bytes: int, result: int, relay: int, apart: bool
) -> tuple[int, int, int]:
    """What the engine reads in an expand (:func:`dgcl.transport.shared_memory.engine.advance`)."""
    if apart:
        return rows, num_owned, result + num_owned * row_bytes
    return result, num_local, relay


@njit(nogil=True, inline="always")
def _four(address: int) -> tuple[int, int, int, int]:
    words = carray(pointer_to(address, int64(0)), (4,))
    return words[0], words[1], words[2], words[3]


@njit(nogil=True, inline="always")
def _policy(words: np.ndarray) -> tuple[int, int, int, int, int]:
    return words[_POLICY], words[_POLICY + 1], words[_POLICY + 2], words[_POLICY + 3], words[_POLICY + 4]


# Python calls these two with numbers alone, which is what it can hand over fastest.


@compiled(int64(int64, int64, int64, int64, int64))
def expand_in_one_step(prepared: int, number: int, rows: int, result: int, relay: int) -> int:
    """Carry out an expand, or begin it; return the engine's status.

    Args:
        prepared: Address of what :func:`pack_words` made.
        number: Of the call.
        rows: Address of the owned rows. They are copied into the result in any case.
        result, relay: Address of four words that say where the result is, and where the relay rows are: segment base,
            segment size, offset, address. They are the same if there are no relay rows: then owned rows are sent from
            where they are, before they are copied.
    """
    words = carray(pointer_to(prepared, int64(0)), (_NUM_WORDS,))
    place, passing, apart, policy = _four(result), _four(relay), result == relay, _policy(words)
    begin_call(words, number, place, passing)
    own_bytes = words[_OWNED] * words[_ROW_BYTES]
    buffers = expand_buffers(
        rows, words[_OWNED], words[_LOCAL], words[_ROW_BYTES], place[3], passing[3], apart
    )
    status = WAITING
    if apart:
        status = advance_call(words, EXPAND, number, buffers, (0, 0, 0, 0, 0))
    write_bytes(place[3], rows, own_bytes)
    if status == WAITING:
        status = advance_call(words, EXPAND, number, buffers, policy)
    return status


@compiled(int64(int64, int64, int64, int64, int64))
def fold_in_one_step(prepared: int, number: int, rows: int, result: int, arrived: int) -> int:
    """Carry out a fold, or begin it; return the engine's status. Sums are made when it is DONE.

    Args:
        prepared, number: As for :func:`expand_in_one_step`.
        rows: Address of the local rows, which are only read.
        result, arrived: Address of four words, as there, of the sums and of the memory for what arrives.
    """
    words = carray(pointer_to(prepared, int64(0)), (_NUM_WORDS,))
    arrivals = _four(arrived)
    begin_call(words, number, arrivals, arrivals)
    status = advance_call(words, FOLD, number, (rows, words[_LOCAL], arrivals[3]), _policy(words))
    if status == DONE:
        sum_rows(
            words[_SUM_CODE],
            _four(result)[3],
            rows,
            0,
            words[_OWNED],
            _narrow(words, _TABLES + 1),
            _narrow(words, _TABLES + 2),
            0,
            arrivals[3],
            words[_ROW_BYTES],
            STREAMED,
        )
    return status

"""Gathers rows by index, and adds rows that arrived to a rank's own, in memory of any process.

All functions take addresses and sizes in bytes. Row indices are int32 (a part has fewer than 2**31 rows). Every product
of an index and a row size is formed in 64 bits, and no address is mixed with an unsigned integer: numba would make a
float64 of the two, which is exact below 2**53 only.
Called by `dgcl/transport/shared_memory/engine`, `dgcl/transport/shared_memory/interpreter`, `dgcl/offload/placing`,
`dgcl/transport/precompile` and others. Free to change while sums are added in the order of arrival, and 16-bit floats
in float32 with one rounding (`tests/kernels/test_rows.py`).
"""

import numpy as np
from numba import boolean, float32, int32, int64, njit, uint16, void

from dgcl.kernels.additions import BFLOAT16, FLOAT16, add_row
from dgcl.kernels.additions import SUMMABLE as SUMMABLE  # the codes of :func:`sum_rows`
from dgcl.kernels.compiled import compiled
from dgcl.kernels.copies import AHEAD, CLAIMED, claim_row, prefetch_row, stream_bytes
from dgcl.kernels.half import bfloat_to_single, half_to_single, single_to_bfloat, single_to_half
from dgcl.kernels.memory import STACK_BYTES, copy_bytes, pointer_to, stack_memory, write_fence

_CLAIMED_FROM = 64  # bytes of a row; of narrower ones several share a line
_BLOCK = 512  # columns of 16-bit floats that are added in float32 at a time


# :func:`sum_rows` is the whole arithmetic of a fold: the sum of a rank's own row and of what arrived for it, in
# the order of the arrival slots. No atomics, so the same input gives the same bits. 16-bit floats are added in
# float32 and rounded once.


@njit(nogil=True, inline="always")
def _row_address(source: int, num_source_rows: int, overflow: int, row: int, row_bytes: int) -> int:
    """Where a row lies whose index counts on from the source into the overflow."""
    wide = int64(row)
    if wide < num_source_rows:
        return source + wide * row_bytes
    return overflow + (wide - num_source_rows) * row_bytes


@compiled(void(int64, int64, int64, int64, int32[::1], int64, int64, int64, int64))
def gather_rows(
    destination: int,
    source: int,
    num_source_rows: int,
    overflow: int,
    rows: np.ndarray,
    begin: int,
    end: int,
    row_bytes: int,
    streamed_from: int,
) -> None:
    """Copy rows ``rows[begin:end]`` to ``destination``, one behind the other; past the caches if they have
    ``streamed_from`` bytes, but rows of 4 bytes never.

    A row index below ``num_source_rows`` counts from address ``source``; one at or above it counts from
    ``overflow`` (a rank's relay rows, which live apart from its result).
    """
    if row_bytes == 4:
        narrow = pointer_to(destination, int32(0))
        near = pointer_to(source, int32(0))
        for i in range(begin, end):
            row = int64(rows[i])
            if row < num_source_rows:
                narrow[i - begin] = near[row]
            else:
                copy_bytes(destination + (i - begin) * 4, overflow + (row - num_source_rows) * 4, 4)
        return
    streamed = (end - begin) * row_bytes >= streamed_from
    i = begin
    while i < end:
        row = int64(rows[i])
        past = i + 1  # rows[i:past] lie one behind the other and go in one piece
        while past < end and rows[past] == row + (past - i) and rows[past] != num_source_rows:
            past += 1
        for k in range(i + AHEAD, min(past + AHEAD, end, i + 2 * AHEAD)):
            prefetch_row(_row_address(source, num_source_rows, overflow, rows[k], row_bytes), row_bytes)
        target = destination + (i - begin) * row_bytes
        address = _row_address(source, num_source_rows, overflow, row, row_bytes)
        if streamed:
            stream_bytes(target, address, (past - i) * row_bytes)
        else:
            if row_bytes >= _CLAIMED_FROM:
                for k in range(max(i + CLAIMED, past), min(past + CLAIMED, end)):
                    claim_row(destination + (k - begin) * row_bytes, row_bytes)
            copy_bytes(target, address, (past - i) * row_bytes)
        i = past
    if streamed:
        write_fence()


@njit(nogil=True, inline="always")
def _prefetch_arrival(own: int, arrivals: int, row: int, slot: int, row_bytes: int) -> None:
    """Ask for what an addition will read: a row of the rank's own, if it has one, and what arrived for it."""
    if own != 0:
        prefetch_row(own + int64(row) * row_bytes, row_bytes)
    prefetch_row(arrivals + int64(slot) * row_bytes, row_bytes)


@compiled(void(int64, int64, int64, int64, int64, int32[::1], int32[::1], int64, int64, int64, int64))
def sum_rows(
    code: int,
    destination: int,
    own: int,
    begin: int,
    end: int,
    arrival_rows: np.ndarray,
    arrival_slots: np.ndarray,
    first: int,
    arrivals: int,
    row_bytes: int,
    streamed_from: int,
) -> None:
    """Write the sums for local rows ``begin:end`` to ``destination``, one behind the other.

    The sum of row ``i`` is ``own[i]`` (left out when ``own`` is 0), then ``arrivals[arrival_slots[p]]`` for
    every ``p`` with ``arrival_rows[p] == i``, in that order. ``arrival_rows`` is sorted; ``first`` is the
    first ``p`` with ``arrival_rows[p] >= begin``. Without own rows every row of the range has at least one
    arrival. ``code`` is the element type's place in :data:`SUMMABLE`. Sums of at least ``streamed_from`` bytes are
    written past the caches, but 16-bit floats never.
    """
    if code == FLOAT16 or code == BFLOAT16:
        _sum_16bit(
            code == FLOAT16,
            destination,
            own,
            begin,
            end,
            arrival_rows,
            arrival_slots,
            first,
            arrivals,
            row_bytes,
        )
        return
    last = len(arrival_rows)
    streamed = (end - begin) * row_bytes >= streamed_from
    # A row that fits there is summed in the first-level cache before it is streamed.
    stage = stack_memory() if streamed and row_bytes <= STACK_BYTES else int64(0)
    p = first
    row = begin
    while row < end:
        stop = min(int64(arrival_rows[p]), end) if p < last else end
        place = destination + (row - begin) * row_bytes
        if stop > row:  # a run of rows for which nothing arrived
            if streamed:
                stream_bytes(place, own + row * row_bytes, (stop - row) * row_bytes)
            else:
                copy_bytes(place, own + row * row_bytes, (stop - row) * row_bytes)
            row = stop
            continue
        target = place if stage == 0 else stage
        if own != 0:
            so_far = own + row * row_bytes
        else:
            so_far = arrivals + int64(arrival_slots[p]) * row_bytes
            p += 1
            if p == last or arrival_rows[p] != row:
                copy_bytes(target, so_far, row_bytes)
        while p < last and arrival_rows[p] == row:
            if p + AHEAD < last:
                _prefetch_arrival(own, arrivals, arrival_rows[p + AHEAD], arrival_slots[p + AHEAD], row_bytes)
            add_row(code, target, so_far, arrivals + int64(arrival_slots[p]) * row_bytes, row_bytes)
            so_far = target
            p += 1
        if stage != 0:
            stream_bytes(place, target, row_bytes)
        row += 1
    if streamed:
        write_fence()


@njit(nogil=True, inline="always")
def _to_single(is_half: bool, bits: int) -> float:
    return half_to_single(bits) if is_half else bfloat_to_single(bits)


@compiled(
    void(boolean, int64, int64, int64, int64, int32[::1], int32[::1], int64, int64, int64),
    inline=False,
    entry=False,
)
def _sum_16bit(
    is_half: bool,
    destination: int,
    own: int,
    begin: int,
    end: int,
    arrival_rows: np.ndarray,
    arrival_slots: np.ndarray,
    first: int,
    arrivals: int,
    row_bytes: int,
) -> None:
    """:func:`sum_rows` for float16, or else bfloat16: blocks of columns are added in float32 and rounded once."""
    width = row_bytes // 2
    last = len(arrival_rows)
    total = pointer_to(stack_memory(), float32(0))
    p = first
    row = begin
    while row < end:
        stop = min(int64(arrival_rows[p]), end) if p < last else end
        place = destination + (row - begin) * row_bytes
        if stop > row:
            copy_bytes(place, own + row * row_bytes, (stop - row) * row_bytes)
            row = stop
            continue
        past = p
        while past < last and arrival_rows[past] == row:
            past += 1
        for start in range(0, width, _BLOCK):
            columns = min(_BLOCK, width - start)
            if own != 0:
                mine = pointer_to(own + row * row_bytes + start * 2, uint16(0))
                for column in range(columns):
                    total[column] = _to_single(is_half, mine[column])
            else:
                for column in range(columns):
                    total[column] = float32(0)
            for q in range(p, past):
                slot = arrivals + int64(arrival_slots[q]) * row_bytes + start * 2
                theirs = pointer_to(slot, uint16(0))
                for column in range(columns):
                    total[column] += _to_single(is_half, theirs[column])
            out = pointer_to(place + start * 2, uint16(0))
            if is_half:
                for column in range(columns):
                    out[column] = single_to_half(total[column])
            else:
                for column in range(columns):
                    out[column] = single_to_bfloat(total[column])
        p = past
        row += 1


@compiled(void(int64, int64, int64, int32[::1], int32[::1], int64, int64))
def add_arrivals(
    code: int,
    rows: int,
    num_rows: int,
    arrival_rows: np.ndarray,
    arrival_slots: np.ndarray,
    arrivals: int,
    row_bytes: int,
) -> None:
    """Add to each of ``num_rows`` rows at address ``rows`` what arrived for it, in place.

    As :func:`sum_rows` over all of them with ``destination`` and ``own`` both ``rows``, without touching rows
    for which nothing arrived.
    """
    p = 0
    while p < len(arrival_rows) and arrival_rows[p] < num_rows:
        row = int64(arrival_rows[p])
        target = rows + row * row_bytes
        if code == FLOAT16 or code == BFLOAT16:
            half = code == FLOAT16
            _sum_16bit(half, target, rows, row, row + 1, arrival_rows, arrival_slots, p, arrivals, row_bytes)
            while p < len(arrival_rows) and arrival_rows[p] == row:
                p += 1
        else:
            if p + AHEAD < len(arrival_rows):
                _prefetch_arrival(
                    rows, arrivals, arrival_rows[p + AHEAD], arrival_slots[p + AHEAD], row_bytes
                )
            add_row(code, target, target, arrivals + int64(arrival_slots[p]) * row_bytes, row_bytes)
            p += 1

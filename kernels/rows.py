"""Gather rows, and add rows in a fixed order; on raw addresses, for any row width.

The kernels read every row once and write every row once. Index tables are int32 (a rank holds fewer than
2**31 rows); every product of an index and a row size is formed in 64 bits.

:func:`sum_rows` is the whole arithmetic of a fold: the sum of a rank's own row and of what arrived for it, in
the order of the arrival slots. No atomics, so the same input gives the same bits. 16-bit floats are added in
float32 and rounded once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import carray, float32, float64, int8, int16, int32, int64, njit, uint8, uint16

from dgcl.kernels.copies import AHEAD, CLAIMED, STREAMED, claim_row, prefetch_row, stream_bytes
from dgcl.kernels.half import bfloat_to_single, half_to_single, single_to_bfloat, single_to_half
from dgcl.kernels.memory import copy_bytes, pointer_to, write_fence

#: Hash of the kernels compiled into the cached functions here, which numba does not look at; held by a test.
COMPILED_FROM: Final = "2f9c43e6a09e447e"

#: Names of the element types that :func:`sum_rows` can add, in the order of their codes.
SUMMABLE: Final = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8")

_STAGED: Final = (
    16 << 10
)  # the longest row in bytes that is summed in the first-level cache before it is streamed
_CLAIMED_FROM: Final = 64  # bytes of a row; of narrower ones several share a line
_BLOCK: Final = 512  # columns of 16-bit floats that are added in float32 at a time


@njit(nogil=True, inline="always")
def _row_address(source: int, num_source_rows: int, overflow: int, row: int, row_bytes: int) -> int:
    """Where a row lies whose index counts on from the source into the overflow."""
    wide = int64(row)
    if wide < num_source_rows:
        return source + wide * row_bytes
    return overflow + (wide - num_source_rows) * row_bytes


@njit(nogil=True, inline="never")
def gather_rows(
    destination: int,
    source: int,
    num_source_rows: int,
    overflow: int,
    rows: np.ndarray,
    begin: int,
    end: int,
    row_bytes: int,
    streamed_from: int = STREAMED,
) -> None:
    """Copy rows ``rows[begin:end]`` to ``destination``, one behind the other; past the caches if they have
    ``streamed_from`` bytes, but rows of 4 bytes never.

    A row index below ``num_source_rows`` counts from address ``source``; one at or above it counts from
    ``overflow`` (a rank's relay rows, which live apart from its result).
    """
    if row_bytes == 4:
        narrow = carray(pointer_to(destination, int32(0)), (end - begin,))
        near = carray(pointer_to(source, int32(0)), (num_source_rows,))
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
def _add_exact(first: Any, target: int, left: int, right: int, width: int) -> None:
    """target = left + right, elementwise, in the type of ``first``."""
    out = carray(pointer_to(target, first), (width,))
    a = carray(pointer_to(left, first), (width,))
    b = carray(pointer_to(right, first), (width,))
    for column in range(width):
        out[column] = a[column] + b[column]


@njit(nogil=True, inline="always")
def _add_into(first: Any, target: int, right: int, width: int) -> None:
    """target += right. Apart from :func:`_add_exact`, whose loop is only a fast one where nothing overlaps."""
    out = carray(pointer_to(target, first), (width,))
    b = carray(pointer_to(right, first), (width,))
    for column in range(width):
        out[column] += b[column]


@njit(nogil=True, inline="always")
def _prefetch_arrival(own: int, arrivals: int, row: int, slot: int, row_bytes: int) -> None:
    """Ask for what an addition will read: a row of the rank's own, if it has one, and what arrived for it."""
    if own != 0:
        prefetch_row(own + int64(row) * row_bytes, row_bytes)
    prefetch_row(arrivals + int64(slot) * row_bytes, row_bytes)


@njit(nogil=True, inline="never")
def _sum_exact(
    zero: Any,
    itemsize: int,
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
    width = row_bytes // itemsize
    last = arrival_rows.shape[0]
    streamed = (end - begin) * row_bytes >= streamed_from
    staged = streamed and row_bytes <= _STAGED
    stage = np.empty(row_bytes if staged else 0, np.uint8)
    p = first
    row = begin
    while row < end:
        stop = min(int64(arrival_rows[p]), end) if p < last else end
        if stop > row:  # a run of rows for which nothing arrived
            target, num_bytes = destination + (row - begin) * row_bytes, (stop - row) * row_bytes
            if streamed:
                stream_bytes(target, own + row * row_bytes, num_bytes)
            else:
                copy_bytes(target, own + row * row_bytes, num_bytes)
            row = stop
            continue
        place = destination + (row - begin) * row_bytes
        target = stage.ctypes.data if staged else place
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
            arrived = arrivals + int64(arrival_slots[p]) * row_bytes
            if so_far == target:
                _add_into(zero, target, arrived, width)
            else:
                _add_exact(zero, target, so_far, arrived, width)
            so_far = target
            p += 1
        if staged:
            stream_bytes(place, target, row_bytes)
        row += 1
    if streamed:
        write_fence()


@njit(nogil=True, inline="never")
def _add_arrivals_exact(
    zero: Any,
    itemsize: int,
    rows: int,
    num_rows: int,
    arrival_rows: np.ndarray,
    arrival_slots: np.ndarray,
    arrivals: int,
    row_bytes: int,
) -> None:
    last = np.searchsorted(arrival_rows, num_rows)
    for p in range(last):
        if p + AHEAD < last:
            _prefetch_arrival(rows, arrivals, arrival_rows[p + AHEAD], arrival_slots[p + AHEAD], row_bytes)
        target = rows + int64(arrival_rows[p]) * row_bytes
        arrived = arrivals + int64(arrival_slots[p]) * row_bytes
        _add_into(zero, target, arrived, row_bytes // itemsize)


@njit(nogil=True, inline="always")
def _to_single(is_half: bool, bits: int) -> float:
    return half_to_single(bits) if is_half else bfloat_to_single(bits)


@njit(nogil=True, inline="never")
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
    width = row_bytes // 2
    last = arrival_rows.shape[0]
    total = np.empty(_BLOCK, np.float32)
    p = first
    row = begin
    while row < end:
        stop = min(int64(arrival_rows[p]), end) if p < last else end
        if stop > row:
            copy_bytes(
                destination + (row - begin) * row_bytes, own + row * row_bytes, (stop - row) * row_bytes
            )
            row = stop
            continue
        past = p
        while past < last and arrival_rows[past] == row:
            past += 1
        for start in range(0, width, _BLOCK):
            columns = min(_BLOCK, width - start)
            total[:columns] = 0.0
            if own != 0:
                mine = carray(pointer_to(own + row * row_bytes + start * 2, uint16(0)), (columns,))
                for column in range(columns):
                    total[column] = _to_single(is_half, mine[column])
            for q in range(p, past):
                slot = arrivals + int64(arrival_slots[q]) * row_bytes + start * 2
                theirs = carray(pointer_to(slot, uint16(0)), (columns,))
                for column in range(columns):
                    total[column] += _to_single(is_half, theirs[column])
            out = carray(
                pointer_to(destination + (row - begin) * row_bytes + start * 2, uint16(0)), (columns,)
            )
            if is_half:
                for column in range(columns):
                    out[column] = single_to_half(total[column])
            else:
                for column in range(columns):
                    out[column] = single_to_bfloat(total[column])
        p = past
        row += 1


@njit(nogil=True, cache=True)
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
    streamed_from: int = STREAMED,
) -> None:
    """Write the sums for local rows ``begin:end`` to ``destination``, one behind the other; past the caches if they
    have ``streamed_from`` bytes, but 16-bit floats never.

    The sum of row ``i`` is ``own[i]`` (left out when ``own`` is 0), then ``arrivals[arrival_slots[p]]`` for
    every ``p`` with ``arrival_rows[p] == i``, in that order. ``arrival_rows`` is sorted; ``first`` is the
    first ``p`` with ``arrival_rows[p] >= begin``. Without own rows every row of the range has at least one
    arrival. ``code`` is the element type's place in :data:`SUMMABLE`.
    """
    task = (destination, own, begin, end, arrival_rows, arrival_slots, first, arrivals, row_bytes)
    if code == 0:
        _sum_exact(float32(0), 4, *task, streamed_from)
    elif code == 1:
        _sum_exact(float64(0), 8, *task, streamed_from)
    elif code == 2 or code == 3:
        _sum_16bit(code == 2, *task)
    elif code == 4:
        _sum_exact(int8(0), 1, *task, streamed_from)
    elif code == 5:
        _sum_exact(int16(0), 2, *task, streamed_from)
    elif code == 6:
        _sum_exact(int32(0), 4, *task, streamed_from)
    elif code == 7:
        _sum_exact(int64(0), 8, *task, streamed_from)
    elif code == 8:
        _sum_exact(uint8(0), 1, *task, streamed_from)


@njit(nogil=True, cache=True)
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
    task = (rows, num_rows, arrival_rows, arrival_slots, arrivals, row_bytes)
    if code == 0:
        _add_arrivals_exact(float32(0), 4, *task)
    elif code == 1:
        _add_arrivals_exact(float64(0), 8, *task)
    else:
        last = np.searchsorted(arrival_rows, num_rows)
        p = 0
        while p < last:
            row = int64(arrival_rows[p])
            target = rows + row * row_bytes
            sum_rows(code, target, rows, row, row + 1, arrival_rows, arrival_slots, p, arrivals, row_bytes)
            while p < last and arrival_rows[p] == row:
                p += 1

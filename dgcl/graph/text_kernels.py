"""Compiled parser of lines that hold two vertex ids. Loaded on first use (numba)."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dgcl.kernels.compiled import compiled

OK, NOT_AN_ID, TOO_FEW, NEGATIVE, TOO_LARGE, OUT_OF_RANGE, COLUMNS, TOO_MANY = range(8)

_SPACE, _TAB, _RETURN, _COMMA, _PERCENT = 32, 9, 13, 44, 37
_NEWLINE, _MINUS, _ZERO, _NINE = 10, 45, 48, 57
_LARGEST = np.iinfo(np.int64).max


@njit(nogil=True, inline="always")
def _is_blank(byte: int) -> bool:
    return byte in (_SPACE, _TAB, _RETURN, _COMMA)


@compiled
def parse_edges(
    text: NDArray[np.uint8],
    comment: int,
    columns: int,
    low: int,
    high: int,
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
) -> tuple[int, int, int, int, int]:
    """Parse whole lines of ``u v [more columns]``, separated by blanks, tabs or commas.

    Blank lines, lines that begin with %, and whatever follows the byte `comment`, are skipped. Columns after
    the second are not read.

    Args:
        text: (bytes,) uint8; a line may lack its newline only if it is the last.
        comment: the byte that begins a comment.
        columns: how many columns each line must have; 0: as many as the first line has.
        low: smallest id allowed; it is subtracted from what is stored.
        high: one more than the largest id allowed; -1: any.
        src, dst: where ids go; more edges than they hold are error TOO_MANY.

    Returns:
        (edges parsed, lines seen, columns, error, start of the line at fault); error OK means that all is
        well.
    """
    count, lines, at = 0, 0, 0
    size = text.size
    ids = np.zeros(2, np.int64)
    while at < size:
        start = at
        lines += 1
        found = 0
        while at < size and text[at] != _NEWLINE:
            byte = text[at]
            if _is_blank(byte):
                at += 1
                continue
            if byte == comment or (byte == _PERCENT and found == 0):
                while at < size and text[at] != _NEWLINE:
                    at += 1
                break
            if found < 2:
                if byte == _MINUS and at + 1 < size and _ZERO <= text[at + 1] <= _NINE:
                    return count, lines, columns, NEGATIVE, start
                value = np.int64(0)
                first = at
                while at < size and _ZERO <= text[at] <= _NINE:
                    digit = np.int64(text[at]) - _ZERO
                    if value > (_LARGEST - digit) // 10:
                        return count, lines, columns, TOO_LARGE, start
                    value = 10 * value + digit
                    at += 1
                ends = at == size or text[at] == _NEWLINE or text[at] == comment or _is_blank(text[at])
                if at == first or not ends:
                    return count, lines, columns, NOT_AN_ID, start
                if value < low or (high >= 0 and value >= high):
                    return count, lines, columns, OUT_OF_RANGE, start
                ids[found] = value - low
            else:
                while at < size and text[at] != _NEWLINE and text[at] != comment and not _is_blank(text[at]):
                    at += 1
            found += 1
        at += 1
        if found == 0:
            continue
        if found < 2:
            return count, lines, columns, TOO_FEW, start
        if columns == 0:
            columns = found
        if found != columns:
            return count, lines, columns, COLUMNS, start
        if count == src.size:
            return count, lines, columns, TOO_MANY, start
        src[count] = ids[0]
        dst[count] = ids[1]
        count += 1
    return count, lines, columns, OK, -1

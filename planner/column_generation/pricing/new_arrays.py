"""Arrays that compiled code allocates and grows: numba would compile NumPy's functions anew for every use."""

from __future__ import annotations

import numpy as np

from dgcl.planner.arrays import BoolArray, FloatArray, Int32Array, Int64Array
from dgcl.planner.compiled import compiled


@compiled(inline=False, entry=False)
def new_floats(num: int) -> FloatArray:
    """Return (num,) zeros, float64."""
    return np.zeros(num)


@compiled(inline=False, entry=False)
def new_float_table(rows: int, columns: int) -> FloatArray:
    """Return (rows, columns) zeros, float64."""
    return np.zeros((rows, columns))


@compiled(inline=False, entry=False)
def new_ints(num: int) -> Int64Array:
    """Return (num,) int64, of any value."""
    return np.empty(num, np.int64)


@compiled(inline=False, entry=False)
def new_int_table(rows: int, columns: int) -> Int64Array:
    """Return (rows, columns) int64, of any value."""
    return np.empty((rows, columns), np.int64)


@compiled(inline=False, entry=False)
def new_int32s(num: int) -> Int32Array:
    """Return (num,) int32, of any value."""
    return np.empty(num, np.int32)


@compiled(inline=False, entry=False)
def new_int32_table(rows: int, columns: int) -> Int32Array:
    """Return (rows, columns) int32, of any value."""
    return np.empty((rows, columns), np.int32)


@compiled(inline=False, entry=False)
def new_flag_table(rows: int, columns: int) -> BoolArray:
    """Return (rows, columns) bool, of any value."""
    return np.empty((rows, columns), np.bool_)


@compiled(inline=False, entry=False)
def filled_ints(num: int, value: int) -> Int64Array:
    """Return (num,) int64, all of them `value`."""
    out = new_ints(num)
    for i in range(num):
        out[i] = value
    return out


@compiled(inline=False, entry=False)
def filled_int32s(num: int, value: int) -> Int32Array:
    """Return (num,) int32, all of them `value`."""
    out = new_int32s(num)
    for i in range(num):
        out[i] = value
    return out


@compiled(inline=False, entry=False)
def grown_int32s(array: Int32Array, num: int) -> Int32Array:
    """Return a copy with room for `num`."""
    out = new_int32s(num)
    for i in range(array.shape[0]):
        out[i] = array[i]
    return out


@compiled(inline=False, entry=False)
def grown_ints(array: Int64Array, num: int) -> Int64Array:
    """Return a copy with room for `num`."""
    out = new_ints(num)
    for i in range(array.shape[0]):
        out[i] = array[i]
    return out


@compiled(inline=False, entry=False)
def sort_ints(values: Int64Array, num: int) -> None:
    """Sort the first `num` values in place (Shell, 1959)."""
    gap = 1
    while 3 * gap < num:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, num):
            value, at = values[i], i
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap //= 3

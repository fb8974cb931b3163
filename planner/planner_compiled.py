"""``@compiled`` for the planner, and arrays that compiled code allocates.

This is the one door from here to :mod:`dgcl.kernels`, which owns compiling and its cache. numba would compile NumPy's
functions anew for every use.
"""

import numpy as np

from dgcl.kernels.compiled import compiled as compiled
from dgcl.planner.array_types import BoolArray, FloatArray, Int32Array


@compiled(inline=False, entry=False)
def new_floats(num: int) -> FloatArray:
    """Return (num,) zeros, float64."""
    return np.zeros(num)


@compiled(inline=False, entry=False)
def new_float_table(rows: int, columns: int) -> FloatArray:
    """Return (rows, columns) zeros, float64."""
    return np.zeros((rows, columns))


@compiled(inline=False, entry=False)
def new_int32_table(rows: int, columns: int) -> Int32Array:
    """Return (rows, columns) int32, of any value."""
    return np.empty((rows, columns), np.int32)


@compiled(inline=False, entry=False)
def new_flag_table(rows: int, columns: int) -> BoolArray:
    """Return (rows, columns) bool, of any value."""
    return np.empty((rows, columns), np.bool_)

"""Kernels that add rows to other rows at given indices, with and without atomic additions."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, float32, float64, int64, njit, types
from numba.extending import intrinsic

from dgcl.kernels.compiled import compiled
from dgcl.kernels.memory import pointer_to


@intrinsic
def _atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add ``value`` to the number at ``address``, in one piece (on x86 and Arm a compare-and-swap loop)."""
    number = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}[value]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], number.as_pointer())
        builder.atomic_rmw("fadd", place, args[1], "monotonic")
        return context.get_dummy_value()

    return types.void(types.intp, value), codegen


@njit(nogil=True, inline="always")
def _add(
    zero: Any, itemsize: int, atomic: bool, target: int, places: np.ndarray, rows: int, width: int
) -> None:
    for i in range(len(places)):
        to = target + int64(places[i]) * width * itemsize
        row = carray(pointer_to(rows + i * width * itemsize, zero), (width,))
        if atomic:
            for column in range(width):
                _atomic_add(to + column * itemsize, row[column])
        else:
            sums = carray(pointer_to(to, zero), (width,))
            for column in range(width):
                sums[column] += row[column]


@compiled
def add_rows(double: bool, atomic: bool, target: int, places: np.ndarray, rows: int, width: int) -> None:
    """Add row ``i`` at address ``rows`` to row ``places[i]`` at address ``target``, for every i.

    Rows are ``width`` numbers, float64 if ``double`` and float32 otherwise.
    """
    if double:
        _add(float64(0), 8, atomic, target, places, rows, width)
    else:
        _add(float32(0), 4, atomic, target, places, rows, width)

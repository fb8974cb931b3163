"""Adds one row to another, element by element, in any element type of `SUMMABLE` but the 16-bit floats.

Elements are added in their own type, whole vectors at a time; integers wrap around. Each type is a few LLVM
instructions around one addition: compiling a Python function for each takes ten times as long. 16-bit floats are added
by :func:`dgcl.kernels.rows.sum_rows`, in float32.
Called by `rows`. Free to change while sums of rows equal torch's additions bit for bit, in each type
(`tests/kernels/test_rows.py`).
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from dgcl.kernels.memory import emitting

#: Names of the element types that can be added, in the order of their codes.
SUMMABLE = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8")

#: Codes of the two that are added in float32 and rounded once.
FLOAT16, BFLOAT16 = SUMMABLE.index("float16"), SUMMABLE.index("bfloat16")

_WORD = ir.IntType(64)
_PIECES = (128, 16)  # bytes that are added at once; then the elements that are left


def _adder(element: ir.Type, element_bytes: int) -> Any:
    """An intrinsic ``add(target, left, right, num_bytes)`` for rows of one element type at three addresses."""

    def add_pieces(builder: Any, addresses: Any, begin: Any, end: Any, piece_bytes: int) -> Any:
        """Emit a loop over whole pieces from offset ``begin`` on; return the offset at which it stops."""
        size = ir.Constant(_WORD, piece_bytes)
        stop = builder.add(begin, builder.mul(builder.udiv(builder.sub(end, begin), size), size))
        kind = (
            ir.VectorType(element, piece_bytes // element_bytes) if piece_bytes > element_bytes else element
        )
        with cgutils.for_range_slice(builder, begin, stop, size, _WORD) as (offset, _):
            target, left, right = (
                builder.inttoptr(builder.add(address, offset), kind.as_pointer()) for address in addresses
            )
            add = builder.fadd if isinstance(element, ir.FloatType | ir.DoubleType) else builder.add
            total = add(builder.load(left, align=1), builder.load(right, align=1))
            builder.store(total, target, align=1)
        return stop

    @emitting(types.void, *[types.intp] * 4)
    def add(builder: Any, target: Any, left: Any, right: Any, num_bytes: Any) -> None:
        offset = ir.Constant(_WORD, 0)
        for piece_bytes in (*_PIECES, element_bytes):
            offset = add_pieces(builder, (target, left, right), offset, num_bytes, piece_bytes)

    return add


_add_float32 = _adder(ir.FloatType(), 4)
_add_float64 = _adder(ir.DoubleType(), 8)
_add_int8 = _adder(ir.IntType(8), 1)
_add_int16 = _adder(ir.IntType(16), 2)
_add_int32 = _adder(ir.IntType(32), 4)
_add_int64 = _adder(_WORD, 8)


@njit(nogil=True, inline="never")
def add_row(code: int, target: int, left: int, right: int, num_bytes: int) -> None:
    """Write ``left + right`` to ``target``: rows of ``num_bytes``, elements of type ``SUMMABLE[code]``.

    ``target`` may be ``left``; otherwise nothing overlaps. Not for 16-bit floats.
    """
    if code == 0:
        _add_float32(target, left, right, num_bytes)
    elif code == 1:
        _add_float64(target, left, right, num_bytes)
    elif code == 4 or code == 8:  # integers wrap around, with a sign or without
        _add_int8(target, left, right, num_bytes)
    elif code == 5:
        _add_int16(target, left, right, num_bytes)
    elif code == 6:
        _add_int32(target, left, right, num_bytes)
    elif code == 7:
        _add_int64(target, left, right, num_bytes)

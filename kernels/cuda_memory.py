"""Loads, stores, flags and sleep on raw device addresses, as inline PTX.

Numba's CUDA target has no 16-byte access, its atomics have GPU scope, and it has no ``nanosleep``; each of
these is one PTX instruction. Addresses are int64 and must lie in global memory: device memory of this or,
mapped here, another GPU, or page-locked host memory.

Called by `cuda_flags`, `cuda_numbers` and `cuda_rows`. Free to change while
`tests/kernels/test_cuda_numbers.py` passes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types

from dgcl.kernels.memory import emitting

_I32, _I64 = ir.IntType(32), ir.IntType(64)

#: unit -> (PTX type of one access, registers)
_ACCESS = {16: ("v4.u32", 4), 8: ("v2.u32", 2), 4: ("u32", 1), 2: ("u16", 1), 1: ("u8", 1)}


# All of it is marked as having side effects, so that the compiler keeps the order in which a kernel says it.
#
# Memory order. Flags are int64 words, naturally aligned, written with ``st.release.sys`` and read with
# ``ld.acquire.sys``. System scope, because the other side may be another GPU, the host, or another process.
# Under the PTX memory model a release is cumulative: it orders not only this thread's writes before the flag,
# but all writes that happened before this thread came so far. Rows are written by one kernel and their flag
# by the next in the same stream; the end of a kernel happens before the start of the next one, so who
# acquires the flag sees the rows, also when they lie in the memory of a third GPU. Likewise a kernel that
# reads rows starts after the kernel (or the stream's memory operation) that acquired their flag. Copy kernels
# therefore contain no fence at all.


# A *unit* is what one thread moves at a time: 16, 8, 4, 2 or 1 bytes, naturally aligned. It is held as a tuple of
# uint32 (four, two, and one for the smaller units, whose upper bits are zero after a load and ignored by a
# store).


def num_words(unit: int) -> int:
    """How many uint32 hold a unit."""
    return _ACCESS[unit][1]


def _call(builder: Any, text: str, constraints: str, result: Any, args: Any) -> Any:
    function = ir.FunctionType(result, [each.type for each in args])
    return builder.call(ir.InlineAsm(function, text, constraints, side_effect=True), args)


def load_unit(unit: int) -> Any:
    """A device function ``load(address) -> words`` for one unit."""
    kind, count = _ACCESS[unit]
    outputs = ", ".join(f"${i}" for i in range(count))
    text = f"ld.global.{kind} {{{outputs}}}, [${count}];" if count > 1 else f"ld.global.{kind} $0, [$1];"
    constraints = ",".join(["=r"] * count + ["l"])

    @emitting(types.UniTuple(types.uint32, count), types.int64)
    def load(builder: Any, address: Any) -> Any:
        """Load one unit."""
        result = ir.LiteralStructType([_I32] * count) if count > 1 else _I32
        loaded = _call(builder, text, constraints, result, [address])
        words = ir.Constant(ir.ArrayType(_I32, count), ir.Undefined)
        for i in range(count):
            words = builder.insert_value(words, builder.extract_value(loaded, i) if count > 1 else loaded, i)
        return words

    return load


def store_unit(unit: int) -> Any:
    """A device function ``store(address, words)`` for one unit."""
    kind, count = _ACCESS[unit]
    inputs = ", ".join(f"${i + 1}" for i in range(count))
    text = f"st.global.{kind} [$0], " + (f"{{{inputs}}};" if count > 1 else f"{inputs};")
    constraints = ",".join(["l"] + ["r"] * count)

    @emitting(types.void, types.int64, types.UniTuple(types.uint32, count))
    def store(builder: Any, address: Any, words: Any) -> None:
        """Store one unit."""
        values = [builder.extract_value(words, i) for i in range(count)]
        _call(builder, text, constraints, ir.VoidType(), [address, *values])

    return store


@emitting(types.int64, types.int64)
def load_word(builder: Any, address: Any) -> Any:
    """The int64 at ``address``, no order."""
    return _call(builder, "ld.global.s64 $0, [$1];", "=l,l", _I64, [address])


@emitting(types.void, types.int64, types.int64)
def store_word(builder: Any, address: Any, value: Any) -> None:
    """Write an int64, no order."""
    _call(builder, "st.global.s64 [$0], $1;", "l,l", ir.VoidType(), [address, value])


@emitting(types.int32, types.int64)
def load_index(builder: Any, address: Any) -> Any:
    """The int32 at ``address``, from a table that nobody writes while the kernel runs."""
    return _call(builder, "ld.global.nc.s32 $0, [$1];", "=r,l", _I32, [address])


@emitting(types.int64, types.int64)
def load_acquire(builder: Any, address: Any) -> Any:
    """The int64 at ``address``; after this, what its writer wrote before it can be read, wherever it ran."""
    return _call(builder, "ld.acquire.sys.global.s64 $0, [$1];", "=l,l,~{memory}", _I64, [address])


@emitting(types.void, types.int64, types.int64)
def store_release(builder: Any, address: Any, value: Any) -> None:
    """Write an int64 after everything that came before, for readers anywhere in the system."""
    text = "st.release.sys.global.s64 [$0], $1;"
    _call(builder, text, "l,l,~{memory}", ir.VoidType(), [address, value])


@emitting(types.void, types.int64)
def sleep_nanoseconds(builder: Any, duration: Any) -> None:
    """Leave the processor to others for about this long (the hardware takes between 0 and twice as long)."""
    text = "{ .reg .u32 t; cvt.u32.u64 t, $0; nanosleep.u32 t; }"
    _call(builder, text, "l", ir.VoidType(), [duration])


def inlined(function: Any) -> Any:
    """A step of several kernels, which the compiler puts in its place in each of them."""
    return njit(inline="always")(function)

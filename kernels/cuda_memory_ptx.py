"""Loads, stores, flags and sleep on raw device addresses, as inline PTX.

Numba's CUDA target has no 16-byte access, its atomics have GPU scope, and it has no ``nanosleep``; each of
these is one PTX instruction. Addresses are int64 and must lie in global memory: device memory of this or,
mapped here, another GPU, or page-locked host memory.

A *unit* is what one thread moves at a time: 16, 8, 4, 2 or 1 bytes, naturally aligned. It is held as a
tuple of uint32 (four, two, and one for the smaller units, whose upper bits are zero after a load and
ignored by a store).

All of it is marked as having side effects, so that the compiler keeps the order in which a kernel says it.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I32, _I64 = ir.IntType(32), ir.IntType(64)

#: unit -> (PTX type of one access, registers)
_ACCESS: Final = {16: ("v4.u32", 4), 8: ("v2.u32", 2), 4: ("u32", 1), 2: ("u16", 1), 1: ("u8", 1)}


def num_words(unit: int) -> int:
    """How many uint32 hold a unit."""
    return _ACCESS[unit][1]


def _assembly(result: Any, operands: list[Any], text: str, constraints: str) -> ir.InlineAsm:
    return ir.InlineAsm(ir.FunctionType(result, operands), text, constraints, side_effect=True)


def load_unit(unit: int) -> Any:
    """A device function ``load(address) -> words`` for one unit."""
    kind, count = _ACCESS[unit]
    outputs = ", ".join(f"${i}" for i in range(count))
    text = f"ld.global.{kind} {{{outputs}}}, [${count}];" if count > 1 else f"ld.global.{kind} $0, [$1];"
    constraints = ",".join(["=r"] * count + ["l"])

    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        """Load one unit."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            result = ir.LiteralStructType([_I32] * count) if count > 1 else _I32
            loaded = builder.call(_assembly(result, [_I64], text, constraints), args)
            words = [builder.extract_value(loaded, i) for i in range(count)] if count > 1 else [loaded]
            return context.make_tuple(builder, signature.return_type, words)

        return types.UniTuple(types.uint32, count)(types.int64), codegen

    return load


def store_unit(unit: int) -> Any:
    """A device function ``store(address, words)`` for one unit."""
    kind, count = _ACCESS[unit]
    inputs = ", ".join(f"${i + 1}" for i in range(count))
    text = f"st.global.{kind} [$0], " + (f"{{{inputs}}};" if count > 1 else f"{inputs};")
    constraints = ",".join(["l"] + ["r"] * count)

    @intrinsic
    def store(typingctx: Any, address: Any, words: Any) -> Any:
        """Store one unit."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            words = [builder.extract_value(args[1], i) for i in range(count)]
            builder.call(
                _assembly(ir.VoidType(), [_I64] + [_I32] * count, text, constraints), [args[0], *words]
            )
            return context.get_dummy_value()

        return types.void(types.int64, types.UniTuple(types.uint32, count)), codegen

    return store


def _reading(text: str, constraints: str) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(_assembly(_I64, [_I64], text, constraints), args)

    return types.int64(types.int64), codegen


def _writing(text: str, constraints: str) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.call(_assembly(ir.VoidType(), [_I64, _I64], text, constraints), args)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def load_word(typingctx: Any, address: Any) -> Any:
    """The int64 at ``address``, no order."""
    return _reading("ld.global.s64 $0, [$1];", "=l,l")


@intrinsic
def store_word(typingctx: Any, address: Any, value: Any) -> Any:
    """Write an int64, no order."""
    return _writing("st.global.s64 [$0], $1;", "l,l")


@intrinsic
def load_index(typingctx: Any, address: Any) -> Any:
    """The int32 at ``address``, from a table that nobody writes while the kernel runs."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(_assembly(_I32, [_I64], "ld.global.nc.s32 $0, [$1];", "=r,l"), args)

    return types.int32(types.int64), codegen


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """The int64 at ``address``; after this, what its writer wrote before it can be read, wherever it ran."""
    return _reading("ld.acquire.sys.global.s64 $0, [$1];", "=l,l,~{memory}")


@intrinsic
def store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Write an int64 after everything that came before, for readers anywhere in the system."""
    return _writing("st.release.sys.global.s64 [$0], $1;", "l,l,~{memory}")


@intrinsic
def sleep_nanoseconds(typingctx: Any, duration: Any) -> Any:
    """Leave the processor to others for about this long (the hardware takes between 0 and twice as long)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        text = "{ .reg .u32 t; cvt.u32.u64 t, $0; nanosleep.u32 t; }"
        builder.call(_assembly(ir.VoidType(), [_I64], text, "l"), args)
        return context.get_dummy_value()

    return types.void(types.int64), codegen

"""Ordered loads and stores on shared memory, raw copies, and ways to wait; for numba functions.

Memory order. A writer fills rows with plain stores and then publishes a flag with :func:`store_release`; a
reader polls the flag with :func:`load_acquire` and then reads the rows. Release forbids the row stores to
move below the flag store, acquire forbids the row loads to move above the flag load, so a reader that sees
the flag sees the rows. On x86 both are plain ``mov`` (the hardware keeps this order; the annotation stops the
compiler); on Arm they become ``stlr`` and ``ldar``. Flags are naturally aligned 8-byte words, which both
architectures read and write in one piece.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_BYTE = ir.IntType(8)
_LINE = ir.VectorType(_WORD, 8)  # a cache line of 64 bytes

#: Size of :func:`stack_memory`: half of a first-level cache.
STACK_BYTES: Final = 16 << 10


def _pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """Read the int64 at ``address``; later reads of this thread see what its writer wrote before it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0], _WORD), ordering="acquire", align=8)

    return types.int64(types.intp), codegen


@intrinsic
def store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Write the int64 ``value`` to ``address`` after every earlier write of this thread."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0], _WORD), ordering="release", align=8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), codegen


@intrinsic
def copy_bytes(typingctx: Any, destination: Any, source: Any, num_bytes: Any) -> Any:
    """Copy ``num_bytes`` from ``source`` to ``destination``; the two must not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cgutils.raw_memcpy(
            builder, _pointer(builder, args[0], _BYTE), _pointer(builder, args[1], _BYTE), args[2], 1
        )
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


@intrinsic
def stream_line(typingctx: Any, destination: Any, source: Any) -> Any:
    """Copy 64 bytes past the caches; ``destination`` is a multiple of 64. Another thread may see them before or
    after later writes of this one, until :func:`write_fence`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = builder.load(_pointer(builder, args[1], _LINE), align=1)
        store = builder.store(line, _pointer(builder, args[0], _LINE), align=64)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@intrinsic
def write_fence(typingctx: Any) -> Any:
    """Keep all earlier writes of this thread, streamed ones too, before all later ones: on x86 streamed writes
    are outside the order that a release store relies on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


def _ask_for_line(context: Any, builder: Any, address: Any, to_write: int) -> Any:
    number = ir.IntType(32)
    pointer = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    builder.call(prefetch, [_pointer(builder, address, _BYTE), number(to_write), number(3), number(1)])
    return context.get_dummy_value()


@intrinsic
def prefetch_line(typingctx: Any, address: Any) -> Any:
    """Prefetch the cache line at ``address``, which need not be mapped."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _ask_for_line(context, builder, args[0], 0)

    return types.void(types.intp), codegen


@intrinsic
def claim_line(typingctx: Any, address: Any) -> Any:
    """Prefetch a line that will be written, in exclusive state: no other core keeps it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _ask_for_line(context, builder, args[0], 1)

    return types.void(types.intp), codegen


@intrinsic
def load_word(typingctx: Any, address: Any) -> Any:
    """Read the int64 at ``address`` (no order)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0], _WORD))

    return types.int64(types.intp), codegen


@intrinsic
def pointer_to(typingctx: Any, address: Any, sample: Any) -> Any:
    """Turn ``address`` into a pointer to elements of the type of ``sample`` (for ``numba.carray``)."""
    element = types.unliteral(sample)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(element)(types.intp, sample), codegen


@intrinsic
def address_of(typingctx: Any, array: Any) -> Any:
    """The address of an array's first element, as a signed integer: ``array.ctypes.data`` is an unsigned one, and
    numba makes a float64 of the sum of the two kinds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(context.make_array(array)(context, builder, args[0]).data, _WORD)

    return types.intp(array), codegen


@intrinsic
def stack_memory(typingctx: Any) -> Any:
    """The address of :data:`STACK_BYTES` bytes, at the start of a cache line, that live until the function returns."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with builder.goto_entry_block():
            memory = builder.alloca(_BYTE, ir.Constant(_WORD, STACK_BYTES))
            memory.align = 64
        return builder.ptrtoint(memory, _WORD)

    return types.intp(), codegen


@intrinsic
def float_to_bits(typingctx: Any, value: Any) -> Any:
    """The uint32 with the bits of a float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


@intrinsic
def bits_to_float(typingctx: Any, bits: Any) -> Any:
    """The float32 with the bits of a uint32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


# Resolved by name in the process (libc), so compiled code that uses them can be cached on disk.
yield_cpu = types.ExternalFunction("sched_yield", types.int32())
sleep_microseconds = types.ExternalFunction("usleep", types.int32(types.uint32))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_CLOCK_MONOTONIC: Final = 1


@njit(nogil=True, inline="always")
def monotonic_nanoseconds(scratch: int) -> int:
    """Read the clock of ``time.perf_counter_ns`` on Linux, the same in every process.

    ``scratch`` is the address of 16 bytes of working memory."""
    _clock_gettime(_CLOCK_MONOTONIC, scratch)
    return load_word(scratch) * 1_000_000_000 + load_word(scratch + 8)

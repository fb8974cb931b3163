"""Ordered loads and stores on shared memory, raw copies, and ways to wait; for numba functions.

Memory order. A writer fills rows with plain stores and then publishes a flag with :func:`store_release`; a
reader polls the flag with :func:`load_acquire` and then reads the rows. Release forbids the row stores to
move below the flag store, acquire forbids the row loads to move above the flag load, so a reader that sees
the flag sees the rows. On x86 both are plain ``mov`` (the hardware keeps this order; the annotation stops the
compiler); on Arm they become ``stlr`` and ``ldar``. Flags are naturally aligned 8-byte words, which both
architectures read and write in one piece.
Called by this folder, `dgcl/transport/shared_memory/` and 2 more folders. Free to change while results are
bit for bit those of plain Python (`tests/kernels/test_edge_sums.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_BYTE = ir.IntType(8)
_LINE = ir.VectorType(_WORD, 8)  # a cache line of 64 bytes

#: Size of :func:`stack_memory`: half of a first-level cache.
STACK_BYTES = 16 << 10


def _pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def emitting(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate what emits instructions (LLVM's) for arguments of these types: it becomes an intrinsic."""

    def decorate(emit: Callable[..., Any]) -> Any:
        @functools.wraps(emit)
        def typed(*_: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                value = emit(builder, *args)
                return context.get_dummy_value() if value is None else value

            return result(*arguments), codegen

        return intrinsic(typed)

    return decorate


@emitting(types.int64, types.intp)
def load_acquire(builder: Any, address: Any) -> Any:
    """Read the int64 at ``address``; later reads of this thread see what its writer wrote before it."""
    return builder.load_atomic(_pointer(builder, address, _WORD), ordering="acquire", align=8)


@emitting(types.void, types.intp, types.int64)
def store_release(builder: Any, address: Any, value: Any) -> None:
    """Write the int64 ``value`` to ``address`` after every earlier write of this thread."""
    builder.store_atomic(value, _pointer(builder, address, _WORD), ordering="release", align=8)


@emitting(types.void, types.intp, types.intp, types.intp)
def copy_bytes(builder: Any, destination: Any, source: Any, num_bytes: Any) -> None:
    """Copy ``num_bytes`` from ``source`` to ``destination``; the two must not overlap."""
    places = (_pointer(builder, place, _BYTE) for place in (destination, source))
    cgutils.raw_memcpy(builder, *places, num_bytes, 1)


@emitting(types.void, types.intp, types.intp)
def stream_line(builder: Any, destination: Any, source: Any) -> None:
    """Copy 64 bytes past the caches; ``destination`` is a multiple of 64. Another thread may see them before or
    after later writes of this one, until :func:`write_fence`."""
    line = builder.load(_pointer(builder, source, _LINE), align=1)
    store = builder.store(line, _pointer(builder, destination, _LINE), align=64)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))


@emitting(types.void)
def write_fence(builder: Any) -> None:
    """Keep all earlier writes of this thread, streamed ones too, before all later ones: on x86 streamed writes
    are outside the order that a release store relies on."""
    builder.fence("seq_cst")


def emit_prefetch(builder: Any, address: Any, to_write: int = 0) -> None:
    """Emit a prefetch of the cache line at ``address``."""
    number = ir.IntType(32)
    pointer = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    builder.call(prefetch, [_pointer(builder, address, _BYTE), number(to_write), number(3), number(1)])


@emitting(types.void, types.intp)
def prefetch_line(builder: Any, address: Any) -> None:
    """Prefetch the cache line at ``address``, which need not be mapped."""
    emit_prefetch(builder, address)


@emitting(types.void, types.intp)
def claim_line(builder: Any, address: Any) -> None:
    """Prefetch a line that will be written, in exclusive state: no other core keeps it."""
    emit_prefetch(builder, address, to_write=1)


@emitting(types.int64, types.intp)
def load_word(builder: Any, address: Any) -> Any:
    """Read the int64 at ``address`` (no order)."""
    return builder.load(_pointer(builder, address, _WORD))


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


@emitting(types.intp)
def stack_memory(builder: Any) -> Any:
    """The address of :data:`STACK_BYTES` bytes, at the start of a cache line, that live until the function returns."""
    with builder.goto_entry_block():
        memory = builder.alloca(_BYTE, ir.Constant(_WORD, STACK_BYTES))
        memory.align = 64
    return builder.ptrtoint(memory, _WORD)


@emitting(types.uint32, types.float32)
def float_to_bits(builder: Any, value: Any) -> Any:
    """The uint32 with the bits of a float32."""
    return builder.bitcast(value, ir.IntType(32))


@emitting(types.float32, types.uint32)
def bits_to_float(builder: Any, bits: Any) -> Any:
    """The float32 with the bits of a uint32."""
    return builder.bitcast(bits, ir.FloatType())


# Resolved by name in the process (libc), so compiled code that uses them can be cached on disk.
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_CLOCK_MONOTONIC = 1


@njit(nogil=True, inline="always")
def monotonic_nanoseconds(scratch: int) -> int:
    """Read the clock of ``time.perf_counter_ns`` on Linux, the same in every process.

    ``scratch`` is the address of 16 bytes of working memory."""
    _clock_gettime(_CLOCK_MONOTONIC, scratch)
    return load_word(scratch) * 1_000_000_000 + load_word(scratch + 8)

"""Generates LLVM code that sums columns of rows over one head's edges, or multiplies two rows.

A head is the vertex that edges lead to, a tail the one that they come from. Float32 and float64 are added in their own
type, float16 and bfloat16 in float32. LLVM instead of Python for the reason given in `kernels/additions.py`.
Called by `edge_scores` and `edge_sums`. Free to change while sums and products agree with a float64 loop over edges,
edges are added in their order, and each 16-bit pattern is read exactly (`tests/kernels/test_edge_sums.py`).
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dgcl.kernels.memory import emit_prefetch, emitting

_WORD, _BITS, _HALF = ir.IntType(64), ir.IntType(32), ir.IntType(16)
_SINGLE, _DOUBLE = ir.FloatType(), ir.DoubleType()

#: Prefetch distance, in edges. On ogbn-arxiv 8 are 9% slower, 32 12%, 2 47%.
AHEAD = 16


class Floats:
    """One element type: how it is stored, and the type that it is added in."""

    def __init__(self, stored: Any, stored_bytes: int, half: bool = False) -> None:
        self.stored, self.stored_bytes, self.half = stored, stored_bytes, half
        self.added, self.added_bytes = (_SINGLE, 4) if stored == _HALF else (stored, stored_bytes)

    def load(self, builder: Any, address: Any, lanes: int) -> Any:
        """Emit a load of as many elements, and what makes them ready to be added."""
        value = _load(builder, address, _vector(self.stored, lanes))
        if self.stored == self.added:
            return value
        words, singles = _vector(_BITS, lanes), _vector(_SINGLE, lanes)

        def constant(number: int) -> Any:
            return _splat(builder, ir.Constant(_BITS, number), lanes)

        bits = builder.zext(value, words)
        if not self.half:
            return builder.bitcast(builder.shl(bits, constant(16)), singles)
        # As dgcl.kernels.half.half_to_single, which says why.
        magnitude = builder.shl(builder.and_(bits, constant(0x7FFF)), constant(13))
        sign = builder.shl(builder.and_(bits, constant(0x8000)), constant(16))
        scale = _splat(builder, ir.Constant(_SINGLE, 2.0**112), lanes)
        finite = builder.bitcast(builder.fmul(builder.bitcast(magnitude, singles), scale), words)
        endless = builder.or_(magnitude, constant(0x7F800000))
        is_finite = builder.icmp_unsigned("<", magnitude, constant(0x0F800000))
        return builder.bitcast(builder.or_(sign, builder.select(is_finite, finite, endless)), singles)


def _vector(element: Any, lanes: int) -> Any:
    return element if lanes == 1 else ir.VectorType(element, lanes)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _shuffle(builder: Any, vector: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_BITS, len(lanes)), lanes))


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    if lanes == 1:
        return value
    vector = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    return _shuffle(builder, builder.insert_element(vector, value, _BITS(0)), [0] * lanes)


def _reduced(builder: Any, vector: Any, lanes: int) -> Any:
    """Emit the sum of a vector's lanes: the upper half is added to the lower one until one is left."""
    while lanes > 1:
        lanes //= 2
        halves = (_shuffle(builder, vector, [*range(begin, begin + lanes)]) for begin in (0, lanes))
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, _BITS(0))


def block_sum(floats: Floats, num_bytes: int) -> Any:
    """An intrinsic that sums one block of columns, of so many bytes of sums, over the edges of one head.

    ``add_block(out, skipped, x, row_bytes, tails, weights, weight_bytes, begin, end, last, adding)``: sums at ``out``,
    of which the first ``skipped`` elements stay as they were; ``x``, the address of the block in row 0; addresses of
    tails (int32) and weights and from one weight to the next; the head's edges ``begin:end`` and the last edge of all;
    whether ``out`` is added to, or else written.
    """
    lanes = max(1, num_bytes // floats.added_bytes)
    kind = _vector(floats.added, lanes)

    @emitting(types.void, *[types.intp] * 10, types.boolean)
    def add_block(
        builder: Any, out: Any, skipped: Any, x: Any, row_bytes: Any, tails: Any, weights: Any, weight_bytes: Any,
        begin: Any, end: Any, last: Any, adding: Any,
    ) -> None:  # fmt: skip
        total = cgutils.alloca_once(builder, kind)  # which LLVM keeps in registers

        def row(edge: Any) -> Any:
            tail = _load(builder, builder.add(tails, builder.mul(edge, _WORD(4))), _BITS)
            return builder.add(x, builder.mul(builder.sext(tail, _WORD), row_bytes))

        builder.store(ir.Constant(kind, None), total)
        with builder.if_then(builder.trunc(adding, ir.IntType(1))):
            builder.store(_load(builder, out, kind), total)
        with cgutils.for_range_slice(builder, begin, end, _WORD(1), _WORD) as (edge, _):
            later = builder.add(edge, _WORD(AHEAD))
            later = row(builder.select(builder.icmp_signed("<", later, last), later, last))
            for offset in range(0, lanes * floats.stored_bytes, 64):
                emit_prefetch(builder, builder.add(later, _WORD(offset)))
            weight = builder.add(weights, builder.mul(edge, weight_bytes))
            weight = _splat(builder, _load(builder, weight, floats.added), lanes)
            value = builder.fmul(weight, floats.load(builder, row(edge), lanes))
            builder.store(builder.fadd(builder.load(total), value), total)
        with builder.if_else(builder.icmp_signed("==", skipped, _WORD(0))) as (whole, part):
            with whole:
                builder.store(builder.load(total), builder.inttoptr(out, kind.as_pointer()), align=1)
            with part:
                copy = cgutils.alloca_once_value(builder, builder.load(total))
                before = builder.mul(skipped, _WORD(floats.added_bytes))
                places = (builder.add(place, before) for place in (out, builder.ptrtoint(copy, _WORD)))
                pointers = [builder.inttoptr(place, ir.IntType(8).as_pointer()) for place in places]
                count = builder.sub(_WORD(lanes * floats.added_bytes), before)
                cgutils.raw_memcpy(builder, *pointers, count, 1)

    return add_block


def row_product(floats: Floats) -> Any:
    """An intrinsic ``dot(y, x, width)`` of two rows at addresses, in the type that elements are added in."""

    @emitting(types.float64 if floats.added == _DOUBLE else types.float32, *[types.intp] * 3)
    def dot(builder: Any, y: Any, x: Any, width: Any) -> Any:
        begin, result = _WORD(0), ir.Constant(floats.added, 0.0)
        for lanes in (128 // floats.added_bytes, 32 // floats.added_bytes, 1):
            total = cgutils.alloca_once_value(builder, ir.Constant(_vector(floats.added, lanes), None))
            size = _WORD(lanes)
            end = builder.add(begin, builder.mul(builder.sdiv(builder.sub(width, begin), size), size))
            with cgutils.for_range_slice(builder, begin, end, size, _WORD) as (column, _):
                offset = builder.mul(column, _WORD(floats.stored_bytes))
                values = [floats.load(builder, builder.add(row, offset), lanes) for row in (y, x)]
                builder.store(builder.fadd(builder.load(total), builder.fmul(*values)), total)
            so_far = builder.load(total)
            result = builder.fadd(result, so_far if lanes == 1 else _reduced(builder, so_far, lanes))
            begin = end
        return result

    return dot


FLOATS = {
    "float32": Floats(_SINGLE, 4),
    "float64": Floats(_DOUBLE, 8),
    "float16": Floats(_HALF, 2, half=True),
    "bfloat16": Floats(_HALF, 2),
}

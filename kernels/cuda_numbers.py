"""Arithmetic on units of rows for the fold: widen to what sums are kept in, add, and narrow, once.

So float sums are those of :func:`dgcl.kernels.rows.sum_rows` to the bit: the same additions in the same
order and precision. bfloat16 is narrowed in integer arithmetic, because the instruction needs compute
capability 8.0.

Called by `cuda_catalogue` and `cuda_rows`. Free to change while results are bit for bit those of plain
Python (`tests/kernels/test_cuda_numbers.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dgcl.kernels.cuda_memory import num_words

#: Names of the element types, and their size in bytes.
ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}

# Bits of a word that are not the highest of their lane.
_LANE_MASKS = {"int8": 0x7F7F7F7F, "int16": 0x7FFF7FFF}


# A unit's uint32 words (:mod:`dgcl.kernels.cuda_memory`) become a tuple of *terms*:
#
# =================  ==========================  =========================
# element            terms                       narrowed
# =================  ==========================  =========================
# float32, float64   the elements                as they are
# float16, bfloat16  float32, two per word       to nearest, ties to even
# int32, int64       uint32, uint64              as they are; sums wrap
# int8, uint8,       the words; lanes are added  as they are; sums wrap
# int16              without carry between them
# =================  ==========================  =========================


class Arithmetic(NamedTuple):
    """The three steps for one element type and unit, as device functions."""

    widen: Any  # words -> terms
    add: Any  # (terms, words) -> terms
    narrow: Any  # terms -> words


def arithmetic(element: str, unit: int) -> Arithmetic:
    """How to add units of ``unit`` bytes (at least one element) of an element type of :data:`ITEM_BYTES`."""
    if ITEM_BYTES[element] > unit:
        raise ValueError(f"unit: expected at least an element ({ITEM_BYTES[element]} bytes), got {unit}")
    # Elements in a unit, of the types that are two to a word.
    lanes, count = unit // 2 if element in ("float16", "bfloat16") else 0, num_words(unit)
    i32, i64, single = ir.IntType(32), ir.IntType(64), ir.FloatType()
    pair, halves = ir.VectorType(i32, 2), ir.VectorType(ir.HalfType(), 2)
    term, num_terms = {
        "float32": (types.float32, count),
        "float64": (types.float64, count // 2),
        "float16": (types.float32, lanes),
        "bfloat16": (types.float32, lanes),
        "int64": (types.uint64, count // 2),
    }.get(element, (types.uint32, count))
    words_type, terms_type = types.UniTuple(types.uint32, count), types.UniTuple(term, num_terms)

    def i32_constant(value: int) -> ir.Constant:
        return ir.Constant(i32, value)

    def widen_words(builder: Any, words: list[Any]) -> list[Any]:
        if element == "float32":
            return [builder.bitcast(word, single) for word in words]
        if element in ("float64", "int64"):
            wide = ir.DoubleType() if element == "float64" else i64
            return [builder.bitcast(_pair(builder, *words[i : i + 2]), wide) for i in range(0, count, 2)]
        if element == "float16":
            vectors = [builder.bitcast(word, halves) for word in words]
            return [
                builder.fpext(builder.extract_element(vectors[i // 2], i32_constant(i % 2)), single)
                for i in range(lanes)
            ]
        if element == "bfloat16":
            low = [builder.shl(word, i32_constant(16)) for word in words]
            high = [builder.and_(word, i32_constant(0xFFFF0000)) for word in words]
            return [builder.bitcast((high if i % 2 else low)[i // 2], single) for i in range(lanes)]
        return words

    def _pair(builder: Any, low: Any, high: Any) -> Any:
        filled = builder.insert_element(ir.Constant(pair, ir.Undefined), low, i32_constant(0))
        return builder.insert_element(filled, high, i32_constant(1))

    def add_terms(builder: Any, total: Any, other: Any) -> Any:
        if element in _LANE_MASKS:
            mask = i32_constant(_LANE_MASKS[element])
            low = builder.add(builder.and_(total, mask), builder.and_(other, mask))
            return builder.xor(low, builder.and_(builder.xor(total, other), builder.not_(mask)))
        if "float" in element:
            return builder.fadd(total, other)
        return builder.add(total, other)

    def to_bfloat(builder: Any, value: Any) -> Any:
        """The bits of a float32 as those of a bfloat16, in the lower half (dgcl.kernels.half says how)."""
        bits = builder.bitcast(value, i32)
        odd = builder.and_(builder.lshr(bits, i32_constant(16)), i32_constant(1))
        rounded = builder.lshr(builder.add(builder.add(bits, i32_constant(0x7FFF)), odd), i32_constant(16))
        quiet = builder.or_(builder.lshr(bits, i32_constant(16)), i32_constant(0x40))
        return builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)

    def narrow_terms(builder: Any, terms: list[Any]) -> list[Any]:
        if element == "float32":
            return [builder.bitcast(value, i32) for value in terms]
        if element in ("float64", "int64"):
            pairs = [builder.bitcast(value, pair) for value in terms]
            return [
                builder.extract_element(pairs[i // 2], i32_constant(i % 2)) for i in range(2 * len(terms))
            ]
        if lanes:
            if element == "float16":
                narrow = [
                    builder.zext(builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16)), i32)
                    for value in terms
                ]
            else:
                narrow = [to_bfloat(builder, value) for value in terms]
            return [
                builder.or_(narrow[i], builder.shl(narrow[i + 1], i32_constant(16)))
                if i + 1 < lanes
                else narrow[i]
                for i in range(0, lanes, 2)
            ]
        return terms

    def members(builder: Any, value: Any, length: int) -> list[Any]:
        return [builder.extract_value(value, i) for i in range(length)]

    def result(context: Any, builder: Any, signature: Any, values: list[Any]) -> Any:
        return context.make_tuple(builder, signature.return_type, values)

    @intrinsic
    def widen(typingctx: Any, words: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return result(context, builder, signature, widen_words(builder, members(builder, args[0], count)))

        return terms_type(words_type), codegen

    @intrinsic
    def add(typingctx: Any, terms: Any, words: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            totals = members(builder, args[0], num_terms)
            others = widen_words(builder, members(builder, args[1], count))
            sums = [add_terms(builder, total, other) for total, other in zip(totals, others, strict=True)]
            return result(context, builder, signature, sums)

        return terms_type(terms_type, words_type), codegen

    @intrinsic
    def narrow(typingctx: Any, terms: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = narrow_terms(builder, members(builder, args[0], num_terms))
            return result(context, builder, signature, values)

        return words_type(terms_type), codegen

    return Arithmetic(widen, add, narrow)

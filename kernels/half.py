"""Converts float16 and bfloat16 to float32 and back, in integer arithmetic.

Numba has no 16-bit floats on the CPU, and LLVM's own conversions need a helper library on processors without F16C.
These are a few integer operations that every processor vectorises. Rounding is to nearest, ties to even (IEEE 754); NaN
stays NaN (the payload may change), overflow gives infinity, float16 subnormals are exact.
Called by `rows`. Free to change while every 16-bit pattern widens, and float32 narrows, as in torch and numpy
(`tests/kernels/test_half.py`).
"""

from numba import njit, uint16, uint32

from dgcl.kernels.memory import bits_to_float, float_to_bits

# Scaling by 2**112 moves a float16 exponent (bias 15), placed in a float32's field (bias 127), to where it
# belongs, and turns float16 subnormals into normal numbers on the way.
_TO_SINGLE = uint32(0x77800000)  # 2.0**112


@njit(inline="always")
def half_to_single(half: int) -> float:
    """float16 bits (uint16) to float32."""
    magnitude = uint32(half & 0x7FFF) << uint32(13)
    sign = uint32(half & 0x8000) << uint32(16)
    if magnitude >= uint32(0x0F800000):  # infinity or NaN: the exponent field is all ones in both formats
        return bits_to_float(sign | uint32(0x7F800000) | (magnitude & uint32(0x007FFFFF)))
    return bits_to_float(sign | float_to_bits(bits_to_float(magnitude) * bits_to_float(_TO_SINGLE)))


@njit(inline="always")
def single_to_half(single: float) -> int:
    """float32 to float16 bits (uint16), to nearest even."""
    bits = float_to_bits(single)
    sign = uint32(bits & uint32(0x80000000)) >> uint32(16)
    magnitude = uint32(bits & uint32(0x7FFFFFFF))
    if magnitude > uint32(0x7F800000):
        return uint16(sign | uint32(0x7E00))
    if magnitude >= uint32(0x477FF000):  # 65520 and above round to infinity
        return uint16(sign | uint32(0x7C00))
    if magnitude < uint32(0x38800000):
        # Below 2**-14 the result is subnormal: adding 0.5 puts its last bit (2**-24) at the last bit of the
        # sum.
        shifted = float_to_bits(bits_to_float(magnitude) + bits_to_float(uint32(0x3F000000)))
        return uint16(sign | uint32(shifted - uint32(0x3F000000)))
    odd = uint32(magnitude >> uint32(13)) & uint32(1)
    return uint16(sign | uint32(uint32(magnitude - uint32(0x38000000) + uint32(0xFFF) + odd) >> uint32(13)))


@njit(inline="always")
def bfloat_to_single(bfloat: int) -> float:
    """bfloat16 bits (uint16) to float32."""
    return bits_to_float(uint32(bfloat) << uint32(16))


@njit(inline="always")
def single_to_bfloat(single: float) -> int:
    """float32 to bfloat16 bits (uint16), to nearest even."""
    bits = float_to_bits(single)
    if uint32(bits & uint32(0x7FFFFFFF)) > uint32(0x7F800000):
        return uint16(uint32(bits >> uint32(16)) | uint32(0x40))
    odd = uint32(bits >> uint32(16)) & uint32(1)
    return uint16(uint32(bits + uint32(0x7FFF) + odd) >> uint32(16))

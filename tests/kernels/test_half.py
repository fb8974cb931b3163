import numpy as np
import pytest
import torch
from numba import njit

from dgcl.kernels.half import bfloat_to_single, half_to_single, single_to_bfloat, single_to_half
from tests.support.samples import named

EVERY_PATTERN = np.arange(1 << 16, dtype=np.uint16)


@njit
def _widen(is_half: bool, bits: np.ndarray, out: np.ndarray):
    for i in range(len(bits)):
        out[i] = half_to_single(bits[i]) if is_half else bfloat_to_single(bits[i])


@njit
def _narrow(is_half: bool, values: np.ndarray, out: np.ndarray):
    for i in range(len(values)):
        out[i] = single_to_half(values[i]) if is_half else single_to_bfloat(values[i])


def widen(is_half: bool, bits: np.ndarray) -> np.ndarray:
    out = np.empty(len(bits), np.float32)
    _widen(is_half, bits, out)
    return out


def narrow(is_half: bool, values: np.ndarray) -> np.ndarray:
    out = np.empty(len(values), np.uint16)
    _narrow(is_half, values, out)
    return out


def torch_widen(dtype: torch.dtype, bits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(bits.copy()).view(dtype).float().numpy()


def torch_narrow(dtype: torch.dtype, values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).to(dtype).view(torch.uint16).numpy()


FORMATS = named("dtype", {"float16": torch.float16, "bfloat16": torch.bfloat16})


@FORMATS
def test_every_16_bit_pattern_widens_as_torch_does(dtype: torch.dtype):
    ours, theirs = widen(dtype is torch.float16, EVERY_PATTERN), torch_widen(dtype, EVERY_PATTERN)
    number = ~np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), ~number)
    assert np.array_equal(ours[number].view(np.uint32), theirs[number].view(np.uint32))


def test_every_float16_widens_as_numpy_does():
    theirs = EVERY_PATTERN.view(np.float16).astype(np.float32)
    number = ~np.isnan(theirs)
    assert np.array_equal(widen(True, EVERY_PATTERN)[number].view(np.uint32), theirs[number].view(np.uint32))


@FORMATS
def test_every_16_bit_number_survives_the_way_there_and_back(dtype: torch.dtype):
    is_half = dtype is torch.float16
    single = widen(is_half, EVERY_PATTERN)
    number = ~np.isnan(single)
    assert np.array_equal(narrow(is_half, single)[number], EVERY_PATTERN[number])


def rounding_cases() -> np.ndarray:
    """float32 bit patterns with every rounding decision: all exponents, and around every midpoint."""
    exponents = np.arange(256, dtype=np.uint32) << np.uint32(23)
    tails = [0, 1, 2, 0xFFE, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    heads = np.arange(0, 1 << 23, 1 << 13, dtype=np.uint32)  # the 10 bits that float16 keeps; bfloat16: 7
    mantissas = np.unique(np.concatenate([(heads[:, None] + np.array(tails, np.uint32)).ravel() & 0x7FFFFF]))
    patterns = (exponents[:, None] | mantissas).ravel()
    return np.concatenate([patterns, patterns | np.uint32(1 << 31)])


@FORMATS
def test_narrowing_rounds_to_nearest_even_as_torch_does(dtype: torch.dtype):
    values = rounding_cases().view(np.float32)
    ours, theirs = narrow(dtype is torch.float16, values), torch_narrow(dtype, values)
    nan = np.isnan(values)
    wrong = np.flatnonzero((ours != theirs) & ~nan)
    assert wrong.size == 0, f"{values[wrong[0]]!r}: {ours[wrong[0]]:#06x}, not {theirs[wrong[0]]:#06x}"
    assert np.isnan(widen(dtype is torch.float16, ours[nan])).all()


def test_narrowing_to_float16_rounds_as_numpy_does():
    values = rounding_cases().view(np.float32)
    values = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        theirs = values.astype(np.float16).view(np.uint16)
    assert np.array_equal(narrow(True, values), theirs)


@pytest.mark.slow
@FORMATS
def test_one_float32_in_31_narrows_as_torch_does(dtype: torch.dtype):
    """A prime stride: every head that stays, with tails of all kinds; the cases of rounding are those above."""
    step = 31 << 22
    for start in range(0, 1 << 32, step):
        patterns = np.arange(start, min(start + step, 1 << 32), 31, dtype=np.uint64)
        values = patterns.astype(np.uint32).view(np.float32)
        number = ~np.isnan(values)
        ours, theirs = narrow(dtype is torch.float16, values), torch_narrow(dtype, values)
        assert np.array_equal(ours[number], theirs[number])
        assert np.isnan(widen(dtype is torch.float16, ours[~number])).all()

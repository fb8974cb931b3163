"""The sums' arithmetic as it is compiled: it is plain LLVM, so the processor here can run it, too.

In the simulator its Python twin runs instead.
"""

import numpy as np
import pytest
import torch
from numba import njit

from dgcl.kernels.cuda_memory import num_words
from dgcl.kernels.cuda_numbers import ITEM_BYTES, arithmetic

# Every day each element with one unit and each unit with some elements; the arithmetic is compiled for each.
CASES = [
    pytest.param(
        element,
        unit,
        id=f"{element}-{unit}",
        marks=() if i % len(units) == number % len(units) else pytest.mark.slow,
    )
    for number, (element, units) in enumerate(
        (element, sorted({16, 8, size})) for element, size in ITEM_BYTES.items()
    )
    for i, unit in enumerate(units)
]


def compiled_sum(element: str, unit: int, terms: torch.Tensor) -> torch.Tensor:
    """Sum over the first dimension of ``(terms, units, elements of a unit)``."""
    widen, add, narrow = arithmetic(element, unit)
    count = num_words(unit)

    @njit
    def run(words, out):  # type: ignore[no-untyped-def]
        for place in range(words.shape[1]):
            # A tuple's length must be known when compiling.
            if count == 4:
                total = widen(first4(words, 0, place))
                for i in range(1, words.shape[0]):
                    total = add(total, first4(words, i, place))
            elif count == 2:
                total = widen(first2(words, 0, place))
                for i in range(1, words.shape[0]):
                    total = add(total, first2(words, i, place))
            else:
                total = widen((words[0, place, 0],))
                for i in range(1, words.shape[0]):
                    total = add(total, (words[i, place, 0],))
            result = narrow(total)
            for w in range(count):
                out[place, w] = result[w]

    num_terms, num_units = terms.shape[:2]
    memory = np.zeros((num_terms, num_units, 4 * count), np.uint8)
    memory[:, :, :unit] = terms.contiguous().view(torch.uint8).numpy().reshape(num_terms, num_units, unit)
    out = np.zeros((num_units, count), np.uint32)
    run(memory.view(np.uint32), out)
    sums = torch.from_numpy(out.view(np.uint8)[:, :unit].copy())
    return sums.view(terms.dtype)


@njit
def first4(words, i, place):  # type: ignore[no-untyped-def]
    return words[i, place, 0], words[i, place, 1], words[i, place, 2], words[i, place, 3]


@njit
def first2(words, i, place):  # type: ignore[no-untyped-def]
    return words[i, place, 0], words[i, place, 1]


def random_terms(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    generator = np.random.default_rng(7)
    if dtype.is_floating_point:
        spread = generator.standard_normal(shape) * 10.0 ** generator.integers(-3, 3, shape)
        return torch.from_numpy(spread).to(dtype)
    info = torch.iinfo(dtype)
    return torch.from_numpy(generator.integers(info.min, info.max, shape, endpoint=True)).to(dtype)


@pytest.mark.parametrize("element, unit", CASES)
def test_compiled_sums_add_in_order_and_round_once(element: str, unit: int):
    dtype = getattr(torch, element)
    terms = random_terms(dtype, (5, 200, unit // ITEM_BYTES[element]))
    wide = torch.float32 if ITEM_BYTES[element] == 2 and dtype.is_floating_point else dtype
    total = terms[0].to(wide)
    for term in terms[1:]:
        total = total + term.to(wide)
    assert torch.equal(compiled_sum(element, unit, terms), total.to(dtype))


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_compiled_rounding_of_every_kind_of_number(element: str):
    """Sums that overflow, are subnormal, tie, or are no numbers."""
    dtype = getattr(torch, element)
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
    other = patterns[torch.from_numpy(np.random.default_rng(3).permutation(1 << 16))]
    terms = torch.stack([patterns, other]).reshape(2, -1, 8)
    ours = compiled_sum(element, 16, terms)
    right = (terms[0].float() + terms[1].float()).to(dtype)
    assert torch.equal(ours.isnan(), right.isnan())
    assert torch.equal(ours[~ours.isnan()], right[~right.isnan()])


def test_a_unit_smaller_than_an_element_is_refused():
    with pytest.raises(ValueError, match=r"unit: expected at least an element \(4 bytes\), got 2"):
        arithmetic("float32", 2)

from typing import Any

import numpy as np
import pytest
import torch

from dgcl.kernels.copies import STREAMED, write_bytes
from dgcl.kernels.row_moves import put_arrivals
from dgcl.kernels.rows import SUMMABLE, add_arrivals, gather_rows, sum_rows
from tests.support.samples import named

WIDTHS = (1, 3, 7, 128, 513, 602, 1025)  # 16-bit sums go by blocks of 512 columns


def _gather(*call: Any):
    gather_rows(*call, STREAMED)


def _sum(*call: Any):
    sum_rows(*call, STREAMED)


def random_rows(generator: np.random.Generator, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Rows whose sums show the order of addition (floats), or wrap around (integers)."""
    if dtype.is_floating_point:
        spread = generator.standard_normal(shape) * 10.0 ** generator.integers(-2, 3, shape)
        return torch.from_numpy(spread).to(dtype)
    info = torch.iinfo(dtype)
    values = generator.integers(info.min, info.max, shape, endpoint=True, dtype=np.int64)
    return torch.from_numpy(values).to(dtype)


@pytest.mark.parametrize("row_bytes", [0, 1, 2, 3, 4, 8, 12, 28, 512, 1204, 2408])
@pytest.mark.parametrize("begin, end", [(0, 40), (5, 5), (7, 31)])
def test_gather_takes_rows_from_both_places(row_bytes: int, begin: int, end: int):
    generator = np.random.default_rng(row_bytes)
    near = generator.integers(0, 256, (20, row_bytes), np.uint8)
    far = generator.integers(0, 256, (9, row_bytes), np.uint8)
    rows = generator.integers(0, 29, 40).astype(np.int32)
    out = np.full((end - begin + 1, row_bytes), 77, np.uint8)

    _gather(out.ctypes.data, near.ctypes.data, 20, far.ctypes.data, rows, begin, end, row_bytes)

    assert np.array_equal(out[:-1], np.concatenate([near, far])[rows[begin:end]])
    assert (out[-1] == 77).all(), "wrote past the end"


def test_gather_keeps_four_byte_patterns():
    """Rows of one float32: signalling NaNs and the like are data, too."""
    near = np.array([0x7F800001, 0xFFC12345, 0x80000000, 1], np.uint32)
    rows = np.array([3, 1, 0, 2, 2], np.int32)
    out = np.zeros(5, np.uint32)
    _gather(out.ctypes.data, near.ctypes.data, 4, 0, rows, 0, 5, 4)
    assert np.array_equal(out, near[rows])


@pytest.mark.parametrize("rows", ["runs", "scattered", "backwards", "across the end of the near rows"])
def test_gather_takes_rows_that_lie_one_behind_the_other(rows: str):
    index = {
        "runs": np.concatenate([np.arange(3, 15), np.arange(5), np.arange(12, 29)]),
        "scattered": np.random.default_rng(0).permutation(29),
        "backwards": np.arange(29)[::-1],
        "across the end of the near rows": np.arange(10, 29),
    }[rows].astype(np.int32)
    whole = np.random.default_rng(1).integers(0, 256, (29, 40), np.uint8)
    near, far = whole[:20].copy(), whole[20:].copy()
    out = np.zeros((len(index), 40), np.uint8)
    _gather(out.ctypes.data, near.ctypes.data, 20, far.ctypes.data, index, 0, len(index), 40)
    assert np.array_equal(out, whole[index])


@pytest.mark.parametrize("row_bytes", [512, 100])
@named("shift", {"whole-lines": 0, "parts-of-lines": 4})
def test_results_too_large_for_the_caches(row_bytes: int, shift: int):
    """They are written past them; rows may begin anywhere in a line."""
    generator = np.random.default_rng(0)
    num_rows = STREAMED // row_bytes + 5
    width = row_bytes // 4
    whole = generator.integers(0, 1 << 30, (num_rows, width), np.int32)
    memory = np.full(num_rows * width + 64, 77, np.int32)
    start = -(memory.ctypes.data // 4) % 16 + shift // 4
    out = memory[start : start + num_rows * width].reshape(num_rows, width)

    write_bytes(out.ctypes.data, whole.ctypes.data, whole.nbytes)
    assert np.array_equal(out, whole)

    index = generator.permutation(num_rows).astype(np.int32)
    index[100:200] = np.arange(100)
    _gather(out.ctypes.data, whole.ctypes.data, num_rows, 0, index, 0, num_rows, row_bytes)
    assert np.array_equal(out, whole[index])

    arrival_rows = np.sort(generator.integers(0, num_rows, 1000)).astype(np.int32)
    slots = generator.permutation(1000).astype(np.int32)
    arrived = generator.integers(0, 1 << 20, (1000, width), np.int32)
    code, own, arrivals = SUMMABLE.index("int32"), whole.ctypes.data, arrived.ctypes.data
    _sum(code, out.ctypes.data, own, 0, num_rows, arrival_rows, slots, 0, arrivals, row_bytes)
    expected = whole.copy()
    np.add.at(expected, arrival_rows, arrived[slots])
    assert np.array_equal(out, expected)
    outside = np.concatenate([memory[:start], memory[start + out.size :]])
    assert (outside == 77).all(), "wrote past the ends"


class Sums:
    """A random call of sum_rows: some rows of 25, and what arrived for each."""

    def __init__(self, width: int, dtype: torch.dtype, with_own: bool = True, begin: int = 3, end: int = 21):
        generator = np.random.default_rng(width)
        self.begin, self.end, self.dtype, self.with_own = begin, end, dtype, with_own
        num_rows = 25
        counts = generator.integers(0 if with_own else 1, 4, num_rows)
        counts[[5, 6, 20]] = (max(counts[5], 1), 9, 0 if with_own else 2)
        if with_own:
            counts[10:14] = 0  # a run for which nothing arrived
        self.arrival_rows = np.repeat(np.arange(num_rows), counts).astype(np.int32)
        num_slots = len(self.arrival_rows)
        self.arrival_slots = generator.permutation(num_slots).astype(np.int32)
        self.own = random_rows(generator, (num_rows, width), dtype)
        self.arrivals = random_rows(generator, (num_slots, width), dtype)

    def computed(self) -> torch.Tensor:
        out = torch.full((self.end - self.begin + 1, self.own.shape[1]), 77, dtype=self.dtype)
        _sum(
            SUMMABLE.index(str(self.dtype).removeprefix("torch.")),
            out.data_ptr(),
            self.own.data_ptr() if self.with_own else 0,
            self.begin,
            self.end,
            self.arrival_rows,
            self.arrival_slots,
            int(np.searchsorted(self.arrival_rows, self.begin)),
            self.arrivals.data_ptr(),
            self.own.shape[1] * self.dtype.itemsize,
        )
        assert (out[-1] == 77).all(), "wrote past the end"
        return out[:-1]

    def expected(self) -> torch.Tensor:
        """Added one by one in the stated order; 16-bit floats in float32, rounded at the end."""
        wide = torch.float32 if self.dtype.itemsize == 2 and self.dtype.is_floating_point else self.dtype
        sums = []
        for row in range(self.begin, self.end):
            terms = [self.own[row]] if self.with_own else []
            terms += [self.arrivals[slot] for slot in self.arrival_slots[self.arrival_rows == row]]
            total = terms[0].to(wide, copy=True)
            for term in terms[1:]:
                total += term.to(wide)
            sums.append(total.to(self.dtype))
        return torch.stack(sums) if sums else self.own[:0]


@named("with_own", {"with-own": True, "relayed": False})
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SUMMABLE)
def test_sum_is_that_of_adding_in_order(name: str, width: int, with_own: bool):
    sums = Sums(width, getattr(torch, name), with_own)
    assert torch.equal(sums.computed(), sums.expected())


@pytest.mark.parametrize("name", SUMMABLE)
@pytest.mark.parametrize("begin, end", [(0, 25), (0, 0), (12, 13), (24, 25), (6, 7)])
def test_sum_of_any_range_of_rows(name: str, begin: int, end: int):
    sums = Sums(7, getattr(torch, name), True, begin, end)
    assert torch.equal(sums.computed(), sums.expected())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_sums_are_rounded_once(name: str):
    """Each half of the last bit is lost when rounded alone; together they count."""
    dtype = getattr(torch, name)
    tiny = 2.0**-12 if name == "float16" else 2.0**-9
    own = torch.ones(1, 4, dtype=dtype)
    arrivals = torch.full((8, 4), tiny, dtype=dtype)
    out = torch.empty(1, 4, dtype=dtype)
    _sum(
        SUMMABLE.index(name),
        out.data_ptr(),
        own.data_ptr(),
        0,
        1,
        np.zeros(8, np.int32),
        np.arange(8, dtype=np.int32),
        0,
        arrivals.data_ptr(),
        8,
    )
    assert torch.equal(out, torch.full((1, 4), 1 + 8 * tiny, dtype=dtype))
    assert (1 + arrivals[0, 0]).to(dtype) == 1


def test_rows_far_into_memory_are_addressed_in_64_bits():
    """Row 300 000 of 8000 bytes lies beyond 2**31 bytes; only its page is ever touched."""
    row_bytes, row = 8000, 300_000
    far = np.zeros((row + 1) * row_bytes, np.uint8)  # untouched pages take no memory
    far[row * row_bytes :] = np.arange(row_bytes) % 251
    out = np.zeros(row_bytes, np.uint8)
    _gather(out.ctypes.data, far.ctypes.data, row + 1, 0, np.array([row], np.int32), 0, 1, row_bytes)
    assert np.array_equal(out, far[row * row_bytes :])

    total = np.zeros(row_bytes // 8, np.int64)
    _sum(
        SUMMABLE.index("int64"),
        total.ctypes.data,
        far.ctypes.data,
        row,
        row + 1,
        np.array([row], np.int32),
        np.array([row], np.int32),
        0,
        far.ctypes.data,
        row_bytes,
    )
    assert np.array_equal(total, 2 * far[row * row_bytes :].view(np.int64))


@pytest.mark.parametrize("name", SUMMABLE)
@pytest.mark.parametrize("num_rows", [25, 12, 0])
def test_arrivals_are_added_in_place(name: str, num_rows: int):
    sums = Sums(7, getattr(torch, name), True, 0, num_rows)
    rows = sums.own.clone()
    add_arrivals(
        SUMMABLE.index(name),
        rows.data_ptr(),
        num_rows,
        sums.arrival_rows,
        sums.arrival_slots,
        sums.arrivals.data_ptr(),
        7 * rows.dtype.itemsize,
    )
    assert torch.equal(rows[:num_rows], sums.expected())
    assert torch.equal(rows[num_rows:], sums.own[num_rows:])


@pytest.mark.parametrize("row_bytes", [0, 1, 4, 28, 128, 2500])
@pytest.mark.parametrize("num_rows", [0, 1, 25, 40])
def test_arrivals_are_put_where_nothing_is_added(row_bytes: int, num_rows: int):
    generator = np.random.default_rng(row_bytes)
    arrival_rows = np.sort(generator.permutation(40)[:23]).astype(np.int32)
    arrival_slots = generator.permutation(23).astype(np.int32)
    arrivals = generator.integers(0, 256, (23, row_bytes), np.uint8)
    rows = generator.integers(0, 256, (40, row_bytes), np.uint8)
    expected = rows.copy()
    for row, slot in zip(arrival_rows, arrival_slots, strict=True):
        if row < num_rows:
            expected[row] = arrivals[slot]

    put_arrivals(rows.ctypes.data, num_rows, arrival_rows, arrival_slots, arrivals.ctypes.data, row_bytes)

    assert np.array_equal(rows, expected)

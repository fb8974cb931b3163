"""dgcl.kernels.edge_sums: sums and dot products over edges, against a loop over edges in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from dgcl.kernels.edge_sums import EDGE_DOTS, EDGE_SUMS
from tests.support.samples import named

WIDTHS = (0, 1, 3, 7, 16, 17, 31, 33, 63, 64, 65, 128, 200, 602)
DTYPES = {name: getattr(torch, name) for name in EDGE_SUMS}
NONE = np.zeros(0, np.int32)

NUM_TAILS = 30
# Heads without an edge, with one, with a loop, with the same edge twice, with more edges than are prefetched.
DEGREES = np.array([0, 1, 2, 0, 50, 3, 0, 7, 1, 0], np.int64)
INDPTR = np.concatenate([[0], np.cumsum(DEGREES)])
TAILS = np.random.default_rng(5).integers(0, NUM_TAILS, INDPTR[-1]).astype(np.int32)
TAILS[1:3] = 2, 2
HEADS = np.repeat(np.arange(len(DEGREES)), DEGREES)


def sums_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize == 2 else dtype


def random_rows(shape: tuple[int, int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run_sum(x: Tensor, out: Tensor, weight: Tensor | None, *, add: bool, heads: np.ndarray = NONE,
            begin: int = 0, end: int = len(DEGREES)) -> None:  # fmt: skip
    weights = torch.ones(1, dtype=out.dtype) if weight is None else weight
    step = 0 if weight is None else weight.element_size()
    strides = out.stride(0) * out.element_size(), x.stride(0) * x.element_size()
    EDGE_SUMS[str(x.dtype).removeprefix("torch.")](
        out.data_ptr(), strides[0], x.data_ptr(), strides[1], INDPTR, TAILS, weights.data_ptr(), step, heads,
        begin, end, x.shape[1], add,
    )  # fmt: skip


def loop_sum(x: Tensor, weight: Tensor | None, num_rows: int, heads: np.ndarray) -> Tensor:
    out = torch.zeros(num_rows, x.shape[1], dtype=torch.float64)
    for edge, (head, tail) in enumerate(zip(heads, TAILS, strict=True)):
        out[head] += x[tail].double() * (1.0 if weight is None else weight[edge].double())
    return out


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", DTYPES)
@named("weighted", {"plain": False, "weighted": True})
def test_sum(name: str, width: int, weighted: bool):
    dtype = sums_of(DTYPES[name])
    x = random_rows((NUM_TAILS, width), DTYPES[name])
    weight = random_rows((len(TAILS), 1), dtype, 1)[:, 0].contiguous() if weighted else None
    expected = loop_sum(x, weight, len(DEGREES), HEADS)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 2e-5}

    # Rows that lie apart, so that anything written beside them shows.
    out = torch.full((len(DEGREES) + 1, width + 3), 7.0, dtype=dtype)
    run_sum(x, out[:, :width], weight, add=False)
    torch.testing.assert_close(out[:-1, :width].double(), expected, **tolerance)
    assert (out[:, width:] == 7).all(), "wrote beside the rows"
    assert (out[-1] == 7).all(), "wrote after the rows"

    out.fill_(7.0)
    run_sum(x, out[:, :width], weight, add=True, begin=2, end=8)
    torch.testing.assert_close(out[2:8, :width].double(), 7 + expected[2:8], **tolerance)
    assert (out[[0, 1, 8, 9, 10]] == 7).all(), "wrote to other heads"
    assert (out[:, width:] == 7).all(), "wrote beside the rows"


@pytest.mark.parametrize("name", DTYPES)
def test_sum_at_the_heads_that_are_named(name: str):
    places = np.arange(len(DEGREES), dtype=np.int32) * 2 + 1
    x = random_rows((NUM_TAILS, 70), DTYPES[name])
    out = torch.zeros(2 * len(DEGREES) + 1, 70, dtype=sums_of(DTYPES[name]))
    run_sum(x, out, None, add=False, heads=places)
    torch.testing.assert_close(out.double(), loop_sum(x, None, len(out), places[HEADS]), rtol=1e-5, atol=2e-5)


def test_edges_are_added_in_their_order():
    """In float32 the order of addition shows in the last bits: it is that of the edges, column by column alike."""
    x = random_rows((NUM_TAILS, 131), torch.float32) * 10.0 ** torch.arange(-5, NUM_TAILS - 5)[
        :, None
    ].remainder(9)
    out, expected = torch.zeros(len(DEGREES), 131), torch.zeros(len(DEGREES), 131)
    run_sum(x, out, None, add=False)
    for head, tail in zip(HEADS, TAILS, strict=True):
        expected[head] += x[tail]
    assert out.equal(expected)
    run_sum(x, out, None, add=True)
    for head, tail in zip(HEADS, TAILS, strict=True):
        expected[head] += x[tail]
    assert out.equal(expected), "adding goes on where the sums stood"


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_sixteen_bit_pattern_is_read_exactly(name: str):
    """Subnormals, infinities and NaN too."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(DTYPES[name]).view(-1, 64)
    out, one = torch.zeros(len(x), 64), torch.ones(1)
    EDGE_SUMS[name](
        out.data_ptr(), 256, x.data_ptr(), 128, np.arange(len(x) + 1), np.arange(len(x), dtype=np.int32),
        one.data_ptr(), 0, NONE, 0, len(x), 64, False,
    )  # fmt: skip
    torch.testing.assert_close(out, x.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", DTYPES)
def test_dots(name: str, width: int):
    dtype = DTYPES[name]
    x, y = random_rows((NUM_TAILS, width + 1), dtype), random_rows((40, width), dtype, 1)
    x = x[:, :width]
    heads = np.arange(len(DEGREES), dtype=np.int32) + 20
    edges = np.random.default_rng(1).permutation(len(TAILS)).astype(np.int32)
    out = torch.full((len(TAILS) + 1,), 7.0, dtype=sums_of(dtype))
    EDGE_DOTS[name](
        out.data_ptr(), y.data_ptr(), y.stride(0) * y.element_size(), x.data_ptr(), x.stride(0) * x.element_size(),
        INDPTR, TAILS, heads, edges, 0, len(DEGREES), width,
    )  # fmt: skip
    expected = (y[heads[HEADS]].double() * x[TAILS].double()).sum(1)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(out[edges].double(), expected, **tolerance)
    assert out[-1] == 7


def test_no_edges_read_nothing():
    out, one = torch.full((3, 5), 7.0), torch.ones(1)
    for add, value in ((True, 7), (False, 0)):
        EDGE_SUMS["float32"](
            out.data_ptr(),
            20,
            0,
            20,
            np.zeros(4, np.int64),
            NONE,
            one.data_ptr(),
            0,
            NONE,
            0,
            3,
            5,
            add,
        )
        assert (out == value).all()
    EDGE_DOTS["float32"](0, out.data_ptr(), 20, 0, 20, np.zeros(4, np.int64), NONE, NONE, NONE, 0, 3, 5)

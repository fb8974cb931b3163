"""dgcl.aggregation.block: sums over edges and back, against dense matrices in float64."""

import gc
import os
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dgcl.aggregation import block as block_module
from dgcl.aggregation import grouped_edges as edges_module
from dgcl.aggregation.block import Block
from tests.support.samples import named

WIDTHS = (0, 1, 3, 7, 16, 63, 64, 65, 128, 200, 602)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.fixture(params=["kernels", "sparse"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As on the CPU, and as on other devices."""
    if request.param == "sparse":
        monkeypatch.setattr(block_module, "side_class", lambda device: block_module._SparseSide)
    return str(request.param)


def edges_of(num_heads: int, num_tails: int, num_edges: int, order: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(num_edges)
    heads = generator.integers(0, num_heads, num_edges)
    tails = generator.integers(0, num_tails, num_edges)
    heads[: num_edges // 10], tails[: num_edges // 10] = heads[:1], tails[:1]  # one edge many times
    if order == "sorted":
        heads = np.sort(heads)
    return heads, tails


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def sums_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize == 2 else dtype


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=wide(dtype), generator=torch.Generator().manual_seed(seed)).to(dtype)


def dense(heads: np.ndarray, tails: np.ndarray, shape: tuple[int, int], weight: Tensor | None) -> Tensor:
    out = torch.zeros(shape, dtype=torch.float64)
    values = torch.ones(len(heads), dtype=torch.float64) if weight is None else weight.double()
    return out.index_put_(
        (torch.as_tensor(heads).long(), torch.as_tensor(tails).long()), values, accumulate=True
    )


def close(got: Tensor, expected: Tensor):
    exact = got.dtype in (torch.float64, torch.complex128)
    tolerance = {"rtol": 1e-11, "atol": 1e-11} if exact else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(got.to(expected.dtype), expected, **tolerance)


@pytest.mark.sample(3)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@named("num_heads, order", {"all-heads": (12, "sorted"), "some-heads": (300, "given")})
def test_sums_and_dots_both_ways(num_heads: int, order: str, dtype: torch.dtype, width: int, way: str):
    heads, tails = edges_of(num_heads, 40, 200, order)
    block = Block(heads, tails, num_heads, 40)
    weights = None, random((200,), torch.float32, 1)
    for each, h, t in ((block, heads, tails), (block.transposed, tails, heads)):
        shape = each._sizes
        x, y = random((shape[1], width), dtype), random((shape[0], width), dtype, 2)
        for weight in weights:
            expected = dense(h, t, shape, weight).to(wide(dtype)) @ x.to(wide(dtype))
            out = torch.ones(shape[0], width, dtype=sums_of(dtype))
            each.sum(x, out, weight, add=True)
            close(out, expected + 1)
            each.sum(x, out, weight)
            close(out, expected)
        if not dtype.is_complex:
            close(each.dots(y, x), (y.double()[h] * x.double()[t]).sum(1))


def test_rows_without_an_edge_stay_as_they_are(way: str):
    block = Block(np.array([3, 1, 3]), np.array([0, 0, 1]), 6, 2)
    out = torch.full((6, 5), -0.0)
    out[4] = torch.nan
    block.sum(torch.ones(2, 5), out, add=True)
    assert out[:, 0].nan_to_num(nan=9).tolist() == [0, 1, 0, 2, 9, 0]
    assert out[[0, 2, 5]].signbit().all()
    block.sum(torch.ones(2, 5), out)
    assert out[:, 0].tolist() == [0, 1, 0, 2, 0, 0]


@pytest.mark.parametrize("num_heads", [0, 4])
def test_no_edges(num_heads: int, way: str):
    empty = np.zeros(0, np.int64)
    block = Block(empty, empty, num_heads, 3)
    out = torch.full((num_heads, 2), 5.0)
    block.sum(torch.ones(3, 2), out, add=True)
    assert (out == 5).all()
    block.sum(torch.ones(3, 2), out, torch.zeros(0))
    assert (out == 0).all()
    back = torch.full((3, 2), 5.0)
    block.transposed.sum(out, back, add=True)
    assert (back == 5).all()
    assert block.dots(out, torch.ones(3, 2)).shape == (0,)
    with pytest.raises(TypeError, match="rows of one type"):
        block.dots(out, torch.ones(3, 2, dtype=torch.float64))


def test_rows_that_are_not_contiguous():
    heads, tails = edges_of(20, 30, 90, "given")
    block, matrix = Block(heads, tails, 20, 30), dense(heads, tails, (20, 30), None)
    storage = random((30, 8), torch.float64)
    backwards = random((8, 30), torch.float64)
    for x in (storage[:, 2:7], backwards.T, storage[:, :1].expand(30, 9), storage[:1].expand(30, 8)):
        out = torch.zeros(20, 11, dtype=torch.float64)
        block.sum(x, out[:, 1 : 1 + x.shape[1]], add=True)
        close(out[:, 1 : 1 + x.shape[1]], matrix @ x)
        close(block.dots(out[:, : x.shape[1]], x), (out[heads][:, : x.shape[1]] * x[tails]).sum(1))
        assert not out[:, 0].any()
        assert not out[:, 1 + x.shape[1] :].any()


@named("weighted", {"plain": False, "weighted": True})
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_threads_change_no_bit(dtype: torch.dtype, weighted: bool, monkeypatch):
    monkeypatch.setattr(edges_module, "_LEAST", 64)
    heads, tails = edges_of(50, 60, 3000, "given")
    heads[500:1500] = 7  # a head with a third of the edges
    block, x = Block(heads, tails, 50, 60), random((60, 37), dtype)
    weight = random((3000,), torch.float32, 1) if weighted else None
    results, before = [], torch.get_num_threads()
    for num_threads in (1, 2, 3, 7, 60):
        torch.set_num_threads(num_threads)
        out = torch.ones(50, 37)
        block.sum(x, out, weight, add=True)
        results.append((out, block.dots(out.to(dtype), x)))
    torch.set_num_threads(before)
    for out, dots in results[1:]:
        assert out.equal(results[0][0])
        assert dots.equal(results[0][1])


def test_edges_are_added_as_they_were_given():
    heads, tails = edges_of(20, 30, 400, "given")
    x = random((30, 5), torch.float32) * 10.0 ** torch.arange(30)[:, None].remainder(9)
    out, expected = torch.zeros(20, 5), torch.zeros(20, 5)
    Block(heads, tails, 20, 30).sum(x, out, add=True)
    for head, tail in zip(heads, tails, strict=True):
        expected[head] += x[tail]
    assert out.equal(expected)


def test_a_weight_that_changes_is_seen(way: str):
    """Constant weights are sorted once: not again for the same tensor, anew for another one or other values."""
    heads, tails = edges_of(20, 30, 90, "given")
    block, x = Block(heads, tails, 20, 30), random((30, 4), torch.float64)
    weight = random((90,), torch.float64, 1)

    def check(weight: Tensor):
        out = torch.zeros(20, 4, dtype=torch.float64)
        with torch.no_grad():
            block.sum(x, out, weight, add=True)
        close(out, dense(heads, tails, (20, 30), weight.detach()) @ x)

    check(weight)
    side = block._grouped
    assert side.sort(weight, torch.float64) is side.sort(weight, torch.float64)
    weight.mul_(2)
    check(weight)
    check(weight.clone())
    learned = random((90,), torch.float64, 2).requires_grad_()
    check(learned)
    with torch.no_grad():
        learned.add_(1)
    check(learned)
    seen = weakref.ref(weight)
    del weight
    gc.collect()
    assert seen() is None, "the block keeps weights alive"


def test_transposed_is_made_once():
    block = Block(*edges_of(20, 30, 90, "given"), 20, 30)
    assert block.transposed._grouped is block.transposed._grouped
    assert block.transposed.transposed._grouped is block._grouped
    assert block.transposed._sizes == (30, 20)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_fork_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(edges_module, "_LEAST", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    block, x = Block(*edges_of(50, 60, 900, "given"), 50, 60), torch.ones(60, 4)
    out = torch.zeros(50, 4)
    block.sum(x, out, add=True)
    child = os.fork()
    if child == 0:
        again = torch.zeros(50, 4)
        block.sum(x, again, add=True)
        os._exit(0 if again.equal(out) else 1)
    assert os.waitpid(child, 0)[1] == 0


@st.composite
def blocks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int]:
    num_heads, num_tails = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    pair = st.tuples(st.integers(0, num_heads - 1), st.integers(0, num_tails - 1))
    edges = np.array(draw(st.lists(pair, max_size=40)), np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1], num_heads, num_tails


@given(blocks(), st.integers(0, 70), st.booleans())
def test_block_and_its_transposed_are_adjoint(edges, width: int, weighted: bool):
    """<y, A x> = <A^T y, x> = <dots(y, x), w> in whole numbers, exactly."""
    heads, tails, num_heads, num_tails = edges
    block, generator = Block(*edges), torch.Generator().manual_seed(width)
    x = torch.randint(-9, 9, (num_tails, width), generator=generator).double()
    y = torch.randint(-9, 9, (num_heads, width), generator=generator).double()
    weight = torch.randint(-9, 9, (len(heads),), generator=generator).double() if weighted else None
    out, back = torch.zeros_like(y), torch.zeros_like(x)
    block.sum(x, out, weight, add=True)
    block.transposed.sum(y, back, weight, add=True)
    assert out.equal(dense(heads, tails, (num_heads, num_tails), weight) @ x)
    total = block.dots(y, x)
    total = total.sum() if weight is None else (total * weight).sum()
    assert (y * out).sum() == (back * x).sum() == total

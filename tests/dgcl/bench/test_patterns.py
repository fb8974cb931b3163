"""The numbers that are sent, and that nothing else passes for them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dgcl.bench.patterns import DTYPES, POISON, fill_expand, fill_fold, wrong_expand, wrong_fold
from tests.support.samples import named

VERTICES = torch.tensor([3, 0, 7, 2**40, 11])
WIDTH = 60


def sent(dtype: torch.dtype, iteration: int = 5) -> torch.Tensor:
    rows = torch.empty(len(VERTICES), WIDTH, dtype=dtype)
    fill_expand(rows, VERTICES, iteration)
    return rows


def contributed(dtype: torch.dtype, rank: int, iteration: int = 5, world_size: int = 3) -> torch.Tensor:
    rows = torch.empty(len(VERTICES), WIDTH, dtype=dtype)
    fill_fold(rows, VERTICES, iteration, rank, world_size)
    return rows


@named("dtype", DTYPES)
def test_what_was_sent_is_right(dtype: torch.dtype):
    assert wrong_expand(sent(dtype), VERTICES, 5) == 0


@named("dtype", DTYPES)
@pytest.mark.parametrize("change", ["iteration", "vertex", "column", "stale", "never written"])
def test_anything_else_is_wrong(dtype: torch.dtype, change: str):
    rows, vertices, iteration = sent(dtype), VERTICES, 5
    if change == "iteration":
        iteration = 6
    elif change == "vertex":
        vertices = VERTICES.flip(0)
        vertices[2] = 12
    elif change == "column":
        rows = rows.roll(1, 1)
    elif change == "stale":
        rows = sent(dtype, 4)
    else:
        rows.view(torch.uint8).fill_(POISON)
    wrong = wrong_expand(rows, vertices, iteration)
    # An 8-bit element is right by chance one time in 128; poison never is.
    assert wrong == rows.numel() if change == "never written" else wrong > 0.95 * rows.numel()


@named("dtype", DTYPES)
def test_one_flipped_bit_is_one_wrong_element(dtype: torch.dtype):
    rows = sent(dtype)
    rows.view(torch.uint8)[2, 9] ^= 16
    assert wrong_expand(rows, VERTICES, 5) == 1


@named("dtype", DTYPES)
def test_sums_of_all_holders_are_right(dtype: torch.dtype):
    holders = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0]], dtype=torch.bool)
    parts = [contributed(dtype, rank) for rank in range(3)]
    total = torch.zeros_like(parts[0])
    for held, part in zip(holders, parts, strict=True):
        total[held] += part[held]
    assert wrong_fold(total, VERTICES, holders, 5) == 0
    assert wrong_fold(total, VERTICES, holders, 6) > 0.9 * total.numel()
    assert wrong_fold(total.roll(1, 1), VERTICES, holders, 5) > 0.9 * total.numel()
    total[1] -= parts[1][1]  # a contribution that never came
    assert wrong_fold(total, VERTICES, holders, 5) == WIDTH
    total[2, 7] += 1
    assert wrong_fold(total, VERTICES, holders, 5) == WIDTH + 1


@given(
    ranks=st.integers(1, 64),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_sums_are_exact_in_the_type(ranks: int, dtype: torch.dtype):
    parts = [contributed(dtype, rank, world_size=ranks).double() for rank in range(ranks)]
    exact = torch.stack(parts).sum(0)
    assert torch.equal(exact.to(dtype).double(), exact)
    assert wrong_fold(exact.to(dtype), VERTICES, torch.ones(ranks, len(VERTICES), dtype=torch.bool), 5) == 0


def test_sums_that_cannot_be_exact_are_refused():
    with pytest.raises(ValueError, match=r"sums over 256 ranks are not exact in torch.bfloat16"):
        contributed(torch.bfloat16, 0, world_size=256)

"""Folds of floats are within the bound that is documented, and the bound is one that can be missed."""

import pytest
import torch

from dgcl.communicator import Communicator
from tests.support.fold_rounding import fold_bound
from tests.support.plans import random_world
from tests.support.ranks import folded, on_threads

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def mixed_rows(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of many sizes, some of them below the normal range of float16, whose sums do not overflow."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.randint(-7, 4, shape, generator=generator).double()
    return (torch.randn(shape, dtype=torch.float64, generator=generator) * sizes).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("trees, world_size", [("direct", 4), ("line", 5), ("chain", 4), ("random-2", 6)])
def test_folds_of_mixed_numbers_stay_within_the_bound(trees: str, world_size: int, dtype: torch.dtype):
    def run(comm: Communicator) -> float:
        rows = mixed_rows((comm.num_local, 9), dtype, comm.rank)
        exact, sizes = folded(comm, rows.double()), folded(comm, rows.double().abs())
        bound = fold_bound(dtype, comm.plan.num_stages, comm.world_size)
        return bound.share(comm.fold(rows), exact, sizes)

    shares = on_threads(random_world(1, world_size, trees), run)
    assert max(shares) <= 1.0
    assert dtype == torch.float64 or max(shares) > 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_adding_in_16_bits_would_miss_the_bound(dtype: torch.dtype):
    """A 1 and fifteen contributions that each are too small to change it: not what was promised."""
    rows = torch.full((16, 3), 0.45 * torch.finfo(dtype).eps, dtype=dtype)
    rows[0] = 1
    exact = rows.double().sum(0)
    naive, wide = torch.zeros(3, dtype=dtype), torch.zeros(3)
    for row in rows:
        naive, wide = naive + row, wide + row.float()
    bound = fold_bound(dtype, 1, 16)
    assert bound.share(naive, exact, exact.abs()) > 1.0
    assert bound.share(wide.to(dtype), exact, exact.abs()) <= 1.0


def test_one_more_stage_is_one_more_rounding():
    one, two = (fold_bound(torch.bfloat16, stages, 2).relative for stages in (1, 2))
    assert two - one == pytest.approx(2.0**-8, rel=0.02)
    assert fold_bound(torch.float32, 1, 4) == fold_bound(torch.float32, 1, 4)
    assert fold_bound(torch.float32, 1, 4).relative == fold_bound(torch.float32, 3, 4).relative


def test_integers_have_no_bound():
    with pytest.raises(TypeError, match=r"dtype: expected a floating-point type, got torch.int32"):
        fold_bound(torch.int32, 1, 2)

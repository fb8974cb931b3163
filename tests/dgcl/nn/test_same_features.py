"""Features that each rank makes itself must be the same on every rank."""

import pytest
import torch

import dgcl
from tests.support.layer_ranks import on_ranks, rows


@pytest.mark.parametrize("shape", [(5,), (), (3, 2), (0,)], ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64], ids=str
)
def test_features_that_ranks_make_themselves_must_be_the_same(shape, dtype):
    def rank(comm, same):
        features = rows(*shape, seed=0 if same else comm.rank).to(dtype)
        return dgcl.dispatch_features(features).equal(features[comm.owned_ids])

    assert on_ranks(2, rank, True) == [True, True]
    different = 0 not in shape and dtype != torch.bool
    if different:
        with pytest.raises(
            ValueError, match=r"features must be the same on every rank .*those of rank 1 differ"
        ):
            on_ranks(2, rank, False)

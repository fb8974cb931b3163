"""Tensors that must be the same on every rank: the first that differs is named."""

import pytest
import torch
from torch import nn

import dgcl
import dgcl.nn
from tests.dgcl.nn.ranks import on_ranks, rows


def test_check_equal_names_the_first_tensor():
    def rank(comm, what):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2 + (what == "shape") * comm.rank))
        dgcl.nn.broadcast_parameters(model) if what != "shape" else None
        model(torch.ones(1, 2)).sum().backward()
        dgcl.nn.check_equal(model, gradients=True)
        with torch.no_grad():
            if what == "parameter" and comm.rank == 2:
                model[1].bias[0] += 1e-7
            if what == "gradient" and comm.rank > 0:
                model[0].weight.grad[1, 1] += 1.0
        dgcl.nn.check_equal(model, gradients=what == "gradient")

    on_ranks(3, rank, "nothing")
    with pytest.raises(dgcl.DisagreementError, match=r"1.bias of shape \(2,\).*rank 2 differs from rank 0"):
        on_ranks(3, rank, "parameter")
    with pytest.raises(dgcl.DisagreementError, match=r"gradient of 0.weight .*ranks 1, 2 differ from rank 0"):
        on_ranks(3, rank, "gradient")
    with pytest.raises(dgcl.DisagreementError, match="model must have the same parameters on every rank"):
        on_ranks(2, rank, "shape")


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

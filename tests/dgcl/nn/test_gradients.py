"""dgcl.nn.sync_gradients and broadcast_parameters: the same model on every rank, bit for bit."""

import pytest
import torch
from torch import nn

import dgcl.nn
from tests.support.layer_ranks import drawn, on_ranks, rows


def model(seed: int = 0) -> nn.Module:
    return drawn(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double(), seed)


def test_gradients_are_summed_in_rank_order():
    def rank(comm):
        net = model()
        for number, parameter in enumerate(net.parameters()):
            parameter.grad = rows(seed=100 * comm.rank + number)[:1].expand(parameter.shape).clone() / 3
        own = [p.grad.clone() for p in net.parameters()]
        dgcl.nn.sync_gradients(net)
        return own, [p.grad for p in net.parameters()]

    results = on_ranks(4, rank)
    for position, summed in enumerate(results[0][1]):
        expected = results[0][0][position].clone()
        for own, _ in results[1:]:
            expected += own[position]
        assert all(found[position].equal(expected) for _, found in results)
        assert summed.equal(expected)


def test_parameters_without_a_gradient():
    """One that some rank has goes to all; one that no rank has stays None; a frozen one is left alone."""

    def rank(comm):
        everywhere, somewhere, nowhere = (nn.Parameter(torch.zeros(2, 2)) for _ in range(3))
        frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        everywhere.grad = torch.full((2, 2), 1.0)
        if comm.rank == 1:
            somewhere.grad = torch.full((2, 2), 5.0)
        before = everywhere.grad
        dgcl.nn.sync_gradients([everywhere, somewhere, nowhere, frozen])
        return everywhere.grad is before, everywhere.grad, somewhere.grad, nowhere.grad, frozen.grad

    for same_tensor, everywhere, somewhere, nowhere, frozen in on_ranks(3, rank):
        assert same_tensor
        assert (everywhere == 3.0).all()
        assert (somewhere == 5.0).all()
        assert nowhere is None
        assert frozen is None


def test_dtypes_keep_to_themselves():
    def rank(comm):
        parameters = [
            nn.Parameter(torch.zeros(3, dtype=d)) for d in (torch.float16, torch.float64, torch.float32)
        ]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1.0 + 2.0**-10 * (comm.rank > 0))
        dgcl.nn.sync_gradients(parameters)
        return [p.grad for p in parameters]

    for half, double, single in on_ranks(8, rank):
        assert (half.dtype, double.dtype, single.dtype) == (torch.float16, torch.float64, torch.float32)
        assert (double == 8.0 + 7 * 2.0**-10).all()
        assert (half == torch.tensor(8.0 + 7 * 2.0**-10).half()).all()  # rounded once


def test_sparse_gradients_are_refused():
    def rank(comm):
        embedding = nn.Embedding(4, 2, sparse=True)
        embedding(torch.tensor([1])).sum().backward()
        dgcl.nn.sync_gradients(embedding)

    with pytest.raises(ValueError, match="sparse=False"):
        on_ranks(1, rank)


@pytest.mark.parametrize("src", [0, 2])
def test_every_rank_gets_the_model_of_one(src):
    def rank(comm):
        net = model(seed=comm.rank)
        net[1].running_mean.fill_(comm.rank)
        dgcl.nn.broadcast_parameters(net, src=src)
        given = {name: value.clone() for name, value in net.state_dict().items()}
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(torch.nan)  # nobody else may see this
        return given

    expected = model(seed=src).state_dict()
    expected["1.running_mean"].fill_(src)
    for given in on_ranks(3, rank):
        assert given.keys() == expected.keys()
        assert all(given[name].equal(expected[name]) for name in expected)


def test_other_models_are_refused():
    def other_shape(comm):
        dgcl.nn.broadcast_parameters(nn.Linear(3, 2 + comm.rank))

    def other_names(comm):
        dgcl.nn.broadcast_parameters(nn.Linear(3, 2, bias=comm.rank == 0))

    def other_gradients(comm):
        net = nn.Linear(3, 2 + comm.rank)
        net(torch.ones(3)).sum().backward()
        dgcl.nn.sync_gradients(net)

    def other_calls(comm):
        net = nn.Linear(3, 2)
        (dgcl.nn.broadcast_parameters if comm.rank else dgcl.nn.sync_gradients)(net)

    with pytest.raises(dgcl.DisagreementError, match="different calls"):
        on_ranks(2, other_calls)
    with pytest.raises(ValueError, match=r"the gradients of rank \d are \d+ numbers in 2 tensors"):
        on_ranks(2, other_gradients)
    with pytest.raises(ValueError, match=r"weight is \(3, 3\) on rank 1 and \(2, 3\) on rank 0"):
        on_ranks(2, other_shape)
    with pytest.raises(ValueError, match="'bias' is on rank 0 or 1 alone"):
        on_ranks(2, other_names)
    with pytest.raises(ValueError, match="src must be an integer from 0 to 1"):
        on_ranks(2, lambda comm: dgcl.nn.broadcast_parameters(nn.Linear(1, 1), src=2))

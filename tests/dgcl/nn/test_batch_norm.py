"""dgcl.nn.BatchNorm: outputs, gradients and running statistics of BatchNorm1d over all vertices."""

import pytest
import torch
from torch import nn

import dgcl.nn
from tests.support.layer_ranks import WORLD_SIZES, on_ranks, rows

OPTIONS = {
    "plain": {},
    "cumulative": {"momentum": None},
    "no-affine": {"affine": False},
    "no-tracking": {"track_running_stats": False},
    "eps": {"eps": 0.5, "momentum": 0.3},
}


def set_up(norm: nn.Module) -> nn.Module:
    norm = norm.double()
    if norm.affine:
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(0.5, 2, 4))
            norm.bias.copy_(torch.linspace(-1, 1, 4))
    return norm


@pytest.mark.sample(2)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("trailing", [(4,), (4, 3)], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_three_steps_and_an_evaluation(name, trailing, world_size):
    options = OPTIONS[name]
    steps = [
        1e3 + 5 * rows(*trailing, seed=seed) for seed in range(3)
    ]  # far from zero: a sum of squares would fail
    upstream = rows(*trailing, seed=9)

    alone = set_up(nn.BatchNorm1d(4, **options))
    expected = []
    for x in steps:
        x = x.clone().requires_grad_()
        y = alone(x)
        (y * upstream).sum().backward()
        expected.append((y.detach(), x.grad))
    alone.eval()
    evaluated = alone(steps[0]).detach()

    def rank(comm):
        norm = set_up(dgcl.nn.BatchNorm(4, **options))
        own = comm.owned_ids
        found = []
        for x in steps:
            x = x[own].requires_grad_()
            y = norm(x)
            (y * upstream[own]).sum().backward()
            found.append((y.detach(), x.grad))
        dgcl.nn.sync_gradients(norm)
        norm.eval()
        return (
            own,
            found,
            norm(steps[0][own]).detach(),
            norm.state_dict(),
            [p.grad for p in norm.parameters()],
        )

    for own, found, evaluation, state, gradients in on_ranks(world_size, rank):
        for (y, x_grad), (y_alone, x_grad_alone) in zip(found, expected, strict=True):
            torch.testing.assert_close(y, y_alone[own], rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(x_grad, x_grad_alone[own], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(evaluation, evaluated[own], rtol=1e-10, atol=1e-10)
        assert state.keys() == alone.state_dict().keys()
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(state[key], value, rtol=1e-10, atol=1e-10)
        for gradient, parameter in zip(gradients, alone.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-10, atol=1e-10)


def test_second_derivatives():
    x, upstream = rows(4), rows(4, seed=9)

    def penalty(norm, x, upstream):
        x = x.requires_grad_()
        (gradient,) = torch.autograd.grad((norm(x) * upstream).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return x.grad

    expected = penalty(set_up(nn.BatchNorm1d(4)), x.clone(), upstream)
    found = on_ranks(
        3,
        lambda comm: (
            comm.owned_ids,
            penalty(set_up(dgcl.nn.BatchNorm(4)), x[comm.owned_ids], upstream[comm.owned_ids]),
        ),
    )
    for own, gradient in found:
        torch.testing.assert_close(gradient, expected[own], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bit_rows_have_statistics_in_float32(dtype):
    x = (100 + rows(4)).to(dtype)
    expected = torch.nn.functional.batch_norm(x.float(), None, None, training=True).to(dtype)
    found = on_ranks(3, lambda comm: (comm.owned_ids, dgcl.nn.BatchNorm(4)(x[comm.owned_ids]).detach()))
    for own, y in found:
        assert y.dtype == dtype
        torch.testing.assert_close(y, expected[own], rtol=2e-2, atol=2e-2)


def test_halo_rows_are_refused_in_training_only():
    def rank(comm):
        norm = dgcl.nn.BatchNorm(4)
        everything = torch.zeros(comm.num_owned + comm.num_halo, 4)
        assert norm.eval()(everything).shape == everything.shape
        norm.train()(everything)

    with pytest.raises(ValueError, match=r"x must hold the \d+ owned rows"):
        on_ranks(2, rank)

"""dgcl.nn.BatchNorm: outputs, gradients and running statistics of BatchNorm1d over all vertices."""

import copy

import pytest
import torch
from torch import nn

import dgcl.nn
from tests.dgcl.nn.ranks import WORLD_SIZES, on_ranks, rows

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


class OnePlaceTwice(nn.Module):
    """A norm that two names lead to."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).exp())


MODELS = {
    "itself": lambda: nn.BatchNorm1d(4, momentum=None),
    "nested": lambda: nn.Sequential(
        nn.Linear(4, 4), nn.ModuleDict({"norm": nn.BatchNorm1d(4)})["norm"], nn.Tanh()
    ),
    "twice": OnePlaceTwice,
    "evaluated": lambda: nn.Sequential(nn.BatchNorm1d(4)).eval(),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_make_their_own_are_distributed(name):
    torch.manual_seed(0)
    alone, x = set_up_all(MODELS[name]()), rows(4)
    models = [copy.deepcopy(alone) for _ in range(3)]
    expected = alone(x)
    expected.square().sum().backward()

    def rank(comm):
        model = models[comm.rank]
        parameters = list(model.parameters())
        converted = dgcl.distribute(model)
        assert all(mine is before for mine, before in zip(converted.parameters(), parameters, strict=True))
        y = converted(x[comm.owned_ids])
        y.square().sum().backward()
        dgcl.nn.sync_gradients(converted)
        return comm.owned_ids, y.detach(), [p.grad for p in converted.parameters()], converted.state_dict()

    for own, y, gradients, state in on_ranks(3, rank):
        torch.testing.assert_close(y, expected[own].detach(), rtol=1e-10, atol=1e-10)
        for gradient, parameter in zip(gradients, alone.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(state, alone.state_dict(), rtol=1e-10, atol=1e-10)


def set_up_all(model: nn.Module) -> nn.Module:
    for module in model.double().modules():
        if isinstance(module, nn.BatchNorm1d):
            set_up(module)
    return model

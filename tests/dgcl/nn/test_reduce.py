"""dgcl.nn.global_sum: a sum over ranks with its adjoint."""

import pytest
import torch

import dgcl.nn
from tests.support.layer_ranks import WORLD_SIZES, on_ranks, rows


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_readout_and_its_gradients(world_size):
    """A loss of the mean row, of which every rank takes the share of its own rows."""
    x, upstream = rows(3), rows(3, seed=1)
    alone = x.clone().requires_grad_()
    expected = ((alone - alone.sum(0)).tanh() * upstream).sum()
    expected.backward()

    def rank(comm):
        own = x[comm.owned_ids].requires_grad_()
        total = dgcl.nn.global_sum(own.sum(0))
        ((own - total).tanh() * upstream[comm.owned_ids]).sum().backward()
        return comm.owned_ids, total.detach(), own.grad

    results = on_ranks(world_size, rank)
    for owned, total, gradient in results:
        assert total.equal(results[0][1])
        torch.testing.assert_close(total, x.sum(0))
        torch.testing.assert_close(gradient, alone.grad[owned])


def test_the_input_may_be_written_to_at_once():
    def rank(comm):
        x = torch.full((1000,), float(comm.rank))
        total = dgcl.nn.global_sum(x)
        x.fill_(torch.nan)
        return total

    assert all((total == 28.0).all() for total in on_ranks(8, rank))


def test_sixteen_bit_floats_are_rounded_once():
    x = torch.tensor([1.0 + 2.0**-10]).half()
    for total in on_ranks(8, lambda comm: dgcl.nn.global_sum(x)):
        assert total.equal(torch.tensor([8.0 + 2.0**-7]).half())

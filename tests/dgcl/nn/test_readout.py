"""Readouts, and what ranks compute of them alike: values and every gradient of one device, forces among them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl.nn
from tests.dgcl.nn.ranks import CYCLE, NUM_NODES, on_ranks, rows
from tests.samples import named

GRAPH_OF = torch.arange(NUM_NODES) * 5 % 4  # of 5 graphs the last has no vertices
POOLS = {"add": dgcl.nn.global_add_pool, "mean": dgcl.nn.global_mean_pool, "max": dgcl.nn.global_max_pool}


def pooled_by_torch(kind: str, x: Tensor) -> Tensor:
    reduce = {"add": torch.sum, "mean": torch.mean, "max": torch.amax}[kind]
    return torch.stack([*(reduce(x[graph == GRAPH_OF], 0) for graph in range(4)), x.new_zeros(3)])


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("kind", POOLS)
def test_pools(kind: str, world_size: int):
    features = (rows(3) * 2).round()  # with maxima that several rows share
    whole = features.clone().requires_grad_()
    expected = pooled_by_torch(kind, whole)
    targets = rows(3, seed=1)[:5]
    F.mse_loss(expected, targets).backward()

    def rank(comm: dgcl.Communicator) -> Any:
        x, batch = features[comm.owned_ids].requires_grad_(), GRAPH_OF[comm.owned_ids]
        out = POOLS[kind](x, batch, 5)
        assert POOLS[kind](x, batch).shape == (4, 3)
        torch.testing.assert_close(POOLS[kind](x), POOLS[kind](x, torch.zeros_like(batch)))
        dgcl.nn.loss(F.mse_loss, on_every_rank=True)(out, targets).backward()
        return out.detach(), x.grad, comm.owned_ids

    for out, grad, owned in on_ranks(world_size, rank):
        torch.testing.assert_close(out, expected.detach(), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(grad, whole.grad[owned], rtol=1e-13, atol=1e-13)


class Potential(nn.Module):
    """Energies of edges, added up at their heads, and an MLP behind the readout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.edges = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        self.readout = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def rows(self, at_sources: Tensor, at_heads: Tensor) -> Tensor:
        return self.edges(at_sources - at_heads)


TARGETS = rows(3, seed=2)
ENERGY = torch.tensor(0.7, dtype=torch.float64)


def energy_by_mlp(model: Potential, mine: Tensor) -> Tensor:
    return dgcl.nn.count_once(model.readout(dgcl.nn.global_sum(mine.sum(0))).squeeze())


def plain_energy(model: Potential, mine: Tensor) -> Tensor:
    return dgcl.nn.global_sum(mine.sum(), on_every_rank=True)


@named(
    "energy, of_rows",
    {
        "MLP behind the readout": (energy_by_mlp, lambda model, mine: model.readout(mine.sum(0)).squeeze()),
        "sum of rows": (plain_energy, lambda model, mine: mine.sum()),
    },
)
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_energy_and_forces(energy: Any, of_rows: Any, world_size: int):
    """Double backward through exchanges and readout; the loss is of the energy and of the forces."""
    places, model = rows(3).requires_grad_(), Potential()
    sources, heads = torch.from_numpy(CYCLE)
    whole = of_rows(model, model.rows(places[sources], places[heads]))
    (gradient,) = torch.autograd.grad(whole, places, create_graph=True)
    expected = F.mse_loss(whole, ENERGY) + F.mse_loss(-gradient, TARGETS)
    expected.backward()

    def rank(comm: dgcl.Communicator):
        copy = Potential()
        copy.load_state_dict(model.state_dict())
        graph, own = comm.local_graph("csr"), rows(3)[comm.owned_ids].requires_grad_()
        local = dgcl.graph_allgather(own)
        value = energy(copy, copy.rows(graph.at_sources(local), graph.at_heads(own)))
        (toward,) = torch.autograd.grad(value, own, create_graph=True)
        forces = dgcl.nn.loss(F.mse_loss)(-toward, TARGETS[comm.owned_ids])
        loss = F.mse_loss(value, ENERGY) + forces
        loss.backward()
        dgcl.nn.sync_gradients(copy)
        exact = {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(value, whole, **exact)
        torch.testing.assert_close(toward, gradient[comm.owned_ids], **exact)
        torch.testing.assert_close(loss, expected, **exact)
        torch.testing.assert_close(own.grad, places.grad[comm.owned_ids], **exact)
        for parameter, other in zip(copy.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, other.grad, **exact)

    on_ranks(world_size, rank)


def test_a_batch_of_another_length_is_refused():
    def rank(comm: dgcl.Communicator):
        with pytest.raises(ValueError, match=r"batch must be int64 with shape \(23,\)"):
            dgcl.nn.global_mean_pool(rows(2), torch.zeros(3).long())

    on_ranks(1, rank)

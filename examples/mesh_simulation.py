"""A simulator learned on a fixed mesh: planned once, rolled out for many steps (after MeshGraphNets, 2021).

    torchrun --nproc-per-node=4 examples/mesh_simulation.py
    python examples/mesh_simulation.py                          # on one rank, with the same losses

Heat spreads over a square mesh. Edges carry their vectors, and keep a state of their own from round to round.
"""

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MLP, MessagePassing, Sequential

import dgcl


def mesh(side: int = 24, steps: int = 10) -> Data:
    """A square mesh with diagonals, (E, 2) vectors of edges, and temperatures (N, steps + 1, 1) from random sources."""
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    edges = (torch.cdist(places, places) < 1.5).fill_diagonal_(False).nonzero().t()
    vectors = places[edges[0]] - places[edges[1]]
    draw = torch.Generator().manual_seed(0)
    states = [torch.rand(side * side, 1, generator=draw, dtype=torch.float64).round()]
    for _ in range(steps):
        flow = states[-1][edges[0]] - states[-1][edges[1]]
        states.append(states[-1] + 0.05 * torch.zeros_like(states[-1]).index_add(0, edges[1], flow))
    return Data(x=torch.stack(states, 1), edge_index=edges, edge_attr=vectors)


class Round(MessagePassing):
    """Edges take their ends, then vertices take their in-edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_edges, self.of_vertices = (MLP([k * width, width, width], norm=None) for k in (3, 2))

    def forward(self, x: Tensor, edge_index: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        e = e + self.edge_updater(edge_index, x=x, e=e)
        return x + self.of_vertices(torch.cat([x, self.propagate(edge_index, e=e)], 1)), e

    def edge_update(self, x_j: Tensor, x_i: Tensor, e: Tensor) -> Tensor:
        return self.of_edges(torch.cat([x_j, x_i, e], 1))

    def message(self, e: Tensor) -> Tensor:
        return e


def make_model() -> nn.Module:
    """Encode, two rounds, decode: temperatures (N, 1) to those of the next step."""
    x, e, out = (MLP([*ends], norm=None) for ends in ((1, 16, 16), (2, 16, 16), (16, 16, 1)))
    rounds = [(Round(16), "x, edge_index, e -> x, e") for _ in range(2)]
    parts = [(x, "state -> x"), (e, "e -> e"), *rounds, (out, "x -> x"), (torch.add, "state, x -> x")]
    return Sequential("state, edge_index, e", parts)


def train(data: Data | None, model: nn.Module, steps: int) -> tuple[list[float], Tensor | None]:
    """Losses, and on rank 0 the temperatures after a rollout of ``steps``. Collective."""
    data = dgcl.dispatch(data)
    dgcl.distribute(model)
    optimizer, losses, state = torch.optim.Adam(model.parameters(), lr=0.01), [], data.x[:, 0]
    for step in range(steps):
        optimizer.zero_grad()
        out = model(data.x[:, step % 10], data.edge_index, data.edge_attr)
        loss = nn.functional.mse_loss(out, data.x[:, step % 10 + 1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for _ in range(steps):
        state = model(state, data.edge_index, data.edge_attr).detach()
    return losses, dgcl.collect(state)


if __name__ == "__main__":
    torch.manual_seed(0)
    dgcl.init()
    losses, state = train(mesh(), make_model().double(), 50)
    if state is not None:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, then {state.min():.3f} to {state.max():.3f}")

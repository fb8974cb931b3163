"""A simulator learned on a fixed mesh: planned once, rolled out for many steps (after MeshGraphNets, 2021).

    torchrun --nproc-per-node=4 examples/mesh_simulation.py
    python examples/mesh_simulation.py                          # on one rank, with the same losses

Heat spreads over a square mesh. The model learns the change of each vertex in a step of time from its in-edges, which
carry their vectors and keep a state of their own, and then runs on its own predictions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

import dgcl


def mesh(side: int = 24, steps: int = 10) -> Data:
    """A square mesh with diagonals, (E, 3) vectors of edges, and temperatures (N, steps + 1, 1) from random sources."""
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    edges = (torch.cdist(places, places) < 1.5).fill_diagonal_(False).nonzero().t()
    vectors = places[edges[0]] - places[edges[1]]
    draw = torch.Generator().manual_seed(0)
    states = [torch.rand(side * side, 1, generator=draw, dtype=torch.float64).round()]
    for _ in range(steps):
        flow = states[-1][edges[0]] - states[-1][edges[1]]
        states.append(states[-1] + 0.05 * torch.zeros_like(states[-1]).index_add(0, edges[1], flow))
    attributes = torch.cat([vectors, vectors.norm(dim=1, keepdim=True)], 1)
    return Data(x=torch.stack(states, 1), edge_index=edges, edge_attr=attributes)


def mlp(*widths: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Linear(*widths[1:]))


class Round(MessagePassing):
    """Edges take their ends, then vertices take their in-edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge_mlp, self.vertex_mlp = mlp(3 * width, width, width), mlp(2 * width, width, width)

    def forward(self, x: Tensor, edge_index: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        edges = edges + self.edge_updater(edge_index, x=x, edges=edges)
        return x + self.vertex_mlp(torch.cat([x, self.propagate(edge_index, edges=edges)], 1)), edges

    def edge_update(self, x_j: Tensor, x_i: Tensor, edges: Tensor) -> Tensor:
        return self.edge_mlp(torch.cat([x_j, x_i, edges], 1))

    def message(self, edges: Tensor) -> Tensor:
        return edges


class Simulator(nn.Module):
    """Encode, two rounds, decode."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encode_vertices, self.encode_edges = mlp(1, width, width), mlp(3, width, width)
        self.rounds, self.decode = nn.ModuleList(Round(width) for _ in range(2)), mlp(width, width, 1)

    def forward(self, state: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Temperatures (N, 1) to those of the next step."""
        x, edges = self.encode_vertices(state), self.encode_edges(edge_attr)
        for each in self.rounds:
            x, edges = each(x, edge_index, edges)
        return state + self.decode(x)


def train(data: Data | None, model: nn.Module, steps: int) -> tuple[list[float], Tensor | None]:
    """Losses, and on rank 0 the temperatures after a rollout of ``steps``. Collective."""
    data = dgcl.dispatch(data)
    dgcl.distribute(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        now, then = data.x[:, step % 10], data.x[:, step % 10 + 1]
        loss = dgcl.nn.loss(F.mse_loss)(model(now, data.edge_index, data.edge_attr), then)
        loss.backward()
        dgcl.nn.sync_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    state = data.x[:, 0]
    with torch.inference_mode():
        for _ in range(steps):
            state = model(state, data.edge_index, data.edge_attr)
    return losses, dgcl.collect(state)


if __name__ == "__main__":
    torch.manual_seed(0)
    dgcl.init()
    losses, state = train(mesh(), Simulator().double(), 50)
    if state is not None:
        print(
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; after 50 steps: {state.min():.3f} to {state.max():.3f}"
        )

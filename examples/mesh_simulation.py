"""A simulator learned on a fixed mesh: planned once, rolled out for many steps (after MeshGraphNets, 2021).

    torchrun --nproc-per-node=4 examples/mesh_simulation.py --steps 50
    python examples/mesh_simulation.py                                     # on one rank, with the same losses

Heat spreads over a square mesh. The model learns the change of each vertex in a step of time from its in-edges, which
carry their vectors, and then runs on its own predictions. The mesh never changes: partition and plan are made once,
and `--cache FOLDER` keeps them for the next run.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl


def mesh(side: int) -> tuple[np.ndarray, Tensor]:
    """Edges (2, E) of a square mesh, both ways and along one diagonal, and (E, 3) vectors with their lengths."""
    number = np.arange(side * side).reshape(side, side)
    pairs = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:]), (number[:-1, :-1], number[1:, 1:])]
    one_way = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in pairs], 1)
    edges = np.concatenate([one_way, one_way[::-1]], 1)
    places = np.stack(np.divmod(np.arange(side * side), side), 1)
    vectors = torch.from_numpy(places[edges[0]] - places[edges[1]]).float()
    return edges, torch.cat([vectors, vectors.norm(dim=1, keepdim=True)], 1)


def heat(edges: np.ndarray, num_nodes: int, steps: int) -> Tensor:
    """Temperatures (steps + 1, num_nodes, 1) by finite differences, from random sources: what is to be learned."""
    sources, heads = torch.from_numpy(edges[0].copy()), torch.from_numpy(edges[1].copy())
    states = [torch.rand(num_nodes, 1, generator=torch.Generator().manual_seed(0)).round()]
    for _ in range(steps):
        now = states[-1]
        states.append(now + 0.05 * torch.zeros_like(now).index_add(0, heads, now[sources] - now[heads]))
    return torch.stack(states)


def mlp(*widths: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Linear(*widths[1:]))


class Simulator(nn.Module):
    """Encode, two rounds of messages over edges with rows of their own, decode."""

    def __init__(self, comm: dgcl.Communicator, width: int = 16) -> None:
        super().__init__()
        self.comm, self.graph = comm, comm.local_graph("csr")
        self.encode_vertices, self.encode_edges = mlp(1, width, width), mlp(3, width, width)
        self.edge_rounds = nn.ModuleList(mlp(3 * width, width, width) for _ in range(2))
        self.vertex_rounds = nn.ModuleList(mlp(2 * width, width, width) for _ in range(2))
        self.decode = mlp(width, width, 1)

    def forward(self, state: Tensor, vectors: Tensor) -> Tensor:
        """Temperatures (num_owned, 1) and this rank's edge vectors to the next temperatures."""
        graph, x, e = self.graph, self.encode_vertices(state), self.encode_edges(vectors)
        for edge_mlp, vertex_mlp in zip(self.edge_rounds, self.vertex_rounds, strict=True):
            rows = dgcl.graph_allgather(x, self.comm)
            e = e + edge_mlp(torch.cat([graph.at_sources(rows), graph.at_heads(x), e], 1))
            x = x + vertex_mlp(torch.cat([x, graph.sum_edges(e)], 1))
        return state + self.decode(x)


def simulate(
    side: int, epochs: int, steps: int, cache: str | None = None
) -> tuple[list[float], Tensor | None]:
    """Losses of training, and on rank 0 the temperatures after a rollout of ``steps``. Collective."""
    edges, vectors = mesh(side)
    graph = dgcl.graph.as_graph(edges, num_nodes=side * side)
    comm = dgcl.build_comm_info(graph, cache=cache)
    mine = comm.dispatch_edges(vectors)  # in the order of this rank's edges
    states = dgcl.dispatch_features(
        heat(edges, side * side, 10).transpose(0, 1).contiguous()
    )  # (num_owned, 11, 1)

    torch.manual_seed(0)
    model = Simulator(comm)
    dgcl.nn.broadcast_parameters(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(epochs):
        optimizer.zero_grad()
        time = epoch % 10
        loss = dgcl.nn.loss(F.mse_loss)(model(states[:, time], mine), states[:, time + 1])
        loss.backward()
        dgcl.nn.sync_gradients(model)
        optimizer.step()
        losses.append(loss.item())

    state = states[:, 0]
    with torch.inference_mode():
        for _ in range(steps):  # each step makes two exchanges by the plan that was made above
            state = model(state, mine)
    return losses, dgcl.collect(state)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=24, help="vertices along each side")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20, help="of the rollout")
    parser.add_argument("--cache", metavar="FOLDER", help="keep partition and plan there")
    args = parser.parse_args()
    dgcl.init()
    losses, final = simulate(args.side, args.epochs, args.steps, args.cache)
    if final is not None:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} epochs")
        print(
            f"after {args.steps} steps: temperatures {final.min():.3f} to {final.max():.3f}, mean {final.mean():.3f}"
        )

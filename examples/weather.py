"""Encoder, processor, decoder over two sets of vertices, many samples at once (after GraphCast, 2023).

    torchrun --nproc-per-node=4 examples/weather.py
    python examples/weather.py                          # on one rank, with the same losses

Values on a fine grid go to a coarse mesh, over edges of the mesh, and back, by an exchange for each kind of edges. Rows
are (samples, vertices, columns), so one exchange brings those of all samples.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import dgcl


def globe(side: int = 24, samples: int = 3) -> HeteroData:
    """Points of a grid and of a mesh four times as coarse; (N, samples, 2) values now and after a step."""
    grid = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    mesh = grid[(grid % 4 == 0).all(1)]

    def near(sources: Tensor, heads: Tensor, most: float) -> Tensor:
        return (torch.cdist(sources, heads) <= most).nonzero().t()

    data = HeteroData()
    draw = torch.Generator().manual_seed(0)
    data["grid"].x = torch.randn(side * side, samples, 2, generator=draw, dtype=torch.float64)
    data["grid"].y = data["grid"].x.flip(2).tanh()
    data["mesh"].x = (mesh / side).unsqueeze(1).repeat(1, samples, 1)
    data["grid", "to", "mesh"].edge_index = near(grid, mesh, 3.0)
    data["mesh", "on", "mesh"].edge_index = near(mesh, mesh, 6.0)
    data["mesh", "to", "grid"].edge_index = near(mesh, grid, 4.0)
    return data


class Model(nn.Module):
    """One layer for each kind of edges, two in the middle."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encode, self.decode = pyg.SAGEConv((2, 2), width), pyg.SAGEConv((width, 2), 2)
        self.process = nn.ModuleList(pyg.SAGEConv(width, width) for _ in range(2))

    def forward(self, x: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> Tensor:
        mesh = self.encode((x["grid"], x["mesh"]), edges["grid", "to", "mesh"]).relu()
        for layer in self.process:
            mesh = mesh + layer(mesh, edges["mesh", "on", "mesh"]).relu()
        return x["grid"] + self.decode((mesh, x["grid"]), edges["mesh", "to", "grid"])


def train(data: HeteroData | None, model: nn.Module, steps: int) -> list[float]:
    """Losses. ``data`` is needed on rank 0 only. Collective."""
    data = dgcl.dispatch(data)
    dgcl.distribute(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = {name: rows.transpose(0, 1) for name, rows in data.x_dict.items()}  # PyG's order: samples first
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(x, data.edge_index_dict).transpose(0, 1)
        loss = F.mse_loss(out, data["grid"].y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    dgcl.init()
    losses = train(globe(), Model().double(), 50)
    if dgcl.current_communicator().rank == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")

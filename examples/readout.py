"""Many graphs in one, with a label for each: pooled over all ranks, whoever has their vertices.

    torchrun --nproc-per-node=4 examples/readout.py
    python examples/readout.py                          # on one rank, with the same losses

Pooled rows are the same on every rank, which computes what follows alike.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Data

import dgcl


def rings_and_stars(num_graphs: int = 40, size: int = 9) -> Data:
    """Graphs of two shapes; ``batch`` says which graph a vertex is of, ``shape`` what it looks like."""
    edges = []
    for graph in range(num_graphs):
        ids = torch.arange(size) + graph * size
        pairs = torch.stack([ids, ids.roll(1)] if graph % 2 else [ids[1:], ids[:1].expand(size - 1)])
        edges += [pairs, pairs.flip(0)]
    draw = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(num_graphs * size, 4, generator=draw, dtype=torch.float64),
        edge_index=torch.cat(edges, 1),
        batch=torch.arange(num_graphs).repeat_interleave(size),
        shape=torch.arange(num_graphs) % 2,
    )


def make_model() -> nn.ModuleDict:
    """PyG's GIN, whose batch normalisation becomes that of all vertices, and a head."""
    gin = pyg.GIN(4, 16, num_layers=2, norm="batch_norm")
    return nn.ModuleDict({"gin": gin, "head": nn.Linear(16, 2)}).double()


def train(data: Data | None, model: nn.ModuleDict, steps: int) -> list[float]:
    """Losses. ``data`` is needed on rank 0 only. Collective."""
    data = dgcl.dispatch(data)
    dgcl.distribute(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        h = model["gin"](data.x, data.edge_index)
        pooled = pyg.global_mean_pool(h, data.batch, len(data.shape))
        loss = F.cross_entropy(model["head"](pooled), data.shape)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    dgcl.init()
    losses = train(rings_and_stars(), make_model(), 50)
    if dgcl.current_communicator().rank == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

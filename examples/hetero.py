"""Several kinds of vertices and edges: PyG's HeteroData and HeteroConv as they are, an exchange for each kind of edges.

    torchrun --nproc-per-node=4 examples/hetero.py
    python examples/hetero.py                          # on one rank, with the same losses

Authors write papers, and papers cite papers; the field of half is known. A relational GCN (Schlichtkrull et al., 2018).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import dgcl

NUM_FIELDS = 4
EDGES = [("author", "writes", "paper"), ("paper", "written by", "author"), ("paper", "cited by", "paper")]


def library(papers: int = 600, authors: int = 300) -> HeteroData:
    """Papers of four fields, one after the other; authors write in their own, and papers cite near ones."""
    draw = torch.Generator().manual_seed(0)
    writers = torch.arange(authors).repeat(4)
    written = (
        writers * (papers // authors) + torch.randint(0, papers // 10, writers.shape, generator=draw)
    ) % papers
    citing = torch.arange(papers).repeat(5)
    cited = (citing + torch.randint(1, papers // 10, citing.shape, generator=draw)) % papers
    data = HeteroData()
    data["paper"].x = torch.randn(papers, 8, generator=draw, dtype=torch.float64)
    data["author"].x = torch.randn(authors, 5, generator=draw, dtype=torch.float64)
    data["paper"].y = torch.arange(papers) * NUM_FIELDS // papers
    data["paper"].x[:, :NUM_FIELDS] += F.one_hot(data["paper"].y, NUM_FIELDS)
    data["paper"].train_mask = torch.arange(papers) % 2 == 0
    for edge_type, pair in zip(EDGES, ([writers, written], [written, writers], [citing, cited]), strict=True):
        data[edge_type].edge_index = torch.stack(pair)
    return data


class Model(nn.Module):
    """Two layers, each with a matrix for each kind of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.HeteroConv({each: pyg.SAGEConv((-1, -1), 16) for each in EDGES})
        self.second = pyg.HeteroConv({each: pyg.SAGEConv(16, NUM_FIELDS) for each in EDGES})

    def forward(
        self, x: dict[str, Tensor], edge_index: dict[tuple[str, str, str], Tensor]
    ) -> dict[str, Tensor]:
        hidden = {name: rows.relu() for name, rows in self.first(x, edge_index).items()}
        return self.second(hidden, edge_index)


def train(data: HeteroData | None, model: nn.Module, steps: int) -> list[float]:
    """Losses. ``data`` is needed on rank 0 only. Collective."""
    data = dgcl.dispatch(data)
    dgcl.distribute(model)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    for _ in range(steps):
        optimizer.zero_grad()
        scores = model(data.x_dict, data.edge_index_dict)["paper"]
        known = data["paper"].train_mask
        loss = F.cross_entropy(scores[known], data["paper"].y[known])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    dgcl.init()
    losses = train(library(), Model().double(), 50)
    if dgcl.current_communicator().rank == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

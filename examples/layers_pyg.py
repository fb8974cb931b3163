"""The layers of examples/train.py with PyG, as for one device: ``dgcl.distribute`` lets them exchange.

Every layer takes this rank's edges and rows, and returns rows.
"""

from __future__ import annotations

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import dgcl
import dgcl.nn


def prepare(comm: dgcl.Communicator, dtype: torch.dtype) -> Tensor:
    """What the layers take as their graph: this rank's edges."""
    edge_index: Tensor = comm.local_graph("pyg").edge_index
    return edge_index


class GCN(nn.Module):
    """Kipf and Welling, 2017."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(width_in, width_out)

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        return self.conv(x, graph)


class GraphSAGE(nn.Module):
    """Hamilton, Ying and Leskovec, 2017; mean aggregation."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(width_in, width_out)

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        return self.conv(x, graph)


class GIN(nn.Module):
    """Xu et al., 2019; the batch normalisation inside has the statistics of all ranks' vertices."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        mlp = nn.Sequential(
            nn.Linear(width_in, width_out),
            nn.BatchNorm1d(width_out),
            nn.ReLU(),
            nn.Linear(width_out, width_out),
        )
        self.conv = pyg.GINConv(mlp, train_eps=True)

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        return self.conv(x, graph)


class CommNet(nn.Module):
    """Sukhbaatar, Szlam and Fergus, 2016: a vertex's own state, and the mean of those it hears."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.heard = nn.Linear(width_in, width_out, bias=False)
        self.mean = pyg.SimpleConv(aggr="mean")

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        return self.own(x) + self.mean(self.heard(x), graph)  # transform before exchange


class GAT(nn.Module):
    """Velickovic et al., 2018; the heads are averaged."""

    def __init__(self, width_in: int, width_out: int, num_heads: int = 4) -> None:
        super().__init__()
        self.conv = pyg.GATConv(width_in, width_out, num_heads, concat=False)

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        return self.conv(x, graph)

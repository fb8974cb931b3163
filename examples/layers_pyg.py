"""The layers of examples/train.py with PyG: unmodified classes on this rank's ``edge_index``.

Every layer takes the graph and this rank's rows, exchanges once, and returns this rank's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.frameworks.pyg import PyGLocalGraph, gcn_conv


@dataclass
class Graph:
    """This rank's edges, and those of GCN with their weights, which are computed once."""

    local: PyGLocalGraph
    gcn_edges: Tensor
    gcn_weights: Tensor


def prepare(comm: dgcl.Communicator, dtype: torch.dtype) -> Graph:
    """What the layers take as their graph."""
    local = comm.local_graph("pyg")
    return Graph(local, *local.gcn_norm(dtype=dtype))


class GCN(nn.Module):
    """Kipf and Welling, 2017. ``gcn_conv`` transforms before the exchange."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(width_in, width_out, normalize=False)  # the weights are normalised already

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        return gcn_conv(self.conv, x, graph.gcn_edges, graph.gcn_weights)


class GraphSAGE(nn.Module):
    """Hamilton, Ying and Leskovec, 2017; mean aggregation."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(width_in, width_out)

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        return self.conv(graph.local.pair(dgcl.graph_allgather(x)), graph.local.edge_index)


class GIN(nn.Module):
    """Xu et al., 2019; the batch normalisation inside has the statistics of all ranks' vertices."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        mlp = nn.Sequential(
            nn.Linear(width_in, width_out),
            dgcl.nn.BatchNorm(width_out),
            nn.ReLU(),
            nn.Linear(width_out, width_out),
        )
        self.conv = pyg.GINConv(mlp, train_eps=True)

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        return self.conv(graph.local.pair(dgcl.graph_allgather(x)), graph.local.edge_index)


class CommNet(nn.Module):
    """Sukhbaatar, Szlam and Fergus, 2016: a vertex's own state, and the mean of those it hears."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.heard = nn.Linear(width_in, width_out, bias=False)
        self.mean = pyg.SimpleConv(aggr="mean")

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        h = dgcl.graph_allgather(self.heard(x))  # transform before exchange
        return self.own(x) + self.mean(graph.local.pair(h), graph.local.edge_index)


class GAT(nn.Module):
    """Velickovic et al., 2018; the heads are averaged."""

    def __init__(self, width_in: int, width_out: int, num_heads: int = 4) -> None:
        super().__init__()
        self.conv = pyg.GATConv(width_in, width_out, num_heads, concat=False)

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        return self.conv(graph.local.pair(dgcl.graph_allgather(x)), graph.local.edge_index)

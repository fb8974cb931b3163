"""The layers of examples/train.py with DGL: unmodified ``dgl.nn`` classes on a block of this rank's edges.

Every layer takes the block and this rank's rows, exchanges once, and returns this rank's rows.
"""

from __future__ import annotations

import dgl.nn
import torch
from dgl import function as fn
from torch import Tensor, nn

import dgcl
import dgcl.nn


def prepare(comm: dgcl.Communicator, dtype: torch.dtype) -> dgl.DGLGraph:
    """What the layers take as their graph."""
    return comm.local_graph("dgl")


class GCN(nn.Module):
    """Kipf and Welling, 2017."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        # Transform before exchange: where the output is narrower, multiply each row where it lives. Narrower
        # rows travel, and no rank multiplies halo rows. Where it is wider, GraphConv aggregates first itself.
        narrows = width_out < width_in
        self.linear = nn.Linear(width_in, width_out, bias=False) if narrows else nn.Identity()
        self.conv = dgl.nn.GraphConv(
            width_out if narrows else width_in, width_out, weight=not narrows, allow_zero_in_degree=True
        )

    def forward(self, block: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv(block, dgcl.graph_allgather(self.linear(x)))


class GraphSAGE(nn.Module):
    """Hamilton, Ying and Leskovec, 2017; mean aggregation."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = dgl.nn.SAGEConv(width_in, width_out, "mean")

    def forward(self, block: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv(block, dgcl.graph_allgather(x))


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
        self.conv = dgl.nn.GINConv(mlp, "sum", learn_eps=True)

    def forward(self, block: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv(block, dgcl.graph_allgather(x))


class CommNet(nn.Module):
    """Sukhbaatar, Szlam and Fergus, 2016: a vertex's own state, and the mean of those it hears."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.heard = nn.Linear(width_in, width_out, bias=False)

    def forward(self, block: dgl.DGLGraph, x: Tensor) -> Tensor:
        with block.local_scope():
            block.srcdata["h"] = dgcl.graph_allgather(self.heard(x))  # transform before exchange
            block.update_all(fn.copy_u("h", "m"), fn.mean("m", "h"))
            return self.own(x) + block.dstdata["h"]


class GAT(nn.Module):
    """Velickovic et al., 2018; the heads are averaged."""

    def __init__(self, width_in: int, width_out: int, num_heads: int = 4) -> None:
        super().__init__()
        self.conv = dgl.nn.GATConv(width_in, width_out, num_heads, allow_zero_in_degree=True)

    def forward(self, block: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv(block, dgcl.graph_allgather(x)).mean(1)

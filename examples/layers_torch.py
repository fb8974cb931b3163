"""The layers of examples/train.py in plain torch, on the sums, means and softmaxes of a CSR graph.

Every layer takes the graph and this rank's rows, exchanges once, and returns this rank's rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dgcl
import dgcl.nn
from dgcl.frameworks.csr import CSRLocalGraph


def prepare(comm: dgcl.Communicator, dtype: torch.dtype) -> CSRLocalGraph:
    """What the layers take as their graph."""
    return comm.local_graph("csr")


class GCN(nn.Module):
    """Kipf and Welling, 2017."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, graph: CSRLocalGraph, x: Tensor) -> Tensor:
        # Degrees are integers; the square root of an integer tensor is float32, so convert them first.
        out_scale = graph.out_degrees[: graph.num_owned].clamp(min=1).to(x.dtype).rsqrt().unsqueeze(1)
        in_scale = graph.in_degrees.clamp(min=1).to(x.dtype).rsqrt().unsqueeze(1)
        if (
            self.linear.out_features < self.linear.in_features
        ):  # transform before exchange: narrower rows travel
            return in_scale * graph.sum(dgcl.graph_allgather(out_scale * self.linear(x))) + self.bias
        return self.linear(in_scale * graph.sum(dgcl.graph_allgather(out_scale * x))) + self.bias


class GraphSAGE(nn.Module):
    """Hamilton, Ying and Leskovec, 2017; mean aggregation."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.Linear(width_in, width_out, bias=False)

    def forward(self, graph: CSRLocalGraph, x: Tensor) -> Tensor:
        if self.own.out_features < self.own.in_features:  # transform before exchange
            return self.own(x) + graph.mean(dgcl.graph_allgather(self.neighbours(x)))
        return self.own(x) + self.neighbours(graph.mean(dgcl.graph_allgather(x)))


class GIN(nn.Module):
    """Xu et al., 2019; the batch normalisation inside has the statistics of all ranks' vertices."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(
            nn.Linear(width_in, width_out),
            dgcl.nn.BatchNorm(width_out),
            nn.ReLU(),
            nn.Linear(width_out, width_out),
        )

    def forward(self, graph: CSRLocalGraph, x: Tensor) -> Tensor:
        return self.mlp((1 + self.eps) * x + graph.sum(dgcl.graph_allgather(x)))


class CommNet(nn.Module):
    """Sukhbaatar, Szlam and Fergus, 2016: a vertex's own state, and the mean of those it hears."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.heard = nn.Linear(width_in, width_out, bias=False)

    def forward(self, graph: CSRLocalGraph, x: Tensor) -> Tensor:
        return self.own(x) + graph.mean(dgcl.graph_allgather(self.heard(x)))  # transform before exchange


class GAT(nn.Module):
    """Velickovic et al., 2018; the heads are averaged."""

    def __init__(self, width_in: int, width_out: int, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.linear = nn.Linear(width_in, num_heads * width_out, bias=False)
        self.read = nn.Parameter(torch.randn(num_heads, width_out) / width_out**0.5)
        self.write = nn.Parameter(torch.randn(num_heads, width_out) / width_out**0.5)
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, graph: CSRLocalGraph, x: Tensor) -> Tensor:
        h = dgcl.graph_allgather(
            self.linear(x).unflatten(1, (self.num_heads, -1))
        )  # no dense work on halo rows
        read = (h * self.read).sum(-1)
        write = (h[: graph.num_owned] * self.write).sum(-1)
        scores = F.leaky_relu(graph.at_sources(read) + graph.at_heads(write), 0.2)
        return graph.sum(h, graph.softmax(scores)).mean(1) + self.bias

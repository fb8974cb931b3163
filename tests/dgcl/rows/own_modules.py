"""Modules of one's own, with sums, tables and buffers that a library's layers have not.

Most are a function of parameters of all kinds, features and edges: what it leaves unused has no gradient.
"""

import functools

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.utils import add_self_loops, degree, scatter, softmax, to_dense_adj

from tests.dgcl.rows.programs import WIDTH, N


class Own(nn.Module):
    """Parameters, layers and buffers for a function of theirs."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.lin, self.score, self.pair = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 1),
            nn.Linear(2 * WIDTH, 1),
        )
        self.node, self.table = nn.Parameter(torch.ones(1, WIDTH)), nn.Embedding(5, WIDTH)
        self.centres, self.basis = nn.Parameter(torch.linspace(0, 4, 30)), nn.Linear(30, WIDTH)
        self.bn, self.norm, self.gin = (
            pyg.BatchNorm(WIDTH),
            pyg.PairNorm(),
            pyg.GINConv(nn.Linear(WIDTH, WIDTH)),
        )
        self.gat, self.sage = (
            pyg.GATConv(WIDTH, 3, heads=2, bias=False),
            pyg.SAGEConv(WIDTH, WIDTH, aggr="max"),
        )
        self.att = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.jump = pyg.JumpingKnowledge("lstm", WIDTH, 2)
        self.register_buffer("memory", torch.ones(N, WIDTH))
        self.register_buffer("v", torch.ones(WIDTH))

    def forward(self, x, edge_index):
        return self.function(self, x, edge_index, *edge_index)


#: What makes each module.
OWN = {}


def own(function):
    OWN[function.__name__] = functools.partial(Own, function)
    return function


@own
def virtual_node(own, x, edge_index, row, col):
    h = own.gin(x + own.node, edge_index).relu()
    node = own.node + own.lin(pyg.global_add_pool(h, torch.zeros(x.size(0), dtype=torch.long)))
    return own.gin(h + node, edge_index)


@own
def clusters(own, x, edge_index, row, col):
    """Soft clusters, whose means are given back; and hard ones."""
    soft = own.lin(x).softmax(-1)
    means, nearest = soft.t() @ x / soft.sum(0)[:, None], soft.argmax(1)
    return (
        soft @ means
        + scatter(x, nearest, 0, WIDTH, reduce="mean")[nearest]
        + torch.cdist(x, means).min(1)[0][:, None]
    )


@own
def fixed_point(own, x, edge_index, row, col):
    h = x
    for count in range(1, 30):  # noqa: B007
        new = 0.3 * torch.tanh(own.lin(scatter(h[row], col, 0, len(x), reduce="mean"))) + x
        if (new - h).norm() < 1e-4:
            break
        h = new
    return new * count


@own
def memory(own, x, edge_index, row, col):
    """A buffer of a row for each vertex, read at the sources of edges and written after."""
    out = own.lin(x + scatter(own.memory[row], col, 0, x.size(0), reduce="mean"))
    if own.training:
        own.memory = 0.9 * own.memory + 0.1 * out.detach()
    return out


@own
def memory_in_place(own, x, edge_index, row, col):
    out = own.lin(x * own.memory)
    own.memory[row.unique()] += 0.1
    own.memory.mul_(0.9).add_(out.detach(), alpha=0.1)
    return out


@own
def quantiles(own, x, edge_index, row, col):
    low, high = np.quantile((x * own.node).detach().cpu().numpy(), [0.1, 0.9], axis=0)
    return (x * own.node).clamp(torch.from_numpy(low), torch.from_numpy(high)) + x.median(0).values


@own
def gpr(own, x, edge_index, row, col):
    """Learned weights of powers of the normalized adjacency, with its own self loops."""
    (row, col), _ = add_self_loops(edge_index, num_nodes=x.size(0))
    deg, out = degree(row, x.size(0), x.dtype).pow(-0.5), own.lin(x)
    for gamma in own.centres[:3]:
        x = scatter((deg[row] * deg[col]).view(-1, 1) * x[row], col, 0, x.size(0))
        out = out + gamma * x
    return out


@own
def degree_embedding(own, x, edge_index, row, col):
    away, into = (degree(ends, x.size(0), torch.long) for ends in edge_index)
    order = (away + into).argsort(stable=True).argsort()[:, None] / len(x)
    return x + own.table(away.clamp(max=4)) * own.table(into.clamp(max=3)) + order


@own
def positions(own, x, edge_index, row, col):
    """How likely random walks return."""
    step = to_dense_adj(edge_index, max_num_nodes=x.size(0))[0]
    step = step / step.sum(1, keepdim=True).clamp(min=1)
    return (
        own.lin(x)
        + torch.stack([(step @ step).diagonal(), (step @ step @ step).diagonal()], 1) @ own.table.weight[:2]
    )


@own
def shuffled(own, x, edge_index, row, col):
    """Negatives by a permutation, attention over all vertices, and scales by their number."""
    negative = x[torch.randperm(x.size(0), generator=torch.Generator().manual_seed(1))]
    weight = torch.softmax(own.score(x), dim=0)
    return (x - negative) * x.size(0) ** -0.5 + (weight * x).sum(0) + weight / weight.max()


@own
def radial_basis(own, x, edge_index, row, col):
    """Thirty centres, as many as a rank has vertices."""
    basis = (-((x[row] - x[col]).norm(dim=1, keepdim=True) - own.centres).square()).exp()
    return scatter(own.basis(basis), col, 0, x.size(0), reduce="mean") + own.centres.view(5, 6)[0]


@own
def best(own, x, edge_index, row, col):
    """The vertices with the highest scores get a row of a table."""
    score = own.score(x).squeeze(-1)
    chosen = torch.zeros(x.size(0), dtype=torch.long)
    chosen[score.topk(10).indices] = 1
    h = x * score.sigmoid()[:, None]
    h[chosen == 1] = own.table(chosen)[chosen == 1]
    return h


@own
def joined(own, x, edge_index, row, col):
    """Vertices and edges in one table of n + E rows, normalized together."""
    both = own.bn(torch.cat([x, x[row] * x[col]], dim=0) @ own.lin.weight)
    return both[: x.size(0)] + scatter(both[x.size(0) :], col, 0, x.size(0))


@own
def attention(own, x, edge_index, row, col):
    alpha = softmax(F.leaky_relu(own.pair(torch.cat([x[row], x[col]], -1))), col, num_nodes=x.size(0))
    largest = scatter(alpha * x[row], col, dim=0, dim_size=len(x), reduce="max")
    return x.new_zeros(x.size()).scatter_add_(0, col.view(-1, 1).expand(-1, WIDTH), alpha * x[row]) + largest


@own
def everyone(own, x, edge_index, row, col):
    """Attention of all vertices to all, and a recurrent layer over what each layer gave."""
    h = own.att(x[None], x[None], x[None])[0].squeeze(0)
    return own.jump([x, h, own.lin(h)])


@own
def deep(own, x, edge_index, row, col):
    """Skips and norms of the library; a loop over sets of vertices."""
    h = own.bn(own.gat(x, edge_index)).relu()
    h = own.norm(own.sage(h, edge_index) + x)
    return h + sum(h[x[:, 0] > k].sum(0) / len(x) for k in range(-1, 4))


@own
def power_iteration(own, x, edge_index, row, col):
    """A spectral norm over all rows, kept in a buffer."""
    h = own.lin(scatter(x[col], row, 0, len(x)))
    with torch.no_grad():
        u = F.normalize(h @ own.v, dim=0)
        own.v.copy_(F.normalize(u @ h, dim=0))
    return h / (u @ h @ own.v)


class Temperature(pyg.MessagePassing):
    """A parameter for each vertex, read in a message by the vertex's number, and an embedding by it."""

    def __init__(self):
        super().__init__(aggr="add")
        self.t, self.table = nn.Parameter(torch.randn(N)), nn.Embedding(N, WIDTH)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, index, edge_index_j):
        return self.t[index].view(-1, 1) * x_j + self.table(edge_index_j)


class Gated(pyg.GraphNorm):
    """A subclass of a norm, whose own forward counts."""

    def forward(self, x, edge_index):
        return super().forward(x) * x.sigmoid() + (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


OWN |= {
    "temperature": Temperature,
    "gated": lambda: Gated(WIDTH),
    "sequential": lambda: pyg.Sequential("x, edge_index", [
        (pyg.SAGEConv(WIDTH, WIDTH), "x, edge_index -> h"), (nn.LayerNorm(WIDTH), "h -> h"),
        (lambda h, x: h + x.mean(0) - h.max(0)[0], "h, x -> h"),
    ]),
}  # fmt: skip

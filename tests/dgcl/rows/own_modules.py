"""Modules of one's own, with sums, tables and buffers that a library's layers have not."""

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.utils import add_self_loops, degree, scatter, softmax, to_dense_adj

from tests.dgcl.rows.programs import NUM_NODES, WIDTH

OWN: dict[str, type[nn.Module]] = {}


def own(module: type[nn.Module]) -> type[nn.Module]:
    OWN[module.__name__] = module
    return module


def neighbours(x, edge_index):
    """The sum over in-edges, by hand."""
    return torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])


@own
class Temperature(pyg.MessagePassing):
    """A parameter for each vertex, read in a message by the vertex's number, and an embedding by it."""

    def __init__(self):
        super().__init__(aggr="add")
        self.t, self.table = nn.Parameter(torch.randn(NUM_NODES)), nn.Embedding(NUM_NODES, WIDTH)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, index, edge_index_j):
        return self.t[index].view(-1, 1) * x_j + self.table(edge_index_j)


@own
class VirtualNode(nn.Module):
    def __init__(self):
        super().__init__()
        self.node, self.conv, self.mlp = nn.Parameter(torch.ones(1, 6)), pyg.GINConv(nn.Linear(6, 6)), nn.Linear(6, 6)

    def forward(self, x, edge_index):
        h = self.conv(x + self.node, edge_index).relu()
        node = self.node + self.mlp(pyg.global_add_pool(h, torch.zeros(x.size(0), dtype=torch.long)))
        return self.conv(h + node, edge_index)


@own
class Clusters(nn.Module):
    """Soft clusters, whose means are given back; and hard ones."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, 5)

    def forward(self, x, edge_index):
        soft = self.lin(x).softmax(-1)
        means = soft.t() @ x / soft.sum(0)[:, None]
        hard = scatter(x, soft.argmax(1), 0, 5, reduce="mean")
        return soft @ means + hard[soft.argmax(1)] + torch.cdist(x, means).min(1, keepdim=True).values


@own
class FixedPoint(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.rounds = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, x, edge_index):
        deg, h, self.rounds = degree(edge_index[1], len(x)).clamp(min=1).view(-1, 1), x, 0
        while True:
            new = 0.3 * torch.tanh(self.lin(neighbours(h, edge_index) / deg)) + x
            self.rounds += 1
            if (new - h).norm() < 1e-4 or self.rounds == 30:
                return new * self.rounds
            h = new


@own
class Memory(nn.Module):
    """A buffer of a row for each vertex, read at the sources of edges and written after."""

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.ones(NUM_NODES, WIDTH))
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, edge_index):
        read = scatter(self.memory[edge_index[0]], edge_index[1], 0, x.size(0), reduce="mean")
        out = self.lin(x + read)
        if self.training:
            self.memory = 0.9 * self.memory + 0.1 * out.detach()
        return out


@own
class Quantiles(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x, edge_index):
        low, high = np.quantile((x * self.scale).detach().cpu().numpy(), [0.1, 0.9], axis=0)
        return (x * self.scale).clamp(torch.from_numpy(low), torch.from_numpy(high)) + x.median(0).values


@own
class GPR(pyg.MessagePassing):
    """Learned weights of powers of the normalized adjacency, with its own self loops."""

    def __init__(self):
        super().__init__(aggr="add")
        self.gamma = nn.Parameter(torch.tensor([0.5, 0.3, 0.1]))

    def forward(self, x, edge_index):
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        deg = degree(edge_index[0], x.size(0), x.dtype).pow(-0.5)
        norm, out = deg[edge_index[0]] * deg[edge_index[1]], 0
        for gamma in self.gamma:
            x = self.propagate(edge_index, x=x, norm=norm)
            out = out + gamma * x
        return out

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


@own
class DegreeEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.into = nn.Embedding(4, WIDTH), nn.Embedding(4, WIDTH)

    def forward(self, x, edge_index):
        away, into = (degree(ends, x.size(0), torch.long) for ends in edge_index)
        order = (away + into).argsort(stable=True).argsort()[:, None] / len(x)
        return x + self.out(away.clamp(max=3)) + self.into(into.clamp(max=3)) + order


@own
class RandomWalks(nn.Module):
    """Positional encodings: how likely walks return."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, WIDTH)

    def forward(self, x, edge_index):
        step = to_dense_adj(edge_index, max_num_nodes=x.size(0))[0]
        step = step / step.sum(1, keepdim=True).clamp(min=1)
        powers = [step, step @ step, step @ step @ step]
        return x + self.lin(torch.stack([power.diagonal() for power in powers], 1))


@own
class Shuffled(nn.Module):
    """Negatives by a permutation, sharp attention over all vertices, and a scale by their number."""

    def __init__(self):
        super().__init__()
        self.att = nn.Linear(WIDTH, 1)

    def forward(self, x, edge_index):
        negative = x[torch.randperm(x.size(0), generator=torch.Generator().manual_seed(1))]
        weight = torch.softmax(self.att(x), dim=0)
        return (x - negative) * x.size(0) ** -0.5 + (weight * x).sum(0) + weight / weight.max()


@own
class RadialBasis(nn.Module):
    """Thirty centres, as many as a rank has vertices."""

    def __init__(self):
        super().__init__()
        self.centres, self.lin = nn.Parameter(torch.linspace(0, 4, 30)), nn.Linear(30, WIDTH)

    def forward(self, x, edge_index):
        distance = (x[edge_index[0]] - x[edge_index[1]]).norm(dim=1, keepdim=True)
        basis = (-(distance - self.centres).square()).exp()
        return scatter(self.lin(basis), edge_index[1], 0, x.size(0), reduce="mean") + self.centres.view(5, 6)[0]


@own
class Gated(pyg.GraphNorm):
    """A subclass of a norm, whose own forward counts."""

    def __init__(self):
        super().__init__(WIDTH)

    def forward(self, x, edge_index):
        return super().forward(x) * x.sigmoid() + (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


@own
class Best(nn.Module):
    """The vertices with the highest scores get a push; the others those of a mask."""

    def __init__(self):
        super().__init__()
        self.score, self.push = nn.Linear(WIDTH, 1), nn.Embedding(2, WIDTH)

    def forward(self, x, edge_index):
        score = self.score(x).squeeze(-1)
        best = torch.zeros(x.size(0), dtype=torch.long)
        best[score.topk(10).indices] = 1
        h = x * score.sigmoid()[:, None]
        h[best == 1] = self.push(best)[best == 1]
        return h


@own
class Joined(nn.Module):
    """Vertices and edges in one table of n + E rows, normalized together."""

    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x, edge_index):
        both = self.norm(self.lin(torch.cat([x, x[edge_index[0]] * x[edge_index[1]]], dim=0)))
        return both[: x.size(0)] + scatter(both[x.size(0) :], edge_index[1], 0, x.size(0))


@own
class Attention(nn.Module):
    """Edge attention without a library's layer: both ends, leaky scores, a softmax over in-edges, the largest message."""

    def __init__(self):
        super().__init__()
        self.att = nn.Linear(2 * WIDTH, 1)

    def forward(self, x, edge_index):
        row, col = edge_index
        alpha = softmax(nn.functional.leaky_relu(self.att(torch.cat([x[row], x[col]], -1))), col, num_nodes=x.size(0))
        largest = scatter(alpha * x[row], col, dim=0, dim_size=len(x), reduce="max")
        return x.new_zeros(x.size()).scatter_add_(0, col.view(-1, 1).expand(-1, WIDTH), alpha * x[row]) + largest


@own
class Everyone(nn.Module):
    """Attention of all vertices to all, and a recurrent layer over what each layer gave."""

    def __init__(self):
        super().__init__()
        self.att, self.jump = nn.MultiheadAttention(WIDTH, 2, batch_first=True), pyg.JumpingKnowledge("lstm", WIDTH, 2)

    def forward(self, x, edge_index):
        h = self.att(x[None], x[None], x[None])[0].squeeze(0)
        return self.jump([x, h, neighbours(h, edge_index)])


@own
class Mixed(pyg.Sequential):
    """PyG's Sequential, with a pool and a skip."""

    def __init__(self):
        super().__init__("x, edge_index", [
            (pyg.SAGEConv(WIDTH, WIDTH), "x, edge_index -> h"), (nn.LayerNorm(WIDTH), "h -> h"),
            (lambda h, x: h + x.mean(0) - h.max(0)[0], "h, x -> h"),
        ])  # fmt: skip


@own
class Reversed(nn.Module):
    """Sums by the source end, over turned edges, and over every second edge."""

    def __init__(self):
        super().__init__()
        self.conv, self.lin = pyg.DirGNNConv(pyg.SAGEConv(WIDTH, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, edge_index):
        turned = torch.stack([edge_index[1], edge_index[0]])
        out = scatter(self.lin(x)[edge_index[1]], edge_index[0], 0, len(x)) + neighbours(x, edge_index.flip(0))
        return out + self.conv(x, turned) + neighbours(x, edge_index[:, ::2])


@own
class Deep(nn.Module):
    """Skips, norms and attention of the library; a loop over vertices' classes."""

    def __init__(self):
        super().__init__()
        self.gat, self.bn, self.norm = pyg.GATConv(WIDTH, 3, heads=2), pyg.BatchNorm(WIDTH), pyg.PairNorm()
        self.sage, self.layer = pyg.SAGEConv(WIDTH, WIDTH, aggr="max"), nn.LayerNorm(WIDTH)

    def forward(self, x, edge_index):
        h = self.bn(self.gat(x, edge_index)).relu()
        h = self.norm(self.layer(self.sage(h, edge_index) + x))
        return h + sum(h[x[:, 0] > k].sum(0) / len(x) for k in range(-1, 4))


@own
class Power(nn.Module):
    """A spectral norm by power iteration over all rows, kept in a buffer."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("v", torch.ones(WIDTH))

    def forward(self, x, edge_index):
        h = self.lin(neighbours(x, edge_index))
        with torch.no_grad():
            u = nn.functional.normalize(h @ self.v, dim=0)
            self.v.copy_(nn.functional.normalize(u @ h, dim=0))
        return h / (u @ h @ self.v)

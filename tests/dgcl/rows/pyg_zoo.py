"""Layers and models of PyG: what makes each, and what it takes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Linear, Module, ReLU, Sequential
from torch.nn.utils.parametrizations import weight_norm

pytest.importorskip("torch_geometric")
import torch_geometric.nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import models
from torch_geometric.utils import degree

NUM_NODES, NUM_EDGES, WIDTH, OF_EDGES = 40, 170, 4, 3


def graph() -> Data:
    """A directed graph with self loops, parallel edges and vertices without in- or out-edges."""
    gen = torch.Generator().manual_seed(3)
    edge_index = torch.randint(0, NUM_NODES - 2, (2, NUM_EDGES), generator=gen)
    edge_index[0] += 2
    edge_index[:, :5] = edge_index[:1, :5]
    edge_index[:, 5:9] = edge_index[:, 9:13]
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]  # LSTM aggregation wants it

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    return Data(
        edge_index=edge_index,
        x=rows(NUM_NODES, WIDTH), x_0=rows(NUM_NODES, WIDTH), deep=rows(NUM_NODES, 2, WIDTH),
        pos=rows(NUM_NODES, 3), normal=rows(NUM_NODES, 3), node_type=torch.arange(NUM_NODES) % 3,
        labels=torch.arange(NUM_NODES) % WIDTH, mask=torch.arange(NUM_NODES) % 3 == 0,
        weight=rows(NUM_EDGES).square() + 0.1, attr=rows(NUM_EDGES, OF_EDGES), wide=rows(NUM_EDGES, WIDTH),
        pseudo=torch.rand(NUM_EDGES, 2, generator=gen, dtype=torch.float64),
        edge_type=torch.arange(NUM_EDGES) % 3, sign=torch.arange(NUM_EDGES) % 2 == 0,
        batch=(torch.arange(NUM_NODES) > 25).long(),
    )  # fmt: skip


def mlp(width: int = WIDTH, out: int = WIDTH) -> Module:
    return Sequential(Linear(width, 5), ReLU(), Linear(5, out))


class Signed(Module):
    def __init__(self):
        super().__init__()
        self.first = pyg.SignedConv(WIDTH, 3, first_aggr=True)
        self.second = pyg.SignedConv(3, 3, first_aggr=False)

    def forward(self, x, edge_index, sign):
        edges = edge_index[:, sign], edge_index[:, ~sign]
        return self.second(self.first(x, *edges), *edges)


class Res(Module):
    """Skips, norms by hand, edges without loops, and a layer used twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = pyg.GATv2Conv(WIDTH, WIDTH, edge_dim=OF_EDGES), pyg.PairNorm()

    def forward(self, x, edge_index, attr):
        kept = edge_index[0] != edge_index[1]
        x = x + self.norm(self.conv(x, edge_index[:, kept], attr[kept])).relu()
        return self.conv(x, edge_index, attr)


class OwnLayer(pyg.MessagePassing):
    """As a tutorial writes one: reads a pair and a tensor by themselves, too, and counts in-edges."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin = Linear(WIDTH, WIDTH)

    def forward(self, x, edge_index):
        h = self.lin(x)
        return self.propagate(edge_index, x=(x, h), h=h, norm=norm_of(edge_index, x))

    def message(self, x_i, x_j, h_j, norm):
        return norm.view(-1, 1) * (x_j - x_i * h_j)

    def update(self, aggr_out, x, h):
        return aggr_out * x[0] + x[1] - h.sin()


class Mesh(pyg.MessagePassing):
    """A step of MeshGraphNet, which updates its edges, too."""

    def __init__(self):
        super().__init__(aggr="sum")
        self.of_edges, self.of_vertices = mlp(2 * WIDTH + OF_EDGES, OF_EDGES), mlp(WIDTH + OF_EDGES)

    def forward(self, x, edge_index, attr):
        # edge_updater_type: (x: Tensor, attr: Tensor)
        size = len(x), len(x)
        # propagate_type: (attr: Tensor)
        attr = attr + self.edge_updater(edge_index, x=x, attr=attr)
        return x + self.of_vertices(torch.cat([x, self.propagate(edge_index, size, attr=attr)], 1))

    def edge_update(self, x_i, x_j, attr):
        return self.of_edges(torch.cat([x_i, x_j, attr], 1))

    def message(self, attr):
        return attr


class Many(pyg.MessagePassing):
    """A message that reads eight tensors of one shape at sources."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, **{name: x * k for k, name in enumerate("hgfedcba")})

    def message(self, a_j, b_j, c_j, d_j, e_j, f_j, g_j, h_j):
        return torch.cat([a_j, b_j, c_j, d_j, e_j, f_j, g_j, h_j], 1)


def norm_of(edge_index, x):
    count = degree(edge_index[1], len(x), dtype=x.dtype).clamp(min=1)
    return 1 / count[edge_index[1]]


def deg() -> torch.Tensor:
    return torch.bincount(torch.bincount(graph().edge_index[1], minlength=NUM_NODES))


W = WIDTH
PNA: dict[str, Any] = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"]}
X, XE = "x", "x edge_index"

#: By its name what makes it, and its arguments.
ZOO: dict[str, tuple[Callable[[], Module], str]] = {
    "AGNNConv": (pyg.AGNNConv, XE),
    "APPNP": (lambda: pyg.APPNP(3, 0.1), XE),
    "ARMAConv": (lambda: pyg.ARMAConv(W, 3, num_stacks=2, num_layers=2), XE),
    "AntiSymmetricConv": (lambda: pyg.AntiSymmetricConv(W, num_iters=2), XE),
    "CGConv": (lambda: pyg.CGConv(W, OF_EDGES, batch_norm=True), "x edge_index attr"),
    "ChebConv": (lambda: pyg.ChebConv(W, 3, 3), XE),
    "ClusterGCNConv": (lambda: pyg.ClusterGCNConv(W, 3, diag_lambda=0.1), XE),
    "DNAConv": (lambda: pyg.DNAConv(W, heads=2), "deep edge_index"),
    "DirGNNConv": (lambda: pyg.DirGNNConv(pyg.SAGEConv(W, 3)), XE),
    "EGConv": (lambda: pyg.EGConv(W, 4, aggregators=["symnorm", "mean", "std"], num_heads=2), XE),
    "EdgeConv": (lambda: pyg.EdgeConv(mlp(2 * W)), XE),
    "EdgeConv with BatchNorm of edges": (lambda: pyg.EdgeConv(pyg.MLP([2 * W, 5, 3])), XE),
    "FAConv": (lambda: pyg.FAConv(W), "x x_0 edge_index"),
    "FastRGCNConv": (lambda: pyg.FastRGCNConv(W, 3, 3), "x edge_index edge_type"),
    "FeaStConv": (lambda: pyg.FeaStConv(W, 3, heads=2), XE),
    "FiLMConv": (lambda: pyg.FiLMConv(W, 3), XE),
    "GATConv": (lambda: pyg.GATConv(W, 3, heads=2, edge_dim=OF_EDGES), "x edge_index attr"),
    "GATv2Conv": (
        lambda: weight_norm(pyg.GATv2Conv(W, 3, heads=2, edge_dim=OF_EDGES), "att"), "x edge_index attr"
    ),
    "GCN2Conv": (lambda: pyg.GCN2Conv(W, 0.1, 0.5, 1), "x x_0 edge_index"),
    "GCNConv": (lambda: pyg.GCNConv(W, 3), XE),
    "GCNConv with weights": (lambda: pyg.GCNConv(W, 3, improved=True), "x edge_index weight"),
    "GENConv": (lambda: pyg.GENConv(W, 3, edge_dim=OF_EDGES, aggr="softmax", learn_t=True), "x edge_index attr"),
    "GINConv": (lambda: pyg.GINConv(mlp(), train_eps=True), XE),
    "GINEConv": (lambda: pyg.GINEConv(mlp(), edge_dim=OF_EDGES), "x edge_index attr"),
    "GMMConv": (lambda: pyg.GMMConv(W, 3, dim=2, kernel_size=2), "x edge_index pseudo"),
    "GPSConv": (lambda: pyg.GPSConv(W, pyg.SAGEConv(W, W)), XE),
    "GatedGraphConv": (lambda: pyg.GatedGraphConv(W, 3), XE),
    "GeneralConv": (lambda: pyg.GeneralConv(W, 4, OF_EDGES, attention=True, heads=2), "x edge_index attr"),
    "GraphConv": (lambda: pyg.GraphConv(W, 3, aggr="mean"), "x edge_index weight"),
    "HEATConv": (
        lambda: pyg.HEATConv(W, 3, 3, 3, 3, OF_EDGES, 3, heads=2), "x edge_index node_type edge_type attr"
    ),
    "HypergraphConv": (lambda: pyg.HypergraphConv(W, 3), XE),
    "LEConv": (lambda: pyg.LEConv(W, 3), "x edge_index weight"),
    "LGConv": (pyg.LGConv, XE),
    "MFConv": (lambda: pyg.MFConv(W, 3), XE),
    "MixHopConv": (lambda: pyg.MixHopConv(W, 3, [0, 1, 2]), XE),
    "NNConv": (lambda: pyg.NNConv(W, 3, Linear(OF_EDGES, 3 * W)), "x edge_index attr"),
    "PDNConv": (lambda: pyg.PDNConv(W, 3, OF_EDGES, 5), "x edge_index attr"),
    "PNAConv": (lambda: pyg.PNAConv(W, 4, deg=deg(), edge_dim=OF_EDGES, **PNA), "x edge_index attr"),
    "PPFConv": (lambda: pyg.PPFConv(mlp(W + 4)), "x pos normal edge_index"),
    "PointGNNConv": (lambda: pyg.PointGNNConv(mlp(W, 3), mlp(3 + W), mlp()), "x pos edge_index"),
    "PointNetConv": (lambda: pyg.PointNetConv(mlp(W + 3)), "x pos edge_index"),
    "PointTransformerConv": (lambda: pyg.PointTransformerConv(W, 3), "x pos edge_index"),
    "RGATConv": (lambda: pyg.RGATConv(W, 3, 3, edge_dim=OF_EDGES), "x edge_index edge_type attr"),
    "RGCNConv": (lambda: pyg.RGCNConv(W, 3, 3, num_bases=2), "x edge_index edge_type"),
    "ResGatedGraphConv": (lambda: pyg.ResGatedGraphConv(W, 3, edge_dim=OF_EDGES), "x edge_index attr"),
    "SAGEConv": (lambda: pyg.SAGEConv(W, 3, project=True), XE),
    "SAGEConv max": (lambda: pyg.SAGEConv(W, 3, aggr="max", normalize=True), XE),
    "SAGEConv lstm": (lambda: pyg.SAGEConv(W, 3, aggr="lstm"), XE),
    "SAGEConv of several": (lambda: pyg.SAGEConv(W, 3, aggr=["mean", "max", "median"]), XE),
    "SGConv": (lambda: pyg.SGConv(W, 3, K=2, cached=True), XE),
    "SSGConv": (lambda: pyg.SSGConv(W, 3, 0.1, K=3), XE),
    "SignedConv": (Signed, "x edge_index sign"),
    "SimpleConv": (lambda: pyg.SimpleConv("mean", "self_loop"), XE),
    "SuperGATConv": (lambda: pyg.SuperGATConv(W, 3), XE),
    "TAGConv": (lambda: pyg.TAGConv(W, 3, K=3), XE),
    "TransformerConv": (
        lambda: pyg.TransformerConv(W, 3, heads=2, edge_dim=OF_EDGES, beta=True), "x edge_index attr"
    ),
    "WLConvContinuous": (pyg.WLConvContinuous, "x edge_index weight"),
    "BatchNorm": (lambda: pyg.BatchNorm(W), X),
    "DiffGroupNorm": (lambda: pyg.DiffGroupNorm(W, 2), X),
    "GraphNorm": (lambda: pyg.GraphNorm(W), X),
    "GraphSizeNorm": (pyg.GraphSizeNorm, X),
    "HeteroLayerNorm": (lambda: pyg.HeteroLayerNorm(W, 3), "x node_type"),
    "InstanceNorm": (lambda: pyg.InstanceNorm(W), X),
    "LayerNorm": (lambda: pyg.LayerNorm(W), X),
    "MeanSubtractionNorm": (pyg.MeanSubtractionNorm, X),
    "MessageNorm": (lambda: pyg.MessageNorm(True), "x x_0"),
    "PairNorm": (pyg.PairNorm, X),
    "PairNorm of vertices": (lambda: pyg.PairNorm(scale_individually=True), X),
    "AttentiveFP": (lambda: models.AttentiveFP(W, 3, 2, OF_EDGES, 2, 2), "x edge_index attr batch"),
    "DeepGCNLayer": (
        lambda: models.DeepGCNLayer(pyg.GENConv(W, W), pyg.LayerNorm(W), ReLU(), "res+", dropout=0.0), XE
    ),
    "EdgeCNN": (lambda: models.EdgeCNN(W, 5, 2, 3), XE),
    "GAT": (lambda: models.GAT(W, 6, 2, 3, heads=2, jk="cat"), XE),
    "GATv2": (lambda: models.GAT(W, 6, 2, 3, v2=True, norm="graph_norm"), XE),
    "GCN": (lambda: models.GCN(W, 5, 3, 3, norm="pair_norm", jk="lstm"), XE),
    "GIN": (lambda: models.GIN(W, 5, 2, 3, norm="batch_norm", jk="max"), XE),
    "GraphSAGE": (lambda: models.GraphSAGE(W, 5, 3, 3, norm="layer_norm"), XE),
    "GraphUNet": (lambda: models.GraphUNet(W, 5, 3, 2), XE),
    "GroupAddRev": (lambda: models.GroupAddRev(pyg.SAGEConv(W // 2, W // 2), num_groups=2), XE),
    "LabelPropagation": (lambda: models.LabelPropagation(3, 0.5), "labels edge_index mask"),
    "LightGCN": (lambda: models.LightGCN(NUM_NODES, W, 2), "edge_index"),
    "LINKX": (lambda: models.LINKX(NUM_NODES, W, 5, 3, 2), XE),
    "MLP": (lambda: pyg.MLP([W, 5, 3]), X),
    "PMLP": (lambda: models.PMLP(W, 5, 3, 2), XE),
    "PNA": (lambda: models.PNA(W, 5, 2, 3, deg=deg(), **PNA), XE),
    "Polynormer": (
        lambda: models.Polynormer(W, 5, 3, in_dropout=0.0, dropout=0.0, global_dropout=0.0),
        "x edge_index batch",
    ),
    "RECT_L": (lambda: models.RECT_L(W, 5), XE),
    "SGFormer": (lambda: models.SGFormer(W, 5, 3, trans_dropout=0.0, gnn_dropout=0.0), "x edge_index batch"),
    "a layer used twice, edges without loops": (Res, "x edge_index attr"),
    "a class of one's own": (OwnLayer, XE),
    "a message of many tensors": (Many, XE),
    "a step of MeshGraphNet": (Mesh, "x edge_index attr"),
}  # fmt: skip

REFUSED = {"GraphUNet"}

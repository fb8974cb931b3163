"""Models of several types of vertices and edges."""

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric")
pytest.importorskip("dgl")
import dgl
import dgl.function as fn
import dgl.nn as dnn
import torch_geometric.nn as pyg
from torch_geometric.data import HeteroData

SIZES = {"author": 14, "paper": 23, "venue": 4}
WRITES, CITES, BY, READS, IN, NEAR = TYPES = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "by", "author"),
    ("author", "reads", "paper"),
    ("paper", "in", "venue"),
    ("venue", "cites", "venue"),
]


def graph() -> HeteroData:
    gen = torch.Generator().manual_seed(4)
    data = HeteroData()
    for place, (name, size) in enumerate(SIZES.items()):
        data[name].x = torch.randn(size, 3 + place, generator=gen, dtype=torch.float64)
    for edge_type in TYPES:
        ends = [
            torch.randint(0, SIZES[name], (60 * (edge_type != NEAR),), generator=gen)
            for name in edge_type[::2]
        ]
        data[edge_type].edge_index = torch.stack(ends)
    return data


def graph_of_dgl() -> Any:
    """The same with 32-bit ids, and a weight for each edge."""
    data = graph()
    g = dgl.heterograph({name: tuple(data[name].edge_index.int()) for name in TYPES}, SIZES)
    g.ndata["x"] = data.x_dict
    for name in TYPES:
        g.edges[name].data["edge_index"] = torch.arange(g.num_edges(name)).double().cos()
    return g


class ByType(nn.Module):
    """Layers and norms by type."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.HeteroConv(
            {
                WRITES: pyg.SAGEConv((3, 4), 4),
                CITES: pyg.GATConv(4, 4),
                BY: pyg.GATConv((4, 3), 4, add_self_loops=False),
                READS: pyg.TransformerConv((3, 4), 4),
            }
        )
        self.norm = nn.ModuleDict({name: nn.BatchNorm1d(4) for name in SIZES})

    def forward(self, x, edge_index):
        return {name: self.norm[name](rows.tanh()) for name, rows in self.conv(x, edge_index).items()}


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.SAGEConv((-1, -1), 4), pyg.SAGEConv((-1, -1), 3)
        self.dropout = nn.Dropout(0.0)  # a name in the traced code, and no function

    def forward(self, x, edge_index):
        return self.second(self.dropout(self.first(x, edge_index).relu()), edge_index)


def translated() -> nn.Module:
    model = pyg.to_hetero(Plain(), graph().metadata()).double()
    model(graph().x_dict, graph().edge_index_dict)
    return model


class OfDgl(nn.Module):
    """Layers by type, then one layer for all of them."""

    def __init__(self):
        super().__init__()
        layers = {
            "writes": dnn.GATConv((3, 4), 2, 2),
            CITES: dnn.GraphConv(4, 4),
            "by": dnn.SAGEConv((4, 3), 4, "pool"),
            "reads": dnn.GraphConv(3, 4),
            "in": dnn.SAGEConv((4, 5), 4, "mean"),
            NEAR: dnn.GraphConv(5, 4),
        }
        self.first = dnn.HeteroGraphConv(layers, lambda rows, _: sum(each.flatten(1) for each in rows))
        self.norm = nn.ModuleDict({name: nn.BatchNorm1d(4) for name in SIZES})
        self.key, self.query = (dnn.HeteroLinear(dict.fromkeys(SIZES, 4), 4) for _ in range(2))

    def forward(self, g, x):
        h = {name: self.norm[name](rows.tanh()) for name, rows in self.first(g, x).items()}
        with g.local_scope():
            g.ndata["k"], g.ndata["q"] = self.key(h), self.query(h)
            for name in g.canonical_etypes:
                of_type = g[name]
                of_type.apply_edges(fn.v_dot_u("q", "k", "t"))
                of_type.edata["a"] = dnn.functional.edge_softmax(of_type, of_type.edata["t"])
            g.multi_update_all(
                {name: (fn.u_mul_e("k", "a", "m"), fn.sum("m", "z")) for name in TYPES}, "mean"
            )
            g.apply_edges(lambda edges: {"e": edges.src["k"] * edges.data["edge_index"][:, None]}, etype="by")
            g.multi_update_all(
                {
                    "by": (fn.copy_e("e", "m"), fn.max("m", "y")),
                    "in": (fn.copy_u("q", "m"), fn.min("m", "y")),
                },
                "stack",
                lambda nodes: {"y": nodes.data["y"].squeeze(1) * nodes.data["z"]},
            )
            two = {name: (fn.copy_u("k", "m"), fn.max("m", "y")) for name in ("writes", "reads")}
            g.multi_update_all(two, "max")
            for_each = {
                name: (fn.copy_u("k", "m"), fn.max("m", name)) for name in two
            }  # some have no in-edge
            g.multi_update_all(for_each, "sum")
            g.update_all(
                lambda edges: {"m": edges.src["q"]},
                lambda nodes: {"u": nodes.mailbox["m"].prod(1) * nodes.nodes()[:, None]},
                etype=CITES,
            )
            degrees = g.in_degrees(etype="by") + g.out_degrees(etype="writes")
            out = {name: rows + g.ndata["z"][name] for name, rows in g.ndata["y"].items()}
            return out | {
                "author": out["author"] * degrees[:, None],
                "paper": out["paper"] + sum(g.nodes["paper"].data[name] for name in ("u", *two)),
            }


MODELS = {"layers of PyG": (ByType, graph), "to_hetero": (translated, graph), "DGL": (OfDgl, graph_of_dgl)}


def steps(model, data):
    """Three steps of training: losses, the last outputs, gradients of inputs, and parameters."""
    rows = data.x_dict if hasattr(data, "x_dict") else data.ndata["x"]
    x = {name: each.detach().clone().requires_grad_() for name, each in rows.items()}
    optimizer, losses = torch.optim.Adam(model.parameters()), []
    torch.manual_seed(5)
    for _ in range(3):
        optimizer.zero_grad()
        out = model(x, data.edge_index_dict) if hasattr(data, "x_dict") else model(data, x)
        loss = sum((rows * torch.arange(rows.shape[1]).cos() + 1).square().sum() for rows in out.values())
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    grads = [rows.grad for rows in x.values() if rows.grad is not None]
    return {"losses": losses, "out": [*out.values()], "grads": grads, "parameters": [*model.parameters()]}

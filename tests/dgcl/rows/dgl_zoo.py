"""Layers of DGL: what makes each, and what it takes."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import Linear, Module

pytest.importorskip("dgl")
import dgl
import dgl.nn as dnn

NUM_NODES, NUM_EDGES, W, OF_EDGES = 40, 170, 4, 3


def graph():
    """A directed graph with parallel edges, every vertex with a self loop."""
    gen = torch.Generator().manual_seed(3)
    whole = dgl.add_self_loop(dgl.graph(tuple(torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=gen))))

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    whole.ndata.update(x=rows(NUM_NODES, W), x_0=rows(NUM_NODES, W), pos=rows(NUM_NODES, 3))
    whole.ndata["type"] = torch.arange(NUM_NODES) % 3
    edges = whole.num_edges()
    whole.edata.update(
        attr=rows(edges, OF_EDGES),
        wide=rows(edges, W),
        weight=rows(edges).square() + 0.1,
        pseudo=rows(edges, 2),
    )
    whole.edata["kind"] = torch.arange(edges) % 3
    return whole


#: By its name what makes it, and its arguments after the graph; g.edata's by their names.
ZOO: dict[str, tuple[Callable[[], Module], str]] = {
    "AGNNConv": (dnn.AGNNConv, "x"),
    "APPNPConv": (lambda: dnn.APPNPConv(3, 0.1), "x"),
    "CFConv": (lambda: dnn.CFConv(W, OF_EDGES, 3, 2), "x attr"),
    "ChebConv": (lambda: dnn.ChebConv(W, 3, 3), "x"),
    "DotGatConv": (lambda: dnn.DotGatConv(W, 3, 2), "x"),
    "EGATConv": (lambda: dnn.EGATConv(W, OF_EDGES, 3, 2, 2), "x attr"),
    "EGNNConv": (lambda: dnn.EGNNConv(W, 5, 3, OF_EDGES), "x pos attr"),
    "EdgeConv": (lambda: dnn.EdgeConv(W, 3, batch_norm=True), "x"),
    "EdgeGATConv": (lambda: dnn.EdgeGATConv(W, OF_EDGES, 3, 2), "x attr"),
    "GATConv": (lambda: dnn.GATConv(W, 3, 2, residual=True), "x"),
    "GATv2Conv": (lambda: dnn.GATv2Conv(W, 3, 2), "x"),
    "GCN2Conv": (lambda: dnn.GCN2Conv(W, 1, bias=True), "x x_0"),
    "GINConv": (lambda: dnn.GINConv(Linear(W, 3), "max", learn_eps=True), "x"),
    "GINEConv": (lambda: dnn.GINEConv(Linear(W, 3)), "x wide"),
    "GMMConv": (lambda: dnn.GMMConv(W, 3, 2, 2), "x pseudo"),
    "GatedGraphConv": (lambda: dnn.GatedGraphConv(W, W, 2, 1), "x"),
    "GatedGraphConv of several kinds": (lambda: dnn.GatedGraphConv(W, W, 2, 3), "x kind"),
    "GraphConv": (lambda: dnn.GraphConv(W, 3), "x"),
    "GraphConv of the right": (lambda: dnn.GraphConv(W, 6, norm="right"), "x"),
    "GroupRevRes": (lambda: dnn.GroupRevRes(dnn.SAGEConv(W // 2, W // 2, "mean"), 2), "x"),
    "HGTConv": (lambda: dnn.HGTConv(W, 2, 2, 3, 3, dropout=0.0), "x type kind"),
    "NNConv": (lambda: dnn.NNConv(W, 3, Linear(OF_EDGES, 3 * W), "mean"), "x attr"),
    "PNAConv": (lambda: dnn.PNAConv(W, 4, ["mean", "max"], ["identity"], 2.0), "x"),
    "RelGraphConv": (lambda: dnn.RelGraphConv(W, 3, 3, "basis", 2), "x kind"),
    "SAGEConv": (lambda: dnn.SAGEConv(W, 3, "mean"), "x"),
    "SAGEConv gcn": (lambda: dnn.SAGEConv(W, 3, "gcn"), "x"),
    "SAGEConv lstm": (lambda: dnn.SAGEConv(W, 3, "lstm"), "x"),
    "SAGEConv pool": (lambda: dnn.SAGEConv(W, 3, "pool"), "x"),
    "SGConv": (lambda: dnn.SGConv(W, 3, 3), "x"),
    "TAGConv": (lambda: dnn.TAGConv(W, 3, 3), "x"),
    "TWIRLSConv": (lambda: dnn.TWIRLSConv(W, 3, 4, prop_step=3), "x"),
}  # fmt: skip
REFUSED = {"GroupRevRes", "TWIRLSConv"}

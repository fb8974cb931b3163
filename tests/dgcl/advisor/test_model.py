"""The grammar of models, held against layers of torch: parameters, and what autograd keeps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dgcl
import dgcl.nn
from dgcl.advisor.model import Model, read_model

EDGES = np.random.default_rng(0).integers(0, 40, (2, 200))


def layers_of(model: Model) -> nn.ModuleList:
    """The layers that a line means."""
    from torch_geometric.nn import GATConv

    made: list[nn.Module] = []
    for layer in model.layers:
        if layer.kind == "gin":
            inner = nn.Sequential(
                nn.Linear(layer.width, layer.out), nn.ReLU(), nn.Linear(layer.out, layer.out)
            )
            made.append(dgcl.nn.GINConv(inner))
        elif layer.kind == "gat":
            made.append(GATConv(layer.width, layer.out // layer.heads, layer.heads))
        else:
            kind = {"gcn": dgcl.nn.GCNConv, "sage": dgcl.nn.SAGEConv}[layer.kind]
            made.append(kind(layer.width, layer.out))
    return nn.ModuleList(made)


@pytest.mark.parametrize("text", ["gcn:7,5,5,3", "sage:7,5,5,3", "gin:7,5,5,3", "gat:7,2x3,4"])
def test_parameters_are_those_of_the_layers(text: str):
    model = read_model(text)
    assert model.parameters == sum(each.numel() for each in layers_of(model).parameters())


@pytest.mark.parametrize("text", ["gcn:7,5,6,3", "sage:7,5,6,3", "gin:7,5,6,3"])
def test_rows_that_autograd_keeps(text: str):
    """Storages of rows that a forward saves, the features and parameters left out."""
    model = read_model(text)

    def held() -> tuple[int, int]:
        comm = dgcl.build_comm_info(torch.from_numpy(EDGES), "uniform", part=np.arange(40) % 3)
        layers, kept = layers_of(model), dict[int, int]()
        x = torch.ones(comm.num_owned, model.widths[0])
        apart = {each.untyped_storage().data_ptr() for each in (x, *layers.parameters())}

        def pack(saved: torch.Tensor) -> torch.Tensor:
            if saved.dtype == torch.float32 and saved.dim() == 2 and len(saved) == comm.num_owned:
                storage = saved.untyped_storage()
                kept[storage.data_ptr()] = storage.nbytes()
            return saved

        alive = []
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            for layer in layers:
                x = layer(x).relu()
                alive.append(x)
        return sum(size for at, size in kept.items() if at not in apart), comm.num_owned

    for size, owned in dgcl.launch(held, 3):
        predicted = 4 * owned * sum(layer.kept for layer in model.layers)
        assert size <= predicted <= size + 4 * owned * len(model.layers) * (text[:4] == "sage")


@pytest.mark.parametrize("text, exchanged", [
    ("gcn:7,5,6", [5, 5]), ("sage:7,5,6", [5, 5]), ("gin:7,5,6", [7, 5]), ("gat:602,8x32,41", [264, 42]),
    ("mgn:64,64/16", [64]),
])  # fmt: skip
def test_elements_that_are_exchanged(text: str, exchanged: list[int]):
    model = read_model(text)
    assert [layer.exchanged for layer in model.layers] == exchanged
    assert model.widths == [model.layers[0].width, *(after.out for after in model.layers)]
    assert all(before.out == after.width for before, after in pairwise(model.layers))


@pytest.mark.parametrize(
    "text, message",
    [
        ("gcnn:4,2", r"model must be written like gcn:602,256,41, .*got 'gcnn:4,2'\); did you mean 'gcn'"),
        ("gcn:4", "model must be written like"),
        ("gcn:4,0", "widths must be at least 1"),
        ("gcn:4,2x2", "heads, as in 8x32, are gat's"),
        ("mgn:4,4", "rows of edges, as in 64/16, are mgn's"),
        ("gcn:4,4/2", "rows of edges"),
    ],
)
def test_models_that_are_not_understood(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        read_model(text)


class Net(nn.Module):
    """A user's own: a product, layers that aggregate, norms and dropout between them, a product."""

    def __init__(self, *layers: nn.Module, first: int = 7) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(first, 6), nn.BatchNorm1d(6)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.norm(self.enter(x)).relu())
        for layer in self.layers:
            x = self.call(layer, x, edge_index).flatten(1).relu()
        return x

    def call(self, layer: nn.Module, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return layer(x, edge_index)


class OfDGL(Net):
    def forward(self, g: object, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        for layer in self.layers:
            x = layer(g, x).flatten(1)
        return x


class Ours(Net):
    def call(self, layer: nn.Module, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return layer(x)


def _pyg() -> Net:
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

    inner = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 4))
    return Net(GCNConv(6, 9), SAGEConv(9, 4), GATConv(4, 2, heads=4), GINConv(inner))


def _dgl() -> Net:
    from dgl.nn import GATConv, GraphConv, SAGEConv

    return OfDGL(GraphConv(7, 5), SAGEConv(5, 4, "mean"), GATConv(4, 2, 3), first=7)


@pytest.mark.parametrize(
    "make, kinds, exchanged",
    [
        (_pyg, "linear gcn sage gat sum linear linear", [0, 9, 9, 12, 8, 0, 0]),
        (_dgl, "gcn sage gat", [5, 4, 9]),
        (lambda: Ours(dgcl.nn.GCNConv(6, 9), dgcl.nn.SAGEConv(9, 4)), "linear gcn sage", [0, 6, 4]),
    ],
)
def test_a_users_own_module_is_traced(make: Any, kinds: str, exchanged: list[int]):
    net = make()
    model = read_model(net)
    assert [layer.kind for layer in model.layers] == kinds.split()
    assert [layer.exchanged for layer in model.layers] == exchanged
    assert model.parameters == sum(each.numel() for each in net.parameters())
    advice = dgcl.advise(torch.from_numpy(EDGES), model=net, topology="uniform4")
    assert any(row.layers for row in advice.rows)


def test_what_cannot_be_traced_is_named():
    from torch_geometric.nn import TransformerConv

    for net, why in (
        (nn.Linear(3, 2), "Linear cannot be traced: it calls none of GCNConv"),
        (Net(TransformerConv(6, 4)), "layers.0 is a TransformerConv, which is none of GCNConv"),
    ):
        with pytest.raises(ValueError, match=f"model: .*{why}.*describe it in a line, as 'gcn:602,256,41'"):
            read_model(net)

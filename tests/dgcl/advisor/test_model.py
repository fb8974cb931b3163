"""The grammar of models, held against layers of torch: parameters, and what autograd keeps."""

from __future__ import annotations

from itertools import pairwise

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
        if model.kind == "gin":
            inner = nn.Sequential(
                nn.Linear(layer.width, layer.out), nn.ReLU(), nn.Linear(layer.out, layer.out)
            )
            made.append(dgcl.nn.GINConv(inner))
        elif model.kind == "gat":
            made.append(GATConv(layer.width, layer.out // layer.heads, layer.heads))
        else:
            kind = {"gcn": dgcl.nn.GCNConv, "sage": dgcl.nn.SAGEConv}[model.kind]
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
        assert size <= predicted <= size + 4 * owned * len(model.layers) * (model.kind == "sage")


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

"""The grammar of models, held against layers of torch: parameters, and what autograd keeps."""

import numpy as np
import pytest
import torch
from torch import nn

import dgcl
import dgcl.nn
from dgcl.advisor.layers import ATTENTION
from dgcl.advisor.model_costs import read_model

EDGES = np.random.default_rng(0).integers(0, 40, (2, 200))


def layers_of(model):
    """The layers that a line means."""
    from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

    attention = {"gat": GATConv, "gatv2": GATv2Conv, "transformer": TransformerConv}
    made: list[nn.Module] = []
    for layer in model.layers:
        if layer.kind == "gin":
            inner = nn.Sequential(
                nn.Linear(layer.width, layer.out), nn.ReLU(), nn.Linear(layer.out, layer.out)
            )
            made.append(dgcl.nn.GINConv(inner))
        elif layer.kind in attention:
            made.append(attention[layer.kind](layer.width, layer.out // layer.heads, layer.heads))
        else:
            kind = {"gcn": dgcl.nn.GCNConv, "sage": dgcl.nn.SAGEConv}[layer.kind]
            made.append(kind(layer.width, layer.out))
    return nn.ModuleList(made)


@pytest.mark.parametrize(
    "text", ["gcn:7,5,5,3", "sage:7,5,5,3", "gin:7,5,5,3", *(f"{each}:7,2x3,4" for each in sorted(ATTENTION))]
)
def test_parameters_are_those_of_the_layers(text):
    model = read_model(text)
    assert model.parameters == sum(each.numel() for each in layers_of(model).parameters())


@pytest.mark.parametrize("text", ["gcn:7,5,6,3", "sage:7,5,6,3", "gin:7,5,6,3"])
def test_rows_that_autograd_keeps(text):
    """Storages of rows that a forward saves, the features and parameters left out."""
    model = read_model(text)

    def held():
        comm = dgcl.build_comm_info(torch.from_numpy(EDGES), "uniform", part=np.arange(40) % 3)
        layers, kept = layers_of(model), dict[int, int]()
        x = torch.ones(comm.num_owned, model.widths[0])
        apart = {each.untyped_storage().data_ptr() for each in (x, *layers.parameters())}

        def pack(saved):
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


@pytest.mark.parametrize(
    "text, message",
    [
        ("gcnn:4,2", r"model must be written like gcn:602,256,41, .*got 'gcnn:4,2'\); did you mean 'gcn'"),
        ("gcn:4,0", "model must be written like"),
        ("gcn:4,2x2", "heads, as in 8x32, are attention's"),
        ("mgn:4,4", "rows of edges, as in 64/16, are mgn's"),
    ],
)
def test_models_that_are_not_understood(text, message):
    with pytest.raises(ValueError, match=message):
        read_model(text)


class Net(nn.Module):
    """A user's own: a product, a norm and dropout, then layers that aggregate."""

    def __init__(self, call, *layers):
        super().__init__()
        self.enter, self.norm = nn.Linear(7, 6), nn.BatchNorm1d(6)
        self.call, self.layers = call, nn.ModuleList(layers)

    def forward(self, x, edge_index):
        x = nn.functional.dropout(self.norm(self.enter(x)).relu())
        for layer in self.layers:
            x = self.call(layer, x, edge_index).flatten(1).relu()
        return x


class OfData(Net):
    """Takes a graph and its rows as one."""

    def forward(self, data):
        return super().forward(data.x, data)


def of_data():
    from torch_geometric.nn import GCNConv

    return OfData(lambda layer, x, data: layer(x, data.edge_index, data.edge_weight), GCNConv(6, 9))


def of_pyg():
    from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, Linear, SAGEConv, TransformerConv

    inner = nn.Sequential(Linear(8, 5), nn.ReLU(), Linear(5, 4))
    layers = GCNConv(6, 9), SAGEConv(9, 4), GATConv(4, 2, heads=4), GINConv(inner)
    layers += GATv2Conv(4, 3, 2, share_weights=False), TransformerConv(6, 2, 2, concat=True)
    return Net(lambda layer, x, edges: layer(x, edges), *layers)


def of_dgl():
    from dgl.nn import GATConv, GraphConv, SAGEConv

    layers = GraphConv(6, 5), SAGEConv(5, 4, "mean"), GATConv(4, 2, 3)
    return Net(lambda layer, x, _: layer(None, x), *layers)


def ours():
    return Net(lambda layer, x, _: layer(x), dgcl.nn.GCNConv(6, 9), dgcl.nn.SAGEConv(9, 4))


@pytest.mark.parametrize(
    "make, kinds, exchanged",
    [
        (of_pyg, "linear gcn sage gat sum linear linear gatv2 transformer", [0, 9, 9, 12, 8, 0, 0, 6, 8]),
        (of_dgl, "linear gcn sage gat", [0, 5, 4, 9]),
        (ours, "linear gcn sage", [0, 6, 4]),
        (of_data, "linear gcn", [0, 9]),
    ],
)
def test_a_users_own_module_is_traced(make, kinds, exchanged):
    net = make()
    model = read_model(net)
    assert [layer.kind for layer in model.layers] == kinds.split()
    assert [layer.exchanged for layer in model.layers] == exchanged
    assert model.parameters == sum(each.numel() for each in net.parameters())
    advice = dgcl.advise(torch.from_numpy(EDGES), model=net, topology="uniform4")
    assert any(row.layers for row in advice.rows)


def test_what_cannot_be_traced_is_named():
    from dgl.nn import TAGConv
    from torch_geometric.nn import GCNConv, HeteroConv, SAGEConv, SuperGATConv

    with pytest.raises(ValueError, match=r"model must be a module, not its class: give GCNConv\(...\)"):
        read_model(GCNConv)
    for net, why in (
        (OfData(lambda *_: _[2].adj, GCNConv(6, 4)), "it takes 'adj' of its graph; x and edge_index are"),
        (GCNConv(-1, 4), "its widths are open until it has run"),
        (TAGConv(6, 4), "it is a TAGConv, which is none of GCNConv"),
        (nn.Linear(3, 2), "Linear cannot be traced: it calls none of GCNConv"),
        (Net(lambda layer, x, edges: layer(x, edges), GCNConv(8, 4)), r"GCNConv takes rows of 8 \(got 6,"),
        (Net(None, SuperGATConv(6, 4)), "layers.0 is a SuperGATConv, which is none of GCNConv"),
        (HeteroConv({("a", "to", "a"): GCNConv(6, 4)}), "it is a HeteroConv, which is .* of one type"),
        (SAGEConv(6, 4, "median"), "it is a SAGEConv, which is none of .* that sum"),
    ):
        with pytest.raises(ValueError, match=f"model: .*{why}.*describe it in a line, as 'gcn:602,256,41'"):
            read_model(net)

"""Models of several types of vertices and edges run on ranks as they are."""

import copy
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
from torch_geometric.data import Data, HeteroData

import dgcl
import dgcl.nn
from dgcl.ranks.context import context
from tests.dgcl.distributed.test_pyg_zoo import check

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
                CITES: pyg.GCNConv(4, 4),
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


def steps(model, data, sync) -> tuple[Any, ...]:
    """Outputs of the last of three steps of training, gradients of inputs, and parameters with theirs."""
    x = {
        name: rows.requires_grad_()
        for name, rows in (data.x_dict if hasattr(data, "x_dict") else data.ndata["x"]).items()
    }
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        out = model(x, data.edge_index_dict) if hasattr(data, "x_dict") else model(data, x)
        sum((rows * torch.arange(rows.shape[1]).cos() + 1).square().sum() for rows in out.values()).backward()
        sync(model)
        optimizer.step()
    grads = {name: rows.grad for name, rows in x.items() if rows.grad is not None}
    return {name: rows.detach() for name, rows in out.items()}, grads, [*model.parameters()]


def on_rank(name: str, model: nn.Module) -> tuple[Any, ...]:
    world_size = context.require_control().world_size
    part = torch.arange(sum(SIZES.values())) % 5 % 3 % world_size
    if world_size == 4:  # ranks without authors, ranks without venues
        part[-7:] = 3
    data = dgcl.dispatch(MODELS[name][1](), topology="uniform", part=part)
    model = dgcl.distribute(copy.deepcopy(model))
    if name == "layers of PyG":
        x, edges = data.x_dict, data.edge_index_dict
        copies = edges | {each: edges[each].clone() for each in TYPES if each != CITES}
        out, again = model(x, edges), model(x, copies)
        assert all(torch.equal(again[each], out[each]) for each in out)
    out, grads, parameters = steps(model, data, dgcl.nn.sync_gradients)
    if name == "DGL" and (back := dgcl.collect(data)):
        check_whole(back, graph_of_dgl())
    return dgcl.collect(out), dgcl.collect(grads), parameters


def check_whole(g: Any, whole: Any):
    """The same graph, edges in their order, and rows of vertices and edges."""
    for name in whole.ntypes:
        assert torch.equal(g.nodes[name].data["x"], whole.nodes[name].data["x"])
    for name in whole.canonical_etypes:
        assert torch.equal(torch.stack(g.edges(etype=name)), torch.stack(whole.edges(etype=name)))
        assert torch.equal(g.edges[name].data["edge_index"], whole.edges[name].data["edge_index"])


def expected(name: str) -> tuple[nn.Module, list[Any]]:
    """The model, and what one device computes."""
    torch.manual_seed(0)
    make, data = MODELS[name]
    model = make().double()
    return model, steps(copy.deepcopy(model), data(), lambda model: None)


def check_rank(measured: Any, reference: Any):
    for one, other in zip(measured[:2], reference[:2], strict=True):
        assert one.keys() == other.keys()
        check([one[name] for name in other], other.values())
    check(measured[2], reference[2])
    check(*([each.grad for each in parameters] for parameters in (measured[2], reference[2])))


@pytest.mark.sample(3)
@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_types_on_ranks_are_those_of_one_device(name, world_size):
    model, reference = expected(name)
    check_rank(dgcl.launch(on_rank, world_size, name, model)[0], reference)


def test_what_a_graph_of_several_types_refuses():
    def rank():
        g = dgcl.dispatch(graph_of_dgl())
        with pytest.raises(dgl.DGLError, match="ambiguous"):
            g["cites"]
        with pytest.raises(dgl.DGLError, match="lists no vertices"):
            g.nodes()
        for run in (lambda: g.update_all(fn.copy_u("x", "m"), fn.sum("m", "h")), lambda: g.edata):
            with pytest.raises(dgl.DGLError, match="must be specified"):
                run()
        data = dgcl.dispatch(graph())
        copies = {name: edges.clone() for name, edges in data.edge_index_dict.items()}
        layer = pyg.HeteroConv({CITES: pyg.GCNConv(4, 4, add_self_loops=False)}).double()
        with pytest.raises(ValueError, match="takes edges of a type as"):
            dgcl.distribute(layer)(data.x_dict, copies)
        with pytest.raises(ValueError, match="gave on this communicator"):
            dgcl.collect(Data(num_nodes=3))

    dgcl.launch(rank, 2)


@pytest.mark.parametrize("make", [graph, graph_of_dgl])
def test_dropout_by_type_is_that_of_any_number_of_ranks(make):
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            width = {"author": 3, "paper": 4, "venue": 5}
            convolution, layer, options = (
                pyg.HeteroConv,
                pyg.GATConv,
                {"dropout": 0.5, "add_self_loops": False},
            )
            if make is graph_of_dgl:
                convolution, layer = dnn.HeteroGraphConv, dnn.GATConv
                options = {"attn_drop": 0.5, "num_heads": 1, "allow_zero_in_degree": True}
            layers = {each: layer((width[each[0]], width[each[2]]), 4, **options) for each in TYPES}
            self.convolution = convolution(layers).double()

        def forward(self, x, edges):
            dropped = {name: nn.functional.dropout(rows, 0.5, self.training) for name, rows in x.items()}
            return dropped, self.convolution(*((x, edges) if make is graph else (edges, x)))

    def rank():
        world_size = context.require_control().world_size
        part = torch.arange(sum(SIZES.values())) % 5 % 3 % world_size
        data = dgcl.dispatch(make(), topology="uniform", part=part)
        x, edges = (data.x_dict, data.edge_index_dict) if make is graph else (data.ndata["x"], data)
        out = dgcl.distribute(copy.deepcopy(model))(x, edges)
        return [dgcl.collect(each) for each in out]

    model = Drops()
    (one, sums), (many, same) = dgcl.launch(rank, 1)[0], dgcl.launch(rank, 3)[0]
    for name in sums:
        torch.testing.assert_close(same[name], sums[name], rtol=1e-10, atol=1e-10)
    for name in SIZES:
        assert torch.equal(one[name], many[name])
        assert not torch.equal(one[name], graph()[name].x)

"""Models of several types of vertices and edges run on ranks as they are."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric")
import torch_geometric.nn as pyg
from torch_geometric.data import HeteroData

import dgcl
import dgcl.nn
from dgcl.ranks.context import context

SIZES = {"author": 14, "paper": 23}
TYPES = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "by", "author"),
    ("author", "reads", "paper"),
]


def graph() -> HeteroData:
    gen = torch.Generator().manual_seed(4)
    data = HeteroData()
    for place, (name, size) in enumerate(SIZES.items()):
        data[name].x = torch.randn(size, 3 + place, generator=gen, dtype=torch.float64)
    for edge_type in TYPES:
        ends = [torch.randint(0, SIZES[name], (60,), generator=gen) for name in edge_type[::2]]
        data[edge_type].edge_index = torch.stack(ends)
    return data


class ByType(nn.Module):
    """Layers and norms by type."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.HeteroConv(
            {
                TYPES[0]: pyg.SAGEConv((3, 4), 4),
                TYPES[1]: pyg.GCNConv(4, 4),
                TYPES[2]: pyg.GATConv((4, 3), 4, add_self_loops=False),
                TYPES[3]: pyg.TransformerConv((3, 4), 4),
            }
        )
        self.norm = nn.ModuleDict({name: nn.BatchNorm1d(4) for name in SIZES})

    def forward(self, x, edge_index):
        return {name: self.norm[name](rows) for name, rows in self.conv(x, edge_index).items()}


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv((-1, -1), 4), pyg.SAGEConv((-1, -1), 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def translated() -> nn.Module:
    model = pyg.to_hetero(Plain(), graph().metadata()).double()
    model(graph().x_dict, graph().edge_index_dict)
    return model


def numbers(model, data):
    out = model(data.x_dict, data.edge_index_dict)
    sum((rows * torch.arange(rows.shape[1]).cos()).square().sum() for rows in out.values()).backward()
    return {name: rows.detach() for name, rows in out.items()}


@pytest.mark.parametrize("make", [ByType, translated])
def test_types_on_ranks_are_those_of_one_device(make):
    torch.manual_seed(0)
    model = make().double()
    part = torch.arange(sum(SIZES.values())) % 5 % 3

    def rank():
        data = dgcl.dispatch(graph(), topology="uniform", part=part)
        own = dgcl.distribute(copy.deepcopy(model))
        copies = data.edge_index_dict | {
            each: data[each].edge_index.clone() for each in TYPES if each != TYPES[1]
        }
        again = own(data.x_dict, copies)
        out = numbers(own, data)
        assert all(torch.equal(again[name], out[name]) for name in SIZES)
        dgcl.nn.sync_gradients(own)
        ids = dgcl.current_communicator().layout.owned_ids
        return {n: (ids, rows) for n, rows in out.items()}, [p.grad for p in own.parameters()]

    expected = numbers(model, graph())
    results = dgcl.launch(rank, 3)
    for _, gradients in results:
        for one, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(one, parameter.grad, rtol=1e-10, atol=1e-10)
    first = 0
    for name, size in SIZES.items():
        rows = torch.zeros_like(expected[name])
        for out, _ in results:
            ids, own = out[name]
            rows[ids[(ids >= first) & (ids < first + size)] - first] = own
        torch.testing.assert_close(rows, expected[name], rtol=1e-10, atol=1e-10)
        first += size


def test_dropout_by_type_is_that_of_any_number_of_ranks():
    class Drops(nn.Module):
        def forward(self, x):
            return {name: nn.functional.dropout(rows, 0.5, self.training) for name, rows in x.items()}

    def rank():
        world_size = context.require_control().world_size
        part = torch.arange(sum(SIZES.values())) % 5 % 3 % world_size
        data = dgcl.dispatch(graph(), topology="uniform", part=part)
        out = dgcl.distribute(Drops())(data.x_dict)
        return dgcl.collect(out)

    one, many = dgcl.launch(rank, 1)[0], dgcl.launch(rank, 3)[0]
    for name in SIZES:
        assert torch.equal(one[name], many[name])
        assert not torch.equal(one[name], graph()[name].x)

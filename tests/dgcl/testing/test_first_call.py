"""dgcl.distribute(model, check=True): right models pass, silent errors are named on every rank."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("torch_geometric")
pytest.importorskip("dgl")
import torch_geometric.nn as pyg

import dgcl
import dgcl.nn
from dgcl.rows.edge_sets import EdgeSet
from dgcl.testing import first_call
from tests.dgcl.distributed import pyg_zoo, test_hetero

#: PyG before 2.7 forgets the type of a lazy layer that is copied.
LAZY = -1 if copy.deepcopy(pyg.Linear(-1, 1).double()).weight.dtype == torch.float64 else pyg_zoo.WIDTH


class Model(nn.Module):
    """Lazy, with a norm, dropout of each kind, a number of rows, and what one rank computes."""

    def __init__(self, change=lambda x: x):
        super().__init__()
        self.first, self.norm, self.drop = pyg.GCNConv(LAZY, 4), nn.BatchNorm1d(4), nn.Dropout()
        self.second, self.change = pyg.GATConv(4, 4, dropout=0.5), change

    def forward(self, data, num_nodes):
        x = self.norm(self.first(data.x, data.edge_index)).relu_()
        x = self.second(functional.dropout(x, 0.5, self.training), data.edge_index)
        return {"x": self.change(self.drop(x).view(num_nodes, -1)), "attr": data.attr}


def check(make, call=lambda model, data: model(data, data.num_nodes), of=pyg_zoo.graph, error=None):
    torch.manual_seed(0)
    model = make().double()

    def rank():
        data, own = dgcl.dispatch(of(), topology="uniform"), copy.deepcopy(model)
        with pytest.raises(type(error), match=str(error)) if error else nullcontext():
            call(dgcl.distribute(own, check=True), data)

    dgcl.launch(rank, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_a_right_model_passes_and_nothing_else_changes(dtype, training):
    def call(model, data):
        data.x = data.x.to(dtype)
        with torch.autocast("cpu", enabled=dtype == torch.float32):
            model.to(dtype).train(training)(data, data.num_nodes)
        assert int(model.norm.num_batches_tracked) == training

    check(Model, call)


@pytest.mark.parametrize("name", ["GAT", "GroupAddRev", "PNA", "PairNorm"])
def test_models_of_pyg_pass(name):
    make, names = pyg_zoo.ZOO[name]
    check(make, lambda model, data: model(*(data[each] for each in names.split())))


@pytest.mark.parametrize("name", test_hetero.MODELS)
def test_models_of_several_types_pass(name):
    def call(model, data):
        model(*((data, data.ndata["x"]) if name == "DGL" else (data.x_dict, data.edge_index_dict)))

    make, of = test_hetero.MODELS[name]
    check(make, call, of)


WRONG = AssertionError(r"on 3 ranks than on one device.*1e-08 of .*output 0 differs by up to")


@pytest.mark.parametrize("change", [lambda x: x / (x > 0).sum(), lambda x: x * x[:3].mean()])
def test_silent_errors_are_named_on_every_rank(change):
    check(lambda: Model(change), error=WRONG)


class OfOwnRows(nn.Module):
    def forward(self, x):
        return x / len(x)


def test_the_first_module_that_differs_is_named():
    def make():
        model = Model()
        model.second.lin = nn.Sequential(model.second.lin, OfOwnRows())
        return model

    check(make, error=AssertionError(r"output 0 differs .*; of its modules second\.lin\.1 differs first"))
    check(lambda: Model(OfOwnRows()), error=AssertionError("of its modules change differs first"))
    check(
        lambda: Model(OfOwnRows().forward), error=AssertionError("its modules do not differ: its own forward")
    )


def hooked(x):
    x.register_hook(lambda gradient: gradient / len(gradient))
    return x


@pytest.mark.parametrize("change", [hooked, lambda x: x * len(x) - (x * (len(x) - 1)).detach()])
def test_gradients_that_differ_are_named(change):
    error = AssertionError(r"tolerance 0\.0001 of .*the gradient of second\.bias differs by up to")
    check(lambda: Model(change), error=error)


def test_rows_of_other_ranks_without_gradients_are_noticed(monkeypatch):
    def detached(edges, rows, dim=0):
        rows, halo = edges.comm.expand(rows).split([edges.num_owned, edges.comm.num_halo])
        return torch.cat([rows, halo.detach()])

    monkeypatch.setattr(EdgeSet, "expand", detached)
    error = AssertionError(r"largest value\): the gradient of (?!second.bias)")
    check(Model, error=error)


def test_what_cannot_be_checked_is_refused(monkeypatch):
    def masked(model, data):
        model(data.x, data.edge_index[:, data.attr[:, 0] > 0])

    check(lambda: pyg.GraphSAGE(4, 3, 1), masked, error=ValueError("edge_index as dgcl.dispatch gave it"))
    monkeypatch.setattr(first_call, "LARGEST", 200)
    check(
        Model,
        error=ValueError(r"at most 200 vertices and edges \(got 40 and 170\): check the model on a smaller"),
    )

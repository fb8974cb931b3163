"""Each layer of PyG and DGL, and models of several types, give on ranks what they give on one device."""

import copy
from contextlib import closing

import pytest
import torch

import dgcl
from tests.dgcl.rows import dgl_zoo, hetero, pyg_zoo
from tests.dgcl.rows.variants import built, results
from tests.support.rank_pool import RankPool
from tests.support.rows_harness import differences, doubles, is_refusal, on_threads, plain, seeded
from tests.support.samples import slow

STRATEGIES = ["cover", "tail", "windows:2", "grid:1,3,1", "grid:1,1,3"]
CASES = [
    *((name, zoo, "halo") for zoo in (pyg_zoo, dgl_zoo) for name in sorted(zoo.ZOO)),
    *((name, pyg_zoo, each) for name in ("ARMAConv", "GCN", "GIN", "GATConv", "SAGEConv max") for each in STRATEGIES),
    *((name, dgl_zoo, each) for name in ("GINConv", "GraphConv", "SAGEConv gcn") for each in STRATEGIES),
]  # fmt: skip
SOURCES = "FAConv GATConv HEATConv PNAConv RGATConv TransformerConv", "DotGatConv EGATConv EGNNConv GMMConv"


def of_layer(module, inputs, data):
    """What comes out of a layer, and gradients of a weighted sum of it."""
    if not hasattr(data, "ndata"):
        return results(module, data, inputs)
    graph = data.local_var()
    x = graph.ndata["x"].clone().detach().requires_grad_()
    rows = {**graph.ndata, **graph.edata, "x": x}
    out = module(graph, *(rows[name] for name in inputs.split()))
    out = out if isinstance(out, tuple) else (out,)
    sum((each * torch.arange(each.size(-1)).cos() * each.cos()).sum() for each in out).backward()
    return {"out": plain(out), "x": x.grad, "weights": [weight.grad for weight in module.parameters()]}


def run(task, data):
    return of_layer(dgcl.distribute(copy.deepcopy(task[0])), task[1], data)


@pytest.mark.sample(3, whole=True)
@pytest.mark.parametrize("name, zoo, strategy", CASES)
def test_layers_are_those_of_one_device(name, zoo, strategy):
    make, inputs = zoo.ZOO[name]
    with doubles():
        task, part = (built(make), inputs), torch.arange(zoo.NUM_NODES) % 5 % 3
        options = {"topology": "uniform", "part": part, "strategy": strategy}
        (got,) = on_threads(run, [task], zoo.graph(), 3, **options)
        if name in zoo.REFUSED:
            assert all(is_refusal(each, name, task[0]) for each in got)
        else:
            assert differences(got, plain(of_layer(*task, zoo.graph()))) == []


def train(model, data):
    return hetero.steps(dgcl.distribute(copy.deepcopy(model)), data)


@pytest.mark.sample(3)
@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize("name", hetero.MODELS)
def test_types_are_those_of_one_device(name, world_size):
    make, graph = hetero.MODELS[name]
    model, part = seeded(make).double(), torch.arange(sum(hetero.SIZES.values())) % 5 % 3 % world_size
    if world_size == 4:  # ranks without authors, ranks without venues
        part[-7:] = 3
    (got,) = on_threads(train, [model], graph(), world_size, topology="uniform", part=part)
    assert differences(got, plain(hetero.steps(copy.deepcopy(model), graph()))) == []


def test_a_graph_of_dgl_comes_back():
    def rank():
        back, whole = dgcl.collect(dgcl.dispatch(hetero.graph_of_dgl())), hetero.graph_of_dgl()
        for name in whole.ntypes:
            assert torch.equal(back.nodes[name].data["x"], whole.nodes[name].data["x"])
        for name in whole.canonical_etypes:
            assert torch.equal(back.edges[name].data["edge_index"], whole.edges[name].data["edge_index"])
            assert torch.equal(torch.stack(back.edges(etype=name)), torch.stack(whole.edges(etype=name)))

    dgcl.launch(rank, 3)


def in_processes():
    """Layers with several tensors at sources, where strings hash differently on each rank."""
    torch.set_default_dtype(torch.float64)
    for zoo, names in zip((pyg_zoo, dgl_zoo), SOURCES, strict=True):
        for make, inputs in map(zoo.ZOO.get, names.split()):
            task = built(make), inputs
            got = plain(run(task, dgcl.dispatch(zoo.graph(), topology="uniform")))
            assert differences([got], plain(of_layer(*task, zoo.graph()))) == []
    return hash("x")


@pytest.mark.slow
def test_ranks_exchange_in_one_order():
    with closing(RankPool(3, "spawn")) as pool:
        assert len({*pool.run(in_processes)}) == 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", ["before", slow("after")])
def test_a_compiled_model_is_that_of_one_device(order):
    def compiled(task, data):
        model = copy.deepcopy(task[0])
        if order == "before":
            return results(dgcl.distribute(torch.compile(model, backend="eager")), data, task[1])
        return results(torch.compile(dgcl.distribute(model), backend="eager"), data, task[1])

    make, inputs = pyg_zoo.ZOO["GCN"]
    with doubles():
        task = built(make), inputs
        (got,) = on_threads(compiled, [task], pyg_zoo.graph())
        assert differences(got, plain(results(task[0], pyg_zoo.graph(), inputs))) == []

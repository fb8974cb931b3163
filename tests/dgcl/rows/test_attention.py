"""Attention layers of PyG in a distributed model: which make no row for each edge, and what they give."""

import copy
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")
pytest.importorskip("dgl")
import dgl.nn as dnn
import torch_geometric.nn as pyg

import dgcl
from dgcl.distributed import attention
from dgcl.distributed.rank_graph import RankGraph
from tests.dgcl.rows import dgl_zoo, pyg_zoo, variants
from tests.dgcl.rows.pyg_zoo import WIDTH, graph
from tests.support.rows_harness import differences, doubles, on_threads, plain
from tests.support.samples import named, slow

GAT: dict[str, Any] = {"out_channels": 4, "heads": 3}
EDGES = "x edge_index wide"
LAYERS: dict[str, Any] = {
    "GATConv": (partial(pyg.GATConv, WIDTH, edge_dim=WIDTH, **GAT), EDGES),
    "GATv2Conv": (partial(pyg.GATv2Conv, WIDTH, edge_dim=WIDTH, **GAT), EDGES),
    "TransformerConv": (partial(pyg.TransformerConv, WIDTH, edge_dim=WIDTH, **GAT), EDGES),
}
OF_DGL: dict[str, Any] = {
    "GATv2Conv of DGL": (partial(dnn.GATv2Conv, WIDTH, 3, 2, residual=True, activation=torch.tanh), "x"),
    "pair": (partial(dnn.GATv2Conv, (WIDTH, WIDTH), 3, 2, allow_zero_in_degree=True), "pair"),
}
#: Layers that run as PyG has them where they drop.
AS_THEY_ARE: dict[str, Any] = {
    "returned": (LAYERS["GATv2Conv"][0], f"{EDGES} returned"),
    "pair": (partial(pyg.GATConv, (WIDTH, WIDTH), **GAT), "pair edge_index"),
    "APPNP": (partial(pyg.APPNP, 3, 0.1), "x edge_index"),
    "ARMAConv": (partial(pyg.ARMAConv, WIDTH, 4, 2, 2), "x edge_index"),
}


def run(task: Any, data: Any) -> Any:
    return variants.results(dgcl.distribute(copy.deepcopy(task[0])), data, task[1])


def calls_of(patch: pytest.MonkeyPatch) -> list[Any]:
    """Filled by calls of what makes no row for each edge."""
    called: list[Any] = []
    for place, name in ((attention, "attend"), (RankGraph, "scored")):
        known = getattr(place, name)
        patch.setattr(place, name, lambda *args, known=known: called.append(args) or known(*args))
    return called


def train(layer: Any, inputs: str, data: Any) -> dict[str, Any]:
    """Three steps by results and forces, so by derivatives of the first and second order."""
    of_dgl = hasattr(data, "ndata")
    given = {**data.ndata} if of_dgl else data.to_dict()
    x = given["x"] = given["x"].detach().clone().requires_grad_()
    # A larger eps, as gradients that are 0 (of a key's bias) are noise, which Adam would make large.
    optimizer, outs = torch.optim.Adam(layer.parameters(), lr=0.1, eps=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        given["pair"] = x, x.cos()
        out = layer(*[data] * of_dgl, *(given[name] for name in inputs.split()))
        energy = (out.sin() * out).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        (energy + (force * force.cos()).sum()).backward()
        outs += [out, force, *(each.grad for each in layer.parameters())]
        optimizer.step()
    return {"outs": outs, "x": x.grad, "weights": [*layer.parameters()]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 3, slow(2), slow(4)])
@pytest.mark.parametrize("name", [*LAYERS, *OF_DGL])
def test_layers_train_as_on_one_device(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch):
    (make, inputs), called = {**LAYERS, **OF_DGL}[name], calls_of(monkeypatch)
    whole = dgl_zoo.graph() if name in OF_DGL else graph()
    with doubles():
        layer = variants.built(make)

        def on_rank(layer: Any, data: Any) -> Any:
            return train(dgcl.distribute(copy.deepcopy(layer), check=False), inputs, data)

        (found,) = on_threads(on_rank, [layer], whole, ranks, topology="uniform")
        assert len(called) == 3 * ranks
        assert not differences(found, plain(train(layer, inputs, whole)), 1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*LAYERS, *AS_THEY_ARE])
def test_dropout_is_that_of_any_number_of_ranks(name: str):
    make, inputs = {**LAYERS, **AS_THEY_ARE}[name]
    data = graph()
    data.returned = True
    with doubles():
        layer, found = variants.built(partial(make, dropout=0.4)), []
        for ranks in 1, 3:
            torch.manual_seed(5)
            found += on_threads(run, [(layer, inputs)], data, ranks, topology="uniform")
        torch.manual_seed(5)
        for each in found:
            assert differences(each, found[0][0], 1e-12) == []
        without = plain(variants.results(layer.eval(), data, inputs))
        assert differences(found[0], without)


class Own(pyg.GATConv):
    pass


class OwnOfDGL(dnn.GATv2Conv):
    pass


def explain(layer: Any) -> None:
    layer.explain, layer._edge_mask, layer._apply_sigmoid = True, torch.ones(170), False


def case(layer: Any, why: str, change: Any = None, **named: Any) -> tuple[Any, ...]:
    """A layer, what it prints, what becomes of it, and what it is called with beside rows."""
    return layer, why, change, named


OF_A_PART = "hooks of its parts"
WHOLE = "no row for each edge"


@named(
    "layer, why, change, named",
    {
        "whole": case(pyg.GATConv(WIDTH, 2), WHOLE),
        "subclass": case(Own(WIDTH, 2), ""),
        "returned": case(pyg.GATv2Conv(WIDTH, 2), "", return_attention_weights=True),
        "no rows of edges": case(pyg.GATConv(WIDTH, 2, edge_dim=3), ""),
        "not made yet": case(pyg.GATv2Conv(-1, 2), ""),
        "two kinds": case(pyg.GATv2Conv((WIDTH, WIDTH), 2), "vertices of two kinds"),
        "hook": case(
            pyg.TransformerConv(WIDTH, 2),
            "hooks of messages",
            lambda layer: layer.register_message_forward_hook(print),
        ),
        "part": case(
            pyg.GATv2Conv(WIDTH, 2), OF_A_PART, lambda layer: layer.lin_l.register_forward_pre_hook(print)
        ),
        "explainer": case(pyg.TransformerConv(WIDTH, 2), "an explainer", explain),
        "aggr": case(pyg.GATConv(WIDTH, 2, aggr="max"), "another aggr"),
        "fill": case(pyg.GATConv(WIDTH, 2, edge_dim=1, fill_value="max"), "fill_value='max'"),
        "whole, DGL": case(dnn.GATv2Conv(WIDTH, 2, 1), WHOLE),
        "subclass, DGL": case(OwnOfDGL(WIDTH, 2, 1), ""),
        "returned, DGL": case(dnn.GATv2Conv(WIDTH, 2, 1), "", get_attention=True),
        "part, DGL": case(
            dnn.GATv2Conv(WIDTH, 2, 1), OF_A_PART, lambda layer: layer.leaky_relu.register_forward_hook(print)
        ),
    },
)
def test_what_makes_messages(
    layer: Any, why: str, change: Any, named: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    called = calls_of(monkeypatch)

    def run() -> str:
        zoo = dgl_zoo if isinstance(layer, dnn.GATv2Conv) else pyg_zoo
        data = dgcl.dispatch(zoo.graph(), topology="uniform")
        model = dgcl.distribute(copy.deepcopy(layer).double(), check=False)
        if change is not None:
            change(model)
        model(*([data.x, data.edge_index] if zoo is pyg_zoo else [data, data.ndata["x"]]), **named)
        return repr(model)

    text = dgcl.launch(run, 1)[0]
    assert bool(called) == (why == WHOLE)
    assert why in text

"""Attention layers of PyG in a distributed model: which make no row for each edge, and what they give."""

import copy
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")
import torch_geometric.nn as pyg

import dgcl
from dgcl.distributed import attention
from tests.dgcl.rows import variants
from tests.dgcl.rows.harness import differences, doubles, on_threads, plain
from tests.dgcl.rows.pyg_zoo import WIDTH, graph
from tests.samples import named

GAT: dict[str, Any] = {"out_channels": 4, "heads": 3}
EDGES = "x edge_index wide"
LAYERS: dict[str, Any] = {
    "GATConv": (partial(pyg.GATConv, WIDTH, edge_dim=WIDTH, **GAT), EDGES),
    "GATv2Conv": (partial(pyg.GATv2Conv, WIDTH, edge_dim=WIDTH, **GAT), EDGES),
    "TransformerConv": (partial(pyg.TransformerConv, WIDTH, edge_dim=WIDTH, **GAT), EDGES),
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_layers_give_what_messages_give(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch):
    (make, inputs), called = LAYERS[name], list[Any]()
    attend = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *args: called.append(args) or attend(*args))
    with doubles():
        task = variants.built(make), inputs
        (found,) = on_threads(run, [task], graph(), ranks, topology="uniform")
        assert called
        assert not differences(found, plain(variants.results(task[0], graph(), inputs)), 1e-12)


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


def hooked(layer: Any) -> Any:
    layer.register_message_forward_hook(lambda *args: None)
    return layer


@named(
    "make, named, why",
    {
        "whole": (lambda: pyg.GATConv(WIDTH, 2), {}, None),
        "subclass": (lambda: Own(WIDTH, 2), {}, ""),
        "returned": (lambda: pyg.GATv2Conv(WIDTH, 2), {"return_attention_weights": True}, ""),
        "hook": (lambda: hooked(pyg.TransformerConv(WIDTH, 2)), {}, "hooks of messages"),
        "aggr": (lambda: pyg.GATConv(WIDTH, 2, aggr="max"), {}, "another aggr"),
        "fill": (lambda: pyg.GATConv(WIDTH, 2, edge_dim=1, fill_value="max"), {}, "fill_value='max'"),
    },
)
def test_what_makes_messages(
    make: Any, named: dict[str, Any], why: str | None, monkeypatch: pytest.MonkeyPatch
):
    called: list[Any] = []
    whole = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *args: called.append(args) or whole(*args))

    def run() -> str:
        data = dgcl.dispatch(graph(), topology="uniform")
        model = dgcl.distribute(make().double())
        model(data.x, data.edge_index, **named)
        return repr(model)

    text = dgcl.launch(run, 1)[0]
    assert bool(called) == (why is None)
    assert (why or "no row for each edge" * (why is None)) in text

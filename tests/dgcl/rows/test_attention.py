"""Attention layers of PyG in a distributed model: which make no row for each edge, and what they give."""

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")
import torch_geometric.nn as pyg

import dgcl
from dgcl.distributed import attention
from tests.dgcl.rows.pyg_zoo import WIDTH, graph
from tests.samples import named


def layer_of(name: str, dropout: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(0)
    more = {"edge_dim": 2} if "edges" in name else {}
    return getattr(pyg, name.split()[0])(WIDTH, 4, heads=3, dropout=dropout, **more).double()


def results(layer: Any, called: list[Any]) -> tuple[bool, list[torch.Tensor]]:
    """Whether the layer's function was called, results and gradients."""
    whole = graph()
    whole.attr = torch.randn(
        whole.num_edges, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    data: Any = dgcl.dispatch(whole, topology="uniform")
    model = dgcl.distribute(copy.deepcopy(layer))
    called.clear()
    out = model(data.x, data.edge_index, *[data.attr] * (layer.lin_edge is not None))
    out.flatten(1).cos().sum().backward()
    return bool(called), [dgcl.collect(out.detach()), *(p.grad for p in model.parameters())]


LAYERS = ["GATConv edges", "GATv2Conv edges", "TransformerConv", "TransformerConv edges"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_layers_give_what_messages_give(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch):
    layer, called, found = layer_of(name), list[Any](), []
    attend = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *args: called.append(args) or attend(*args))
    for why in ("", "hooks"):
        with monkeypatch.context() as patch:
            if why:
                patch.setattr(attention, "lacks", lambda layer: "hooks")
            found.append(dgcl.launch(lambda: results(layer, called), ranks)[0])
    assert [way for way, _ in found] == [True, False]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_dropout_is_that_of_any_number_of_ranks(name: str):
    layer, whole = layer_of(name, 0.5), layer_of(name)
    one, many = (dgcl.launch(lambda: results(layer, []), ranks)[0][1] for ranks in (1, 3))
    (without,) = dgcl.launch(lambda: results(whole, []), 1)
    assert not torch.allclose(one[0], without[1][0])
    for each, other in zip(one, many, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-10, atol=1e-10)


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

"""Attention layers of PyG in a distributed model: which make no row for each edge, and what they give."""

from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")
import torch_geometric.nn as pyg

import dgcl
from dgcl.distributed import attention
from tests.dgcl.distributed.pyg_zoo import WIDTH, graph
from tests.samples import named


def layer_of(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    more = {"edge_dim": 2} if "edges" in name else {}
    return getattr(pyg, name.split()[0])(WIDTH, 4, heads=3, dropout=0.5, **more).double()


def both_ways(layer: Any, monkeypatch: Any) -> list[tuple[bool, list[torch.Tensor]]]:
    """With the layer's function and by messages, which way it was, results and gradients."""
    whole, found, called = graph(), [], []
    whole.attr = torch.randn(
        whole.num_edges, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    data: Any = dgcl.dispatch(whole, topology="uniform")
    arguments = [data.x, data.edge_index, *[data.attr] * (layer.lin_edge is not None)]
    comm, model = dgcl.current_communicator(), dgcl.distribute(layer)
    for way in (attention.attend, None):
        comm.load_state_dict({"dropout_calls": 0})
        with monkeypatch.context() as patch:
            patch.setattr(attention, "attend", lambda *args: called.append(args) or way(*args))  # noqa: B023
            if way is None:
                patch.setattr(attention, "lacks", lambda layer: "hooks")
            model.zero_grad()
            out = model(*arguments)
            out.flatten(1).cos().sum().backward()
        found.append((bool(called), [out.detach(), *(p.grad for p in model.parameters())]))
        called.clear()
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "GATConv edges",
        "GATv2Conv edges",
        "TransformerConv",
        "TransformerConv edges",
    ],
)
def test_layers_give_what_messages_give(name: str, monkeypatch: pytest.MonkeyPatch):
    """With the same elements dropped."""
    for (quick, found), (slow, expected) in dgcl.launch(lambda: both_ways(layer_of(name), monkeypatch), 1):
        assert (quick, slow) == (True, False)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


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

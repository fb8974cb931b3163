"""Attention layers give what PyG's layers of the same names give on one device, with the same parameters."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.ranks.context import context
from tests.support.awkward import CASES
from tests.support.samples import named, slow

pyg = pytest.importorskip("torch_geometric.nn")

CASE = {case.name: case for case in CASES}
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gat": ("GATConv", {"residual": True}),
    "gat-edges": ("GATConv", {"edge_dim": 3, "concat": False}),
    "gat-edges-as-they-are": ("GATConv", {"edge_dim": 3, "add_self_loops": False, "bias": False}),
    "gatv2": ("GATv2Conv", {"add_self_loops": False, "negative_slope": 0.0}),
    "gatv2-edges": ("GATv2Conv", {"edge_dim": 3, "fill_value": "add", "concat": False, "residual": True}),
    "gatv2-shared": ("GATv2Conv", {"share_weights": True, "bias": False, "edge_dim": 3, "fill_value": 0.5}),
    "transformer": ("TransformerConv", {"beta": True}),
    "transformer-edges": ("TransformerConv", {"edge_dim": 3, "beta": True, "concat": False}),
    "gat-filled": (
        "GATConv",
        {"edge_dim": 3, "fill_value": torch.tensor([1.0, 2.0, 3.0]), "negative_slope": 1.5},
    ),
    "transformer-plain": ("TransformerConv", {"root_weight": False, "bias": False}),
}


def rows(number: int, width: int, seed: int) -> Tensor:
    return torch.randn(number, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@functools.cache
def theirs(name: str) -> Any:
    torch.manual_seed(3)
    kind, options = LAYERS[name]
    return getattr(pyg, kind)(5, 4, heads=2, **options).double()


def ours(name: str) -> Any:
    kind, options = LAYERS[name]
    return getattr(dgcl.nn, kind)(5, 4, heads=2, **options).double()


def three_steps(
    layer: nn.Module, x: Tensor, wanted: Tensor, *edges: Any, sync: Any = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Results of three steps of Adam and the gradient of the rows; gradients of the first step by name."""
    optimizer, outs, grads = torch.optim.Adam(layer.parameters(), lr=0.1), [], []
    for _ in range(3):
        optimizer.zero_grad()
        out = layer(x, *edges)
        (out * wanted[:, : out.shape[1]]).sum().backward()
        if sync is not None:
            sync(layer)
        outs.append(out.detach())
        grads = grads or [p.grad.clone() for _, p in sorted(layer.named_parameters()) if p.grad is not None]
        optimizer.step()
    return [*outs, x.grad], grads


def of_edges(name: str, number: int) -> Tensor | None:
    return rows(number, 3, 7) if LAYERS[name][1].get("edge_dim") else None


def on_rank(states: dict[str, Any], case_name: str) -> list[Any]:
    case = CASE[case_name]
    comm = dgcl.build_comm_info(case.graph, "uniform")
    wanted, found = comm.dispatch_features(rows(case.num_nodes, 8, 6)), []
    for name, state in states.items():
        layer, attr = ours(name), of_edges(name, case.edges.shape[1])
        layer.load_state_dict(state)
        attr = attr if attr is None else comm.dispatch_edges(attr)
        x = comm.dispatch_features(rows(case.num_nodes, 5, 5)).requires_grad_()
        of_rows, grads = three_steps(layer, x, wanted, attr, sync=dgcl.nn.sync_gradients)
        found.append(([comm.collect(each, None) for each in of_rows], grads))
    return found


@pytest.mark.filterwarnings("ignore::dgcl.InexactWarning")
@pytest.mark.parametrize("world_size", [1, 3, slow(2), slow(4)])
@pytest.mark.parametrize(
    "case_name", ["self-loops", *map(slow, ("multi-edges", "isolated-vertices", "directed"))]
)
def test_layers_train_as_on_one_device(world_size: int, case_name: str):
    case, expected = CASE[case_name], {}
    states = {name: copy.deepcopy(theirs(name).state_dict()) for name in LAYERS}
    for name in LAYERS:
        x, attr = rows(case.num_nodes, 5, 5).requires_grad_(), of_edges(name, case.edges.shape[1])
        wanted, ends = rows(case.num_nodes, 8, 6), torch.from_numpy(case.edges)
        expected[name] = three_steps(theirs(name), x, wanted, ends, attr)
        theirs(name).load_state_dict(ours(name).state_dict())  # of the same names, both ways
        theirs(name).load_state_dict(states[name])
    for results in dgcl.launch(on_rank, world_size, states, case_name):
        torch.testing.assert_close(dict(zip(LAYERS, results, strict=True)), expected, rtol=1e-12, atol=1e-12)


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch):
    """What a test begins on this rank ends with it."""
    monkeypatch.setattr(context, "control", None)
    monkeypatch.setattr(context, "communicator", None)


def on_one_rank(edges: Any = ((0, 1), (1, 0))) -> dgcl.Communicator:
    dgcl.init()
    return dgcl.build_comm_info(torch.as_tensor(edges), "uniform")


def dropping(name: str) -> nn.Module:
    layer: nn.Module = getattr(dgcl.nn, name)(5, 4, heads=3, dropout=0.5).double()
    with torch.no_grad():
        for number, each in enumerate(layer.parameters()):
            each.copy_(rows(1, each.numel(), number).view_as(each))
    return layer


class InChunk(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        return self.layer(src, graph=g)


def dropped(name: str) -> list[list[Tensor]]:
    case = CASE["directed"]
    comm = dgcl.build_comm_info(case.graph, "uniform")
    off, found = dgcl.Offload(comm, chunks=3, dtype=torch.float64), []
    layer = dropping(name)
    for run in (layer, lambda x: off.layer(InChunk(layer), x)):
        comm.load_state_dict({"dropout_calls": 0})
        x = comm.dispatch_features(rows(case.num_nodes, 5, 5)).requires_grad_()
        out = run(x)
        (out * rows(case.num_nodes, 12, 6)[comm.owned_ids]).sum().backward()
        found.append([comm.collect(each, None) for each in (out.detach(), x.grad)])
    return found


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_dropout_is_that_of_any_number_of_ranks_and_chunks(name: str):
    one, *others = (found for size in (1, 3) for found in dgcl.launch(dropped, size, name)[0])
    for each in others:
        torch.testing.assert_close(each, one, rtol=1e-11, atol=1e-11)


@named(
    "make, message",
    {
        "option": (lambda: dgcl.nn.GATConv(4, 4, dropuot=0.5), "an option of GATConv must be one of"),
        "heads": (lambda: dgcl.nn.GATv2Conv(4, 4, heads=0), "heads must be"),
        "dropout": (lambda: dgcl.nn.TransformerConv(4, 4, dropout=2), "p must be a probability"),
        "loops": (lambda: dgcl.nn.GATConv(4, 4, fill_value="max"), "fill_value must be one of"),
        "two kinds": (lambda: dgcl.nn.GATConv((4, 3), 4), "in_channels must be an integer"),
        "number": (
            lambda: dgcl.nn.GATConv(4, 4, edge_dim=1)(torch.ones(2, 4), torch.ones(3, 1), on_one_rank()),
            "edge_attr must have 2 rows, one for each local edge",
        ),
        "edges": (
            lambda: dgcl.nn.GATConv(4, 4)(torch.ones(3, 4), torch.ones(3, 1)),
            "edge_attr must be given",
        ),
    },
)
def test_refuses(make: Any, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    "kind, scale", [("GATConv", "att_src"), ("GATv2Conv", "att"), ("TransformerConv", "lin_query.weight")]
)
def test_scores_of_thousands_err_as_those_of_torch(kind: str, scale: str):
    """In float32, in the root mean square of results and gradients, at most twice as much: a score is rounded, too."""
    edges = torch.randint(0, 100, (2, 1500), generator=torch.Generator().manual_seed(1))
    edges[1, :400] = 0
    comm, x, layer = on_one_rank(edges), rows(100, 16, 5).float(), getattr(pyg, kind)(16, 16, heads=4)
    own = getattr(dgcl.nn, kind)(16, 16, heads=4)
    with torch.no_grad():
        for number, each in enumerate(layer.parameters()):
            each.copy_(rows(each.numel(), 1, number).view_as(each) / 3)
        layer.get_parameter(scale).mul_(500)
    own.load_state_dict(layer.state_dict())
    found = []
    for each, *args in (
        (own, x, None, comm),
        (copy.deepcopy(layer), x, edges),
        (layer.double(), x.double(), edges),
    ):
        given = args.pop(0).requires_grad_()
        outs, grads = three_steps(each, given, rows(100, 64, 6).to(given.dtype), *args)
        found.append([outs[0], *grads])
    for of_own, of_torch, exact in zip(*found, strict=True):
        assert (of_own - exact).square().mean() <= 4 * (of_torch - exact).square().mean()


def test_a_vertex_whose_edges_are_all_dropped_gets_nothing():
    layer = dgcl.nn.GATv2Conv(4, 4, heads=2, dropout=1.0, bias=False)
    assert (layer(torch.ones(2, 4), comm=on_one_rank()) == 0).all()

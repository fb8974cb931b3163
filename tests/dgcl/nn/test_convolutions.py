"""Convolutions give what PyG's layers of the same names give on one device, with the same parameters.

Training: logits, losses and parameters after several Adam steps at 1e-10, for every placement of edges, both orders,
and constant inputs, for which sums are counted.
"""

import functools
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.aggregation.operation import Operation
from tests.dgcl.awkward import CASES

pyg = pytest.importorskip("torch_geometric.nn")

CASE_BY_NAME = {case.name: case for case in CASES}
GRAPHS = ["directed", "self-loops", "multi-edges", "isolated-vertices", "fewer-vertices-than-ranks"]
WIDTHS = [5, 8, 3]
STEPS = 3
EXACT = 1e-10


def perceptron(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, out), nn.Tanh(), nn.Linear(out, out))


OURS: dict[str, Any] = {
    "gcn": dgcl.nn.GCNConv,
    "gcn-without-loops": functools.partial(dgcl.nn.GCNConv, add_self_loops=False),
    "gcn-plain": functools.partial(dgcl.nn.GCNConv, normalize=False, bias=False),
    "sage": dgcl.nn.SAGEConv,
    "sage-max": functools.partial(dgcl.nn.SAGEConv, aggr="max"),
    "sage-sum": functools.partial(dgcl.nn.SAGEConv, aggr="sum", root_weight=False),
    "gin": lambda width, out, **_: dgcl.nn.GINConv(perceptron(width, out), eps=0.3, train_eps=True),
}
THEIRS: dict[str, Any] = {
    "gcn": pyg.GCNConv,
    "gcn-without-loops": functools.partial(pyg.GCNConv, add_self_loops=False),
    "gcn-plain": functools.partial(pyg.GCNConv, normalize=False, bias=False),
    "sage": pyg.SAGEConv,
    "sage-max": functools.partial(pyg.SAGEConv, aggr="max"),
    "sage-sum": functools.partial(pyg.SAGEConv, aggr="sum", root_weight=False),
    "gin": lambda width, out: pyg.GINConv(perceptron(width, out), eps=0.3, train_eps=True),
}


def features(num_rows: int, width: int = WIDTHS[0]) -> Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@functools.cache
def initial(layer: str) -> dict[str, Tensor]:
    """Parameters of PyG's layers, as a checkpoint has them."""
    torch.manual_seed(3)
    return nn.ModuleList(THEIRS[layer](*pair) for pair in itertools.pairwise(WIDTHS)).double().state_dict()


Run = tuple[list[float], Tensor, dict[str, Tensor]]


@functools.cache
def reference(layer: str, name: str) -> Run:
    """Losses, last logits and parameters on one device."""
    case = CASE_BY_NAME[name]
    model = nn.ModuleList(THEIRS[layer](*pair) for pair in itertools.pairwise(WIDTHS)).double()
    model.load_state_dict(initial(layer))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    x, labels = features(case.num_nodes), torch.arange(case.num_nodes) % WIDTHS[-1]
    train, edges, losses = torch.from_numpy(case.train), torch.from_numpy(case.edges), []
    for _ in range(STEPS):
        logits = model[1](torch.relu(model[0](x, edges)), edges)
        loss = F.cross_entropy(logits[train], labels[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, logits.detach(), {key: value.detach() for key, value in model.state_dict().items()}


def train(
    layer: str, name: str, world_size: int, edges: str, order: str, constant: bool
) -> tuple[Run, list[int]]:
    case = CASE_BY_NAME[name]
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(world_size), strategy=edges)
    model = nn.ModuleList(OURS[layer](*pair, order=order) for pair in itertools.pairwise(WIDTHS)).double()
    model.load_state_dict(initial(layer))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    x = comm.dispatch_features(features(case.num_nodes))
    labels = comm.owned_ids % WIDTHS[-1]
    mask = torch.from_numpy(case.train)[comm.owned_ids]
    given = comm.aggregator().constant(x) if constant else x
    losses, sums = [], []
    for _ in range(STEPS):
        before = COUNT.get(comm.rank, 0)
        logits = model[1](torch.relu(model[0](given)))
        loss = dgcl.nn.loss(F.cross_entropy)(logits, labels, mask)
        optimizer.zero_grad()
        loss.backward()
        dgcl.nn.sync_gradients(model)
        optimizer.step()
        losses.append(loss.item())
        sums.append(COUNT.get(comm.rank, 0) - before)
    whole = comm.collect(logits.detach(), None)
    return (losses, whole, {key: value.detach() for key, value in model.state_dict().items()}), sums


COUNT: dict[int, int] = {}


def assert_equal_runs(found: Run, wanted: Run):
    assert found[0] == pytest.approx(wanted[0], rel=EXACT)
    torch.testing.assert_close(found[1], wanted[1], rtol=EXACT, atol=EXACT)
    assert found[2].keys() == wanted[2].keys()
    for key, value in wanted[2].items():
        torch.testing.assert_close(found[2][key], value, rtol=EXACT, atol=EXACT)


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    "order", ["auto", "multiply"]
)  # widths rise and fall: auto aggregates first, then last
@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("edges", ["halo", "tail", "cover"])
@pytest.mark.parametrize(
    "name", ["directed", "self-loops", "multi-edges", "isolated-vertices", "fewer-vertices-than-ranks"]
)
@pytest.mark.parametrize("layer", [layer for layer in OURS if layer != "sage-max"])
def test_training_is_that_of_one_device(layer, name, edges, world_size, order):
    wanted = reference(layer, name)
    for found, _ in dgcl.launch(train, world_size, layer, name, world_size, edges, order, False):
        assert_equal_runs(found, wanted)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("name", ["directed", "isolated-vertices"])
def test_training_with_maxima_is_that_of_one_device(name, world_size):
    """Features are continuous, so no two elements are equal."""
    wanted = reference("sage-max", name)
    for found, _ in dgcl.launch(train, world_size, "sage-max", name, world_size, "halo", "auto", False):
        assert_equal_runs(found, wanted)


@pytest.mark.parametrize("edges", ["halo", "cover"])
@pytest.mark.parametrize("layer", ["gcn", "sage", "gin"])
def test_constant_inputs_are_summed_once(layer, edges, monkeypatch):
    """Of two layers the second alone is summed, once forward and once backward: 2 (L - 1) sums in a step."""
    run = Operation.run

    def counted(self: Operation, x: Tensor, transport: Any) -> Any:
        rank = transport_rank(transport)
        COUNT[rank] = COUNT.get(rank, 0) + 1
        return run(self, x, transport)

    monkeypatch.setattr(Operation, "run", counted)
    wanted = reference(layer, "directed")
    for found, sums in dgcl.launch(train, 3, layer, "directed", 3, edges, "auto", True):
        assert_equal_runs(found, wanted)
        assert sums == [3, 2, 2]


def transport_rank(transport: Any) -> int:
    return int(transport.runtime.rank)


def test_a_product_before_maxima_is_refused():
    with pytest.raises(ValueError, match="order must be 'auto' or 'aggregate' with aggr='max'"):
        dgcl.nn.SAGEConv(2, 2, aggr="max", order="multiply")


def evaluate_first(layer: str, edges: str) -> tuple[Tensor, Tensor]:
    """Gradients of a layer's parameters, after evaluations and without."""
    case = CASE_BY_NAME["self-loops"]
    found = []
    for first in (True, False):
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(2), strategy=edges)
        conv = OURS[layer](*WIDTHS[:2]).double()
        conv.load_state_dict({name[2:]: value for name, value in initial(layer).items() if name[0] == "0"})
        x = comm.dispatch_features(features(case.num_nodes))
        constant = comm.aggregator().constant(x)
        if first:
            with torch.inference_mode():
                conv(constant)
                conv(x)
        (conv(constant).square().sum() + conv(x.requires_grad_()).square().sum()).backward()
        gradients = [parameter.grad.flatten() for parameter in conv.parameters()]
        found.append(torch.cat([*gradients, x.grad.flatten()]))
    return found[0], found[1]


@pytest.mark.parametrize("edges", ["halo", "cover"])
@pytest.mark.parametrize("layer", ["gcn", "sage", "gin"])
def test_training_follows_evaluation_in_inference_mode(layer, edges):
    """What was aggregated and normalised meanwhile is kept, and goes into backwards."""
    initial(layer)  # here, and not in two threads that seed torch
    for after, without in dgcl.launch(evaluate_first, 2, layer, edges):
        assert after.equal(without)

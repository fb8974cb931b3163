"""What :mod:`tests.dgcl.nn.test_convolutions` shares with other tests."""

import functools
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from tests.support.awkward import CASES

pyg = pytest.importorskip("torch_geometric.nn")
CASE_BY_NAME = {case.name: case for case in CASES}
GRAPHS = ["directed", "self-loops", "multi-edges", "isolated-vertices", "fewer-vertices-than-ranks"]
WIDTHS = [5, 8, 3]
STEPS = 3
EXACT = 1e-10


def perceptron(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, out), nn.Tanh(), nn.Linear(out, out))


def kinds(library: Any) -> dict[str, Any]:
    """The layers of a library, which have the same parameters in both."""
    return {
        "gcn": library.GCNConv,
        "gcn-without-loops": functools.partial(library.GCNConv, add_self_loops=False),
        "gcn-plain": functools.partial(library.GCNConv, normalize=False, bias=False),
        "sage": library.SAGEConv,
        "sage-max": functools.partial(library.SAGEConv, aggr="max"),
        "sage-sum": functools.partial(library.SAGEConv, aggr="sum", root_weight=False),
        "gin": lambda width, out, **_: library.GINConv(perceptron(width, out), eps=0.3, train_eps=True),
    }


OURS, THEIRS = kinds(dgcl.nn), kinds(pyg)


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

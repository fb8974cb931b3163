"""A stack in place gives what its layers give one by one, and holds no more than it says.

=============================  =====================================================================================
what                           judged by
=============================  =====================================================================================
values, gradients              autograd through GCNConv, activation and Dropout layers with the same parameters
sums in a step                 counted: 2 (L - 1) with constant inputs
memory                         bytes of the buffers and the pool against the prediction, and that against the
                               published formula
=============================  =====================================================================================
"""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.aggregation.operation import Operation
from dgcl.aggregation.windowed import WindowedOperation
from dgcl.nn import in_place
from tests.support.awkward import CASES
from tests.support.ranks import said

CASE_BY_NAME = {case.name: case for case in CASES}
WIDTHS = [(64, 16, 8), (16, 64, 8), (16, 64, 64, 128), (5, 3)]
EXACT = 1e-10
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.5},
    "leaky": {"activation": nn.LeakyReLU(0.2), "dropout": 0.3},
    "without norm": {"normalize": False, "bias": False},
    "without loops": {"add_self_loops": False, "activation": "leaky_relu"},
    "multiply first": {"order": "multiply"},
    "aggregate first": {"order": "aggregate", "dropout": 1.0},
}


class OneByOne(nn.Module):
    """The same model, of layers that autograd differentiates."""

    def __init__(self, stack: dgcl.nn.InPlaceGCN):
        super().__init__()
        self.convs = copy.deepcopy(stack.convs)
        self.slope = stack.slope
        self.dropout = dgcl.nn.Dropout(stack.p, seed=stack.seed)

    def forward(self, x: Any) -> Tensor:
        for conv in self.convs[:-1]:
            x = self.dropout(F.leaky_relu(conv(x), self.slope))
        out: Tensor = self.convs[-1](x)
        return out


def features(num_rows: int, width: int, seed: int = 5) -> Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def connect(name: str, world_size: int, strategy: str) -> dgcl.Communicator:
    case = CASE_BY_NAME[name]
    strategy = f"windows:{min(3, case.num_nodes)}" if strategy == "windows" else strategy
    return dgcl.build_comm_info(case.graph, "uniform", part=case.part(world_size), strategy=strategy)


def fill(model: nn.Module):
    """Parameters that are the same on every rank: ranks are threads, and share torch's generator."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0, 0.5, generator=generator)


def gradients(
    comm: dgcl.Communicator, model: nn.Module, x: Any, between: nn.Module, weight: Tensor
) -> list[Tensor]:
    """Of a loss after a module behind the model: logits, and gradients of all parameters and inputs.

    Those of parameters summed over ranks: which rank has which part of them depends on whether rows are multiplied
    before they travel, or after.
    """
    model.zero_grad()
    logits = model(x)
    (between(logits) * weight).sum().backward()
    summed = [comm.all_reduce_sum(parameter.grad) for parameter in model.parameters()]  # type: ignore[arg-type]
    found = [logits.detach(), *summed]
    return [*found, x.grad] if isinstance(x, Tensor) and x.requires_grad else found


def compare(
    name: str, world_size: int, edges: str, widths: tuple[int, ...], options: str, inputs: str
) -> list[tuple[Tensor, Tensor]]:
    """Pairs that must be equal, of two steps: the second one finds the buffers used."""
    comm = connect(name, world_size, edges)
    case = CASE_BY_NAME[name]
    stack = dgcl.nn.InPlaceGCN(widths, **OPTIONS[options]).double()
    fill(stack)
    ours = OneByOne(stack)
    with torch.inference_mode():  # buffers of a first call in this mode are those of training too
        stack(comm.dispatch_features(features(case.num_nodes, widths[0])))
    pairs = []
    for step in range(2):
        rows = comm.dispatch_features(features(case.num_nodes, widths[0], seed=step))
        weight = comm.dispatch_features(features(case.num_nodes, widths[-1], seed=9))
        found = []
        for model in (stack, ours):
            x: Any = rows.clone().requires_grad_(inputs == "learned")
            if inputs == "constant":
                x = comm.aggregator().constant(rows)
            comm._dropout_calls = 100 * step  # both drop the same elements
            found.append(gradients(comm, model, x, nn.Softmax(1), weight))
        pairs += list(zip(*found, strict=True))
    return pairs


def assert_same(pairs: list[tuple[Tensor, Tensor]]):
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=EXACT, atol=EXACT)


@pytest.mark.sample(12)
@pytest.mark.parametrize("inputs", ["given", "learned", "constant"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("edges", ["halo", "cover", "windows"])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_gradients_are_those_of_layers_one_by_one(widths, edges, options, inputs):
    for pairs in dgcl.launch(compare, 3, "self-loops", 3, edges, widths, options, inputs):
        assert_same(pairs)


@pytest.mark.sample(6)
@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("edges", ["halo", "windows"])
@pytest.mark.parametrize("name", CASE_BY_NAME)
def test_awkward_graphs(name, edges, world_size):
    for pairs in dgcl.launch(compare, world_size, name, world_size, edges, (5, 7, 3), "dropout", "learned"):
        assert_same(pairs)


@pytest.mark.parametrize("options", ["leaky", "dropout"])
@pytest.mark.parametrize("grid", ["grid:2,1,2", "grid:2,2,1", "grid:1,2,2"])
def test_on_a_grid(grid, options):
    """Slices divide two of the widths, and not the third."""
    for pairs in dgcl.launch(compare, 4, "multi-edges", 4, grid, (6, 5, 8, 4), options, "learned"):
        assert_same(pairs)


def count_sums(counts: dict[int, int], constant: bool, edges: str) -> list[int]:
    comm = connect("directed", 3, edges)
    stack = dgcl.nn.InPlaceGCN([6, 5, 7, 4], dropout=0.5).double()
    rows = comm.dispatch_features(features(26, 6))
    x = comm.aggregator().constant(rows) if constant else rows
    found = []
    for _ in range(3):
        before = counts.get(comm.rank, 0)
        stack(x).sum().backward()
        found.append(counts.get(comm.rank, 0) - before)
    return found


@pytest.mark.parametrize("edges", ["halo", "windows"])
@pytest.mark.parametrize("constant, sums", [(True, [5, 4, 4]), (False, [6, 6, 6])])
def test_sums_in_a_step(constant, sums, edges, monkeypatch):
    """Of three layers on constant inputs 2 (L - 1), once one more; a step on others makes 2 L."""
    counts: dict[int, int] = {}

    def counted(run: Any) -> Any:
        def call(self: Any, x: Tensor, transport: Any, **kinds: Any) -> Any:
            rank = int(transport.runtime.rank)
            counts[rank] = counts.get(rank, 0) + 1
            return run(self, x, transport, **kinds)

        return call

    for kind in (Operation, WindowedOperation):
        monkeypatch.setattr(kind, "run", counted(kind.run))
    for found in dgcl.launch(count_sums, 3, counts, constant, edges):
        assert found == sums


def hold(windows: int, steps: int = 20) -> tuple[list[tuple[int, int, int]], int]:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 6000, (2, 80_000), generator=generator)
    comm = dgcl.build_comm_info(edges, "uniform", partition="random", strategy=f"windows:{windows}")
    channels = [96, 192, 256, 128]
    stack = dgcl.nn.InPlaceGCN(channels, dropout=0.5)
    x = comm.aggregator().constant(torch.ones(comm.num_owned, channels[0]))
    held = []
    for _ in range(steps):
        stack(x).sum().backward()
        kept = in_place._stacks[stack][comm]
        pool: int = comm.transport.runtime.pool.bytes_allocated  # type: ignore[attr-defined]
        num_bytes = sum(rows.nbytes for rows in (*kept.layers, kept._product))
        held.append((num_bytes, pool, kept.layers[0].data_ptr()))
    return held[1:], comm.num_owned


def change_dropout() -> tuple[Tensor, Tensor]:
    """Gradients, without and with another p set between forward and backward, as a schedule may."""
    comm = connect("directed", 1, "halo")
    stack = dgcl.nn.InPlaceGCN((3, 8, 2), dropout=0.5).double()
    rows, found = comm.dispatch_features(features(26, 3)), []
    for between in (0.5, 0.1):
        stack.p, comm._dropout_calls = 0.5, 0
        stack.zero_grad()
        out = stack(rows)
        stack.p = between
        out.sum().backward()
        found.append(stack.convs[0].lin.weight.grad.clone())
    return found[0], found[1]


def test_a_backward_drops_what_its_forward_dropped():
    [(without, with_change)] = dgcl.launch(change_dropout, 1)
    assert without.any()
    assert torch.equal(without, with_change)


def test_memory_is_taken_once_and_no_more_than_was_published():
    """The pool has one piece more, of a megabyte, its least: normalisation exchanged its scales in it."""
    for held, n in dgcl.launch(hold, 3, 4):
        assert len(set(held)) == 1
        kept, pool, _ = held[0]
        # MG-GCN: 4 (n / P) [d_0 + sum max(d_{l-1}, d_l) + 3 max min(d_{l-1}, d_l)], layers that sum by G with d_out.
        published = 4 * n * (96 + (192 + 256 + 256) + 3 * 256)
        assert 4 * n * (96 + 128) + kept + pool - (1 << 20) <= published


def misuse() -> list[str]:
    comm = connect("directed", 2, "halo")
    stack = dgcl.nn.InPlaceGCN([3, 4, 2]).double()
    x = comm.dispatch_features(features(26, 3))

    def twice():
        loss = stack(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    def too_late():
        loss = stack(x).sum()
        with torch.no_grad():
            stack(x)
        loss.backward()

    def changed():
        loss = stack(x).sum()
        with torch.no_grad():
            stack.convs[1].lin.weight.add_(1)
        loss.backward()

    calls = [
        twice,
        too_late,
        changed,
        lambda: stack(x[:, :2]),
        lambda: stack(x.float()),
        lambda: stack(x[1:]),
        lambda: dgcl.nn.InPlaceGCN([3, 2], activation=nn.ELU()),
        lambda: dgcl.nn.InPlaceGCN([3, 2], activation=nn.LeakyReLU(-0.1)),
        lambda: dgcl.nn.InPlaceGCN([3]),
        lambda: dgcl.nn.InPlaceGCN(3),  # type: ignore[arg-type]
        lambda: dgcl.nn.InPlaceGCN([3, -1, 2]),
        lambda: dgcl.nn.InPlaceGCN([3, 2], dropout=1.5),
    ]
    texts = [said(call) for call in calls]
    first = stack(x)
    kept = first.clone()
    stack(x + 1)
    return [*texts, "kept" if torch.equal(first, kept) else "written over"]


def test_what_cannot_be_is_refused():
    for texts in dgcl.launch(misuse, 2):
        for text, wanted in zip(
            texts,
            (
                "InPlaceGCN: another forward or backward of this stack",
                "InPlaceGCN: another forward or backward of this stack",
                "one of the variables needed for gradient computation has been modified",
                "x must have shape",
                "x must be of the parameters' type",
                "",
                "activation must be 'relu', 'leaky_relu' or torch.nn.LeakyReLU(slope >= 0)",
                "activation must be",
                "channels must be two widths or more",
                "channels must be two widths or more",
                "channels must be two widths or more",
                "p must be a probability",
                "kept",
            ),
            strict=True,
        ):
            assert text.startswith(wanted)
            assert text != "nothing"


def forget() -> bool:
    """Whether a communicator is freed that a stack was used on."""
    import gc
    import weakref

    comm = connect("directed", 1, "windows")
    stack = dgcl.nn.InPlaceGCN([3, 4, 2]).double()
    stack(comm.dispatch_features(features(26, 3))).sum().backward()
    twin = copy.deepcopy(stack)
    assert twin.state_dict().keys() == stack.state_dict().keys()
    there = weakref.ref(comm)
    dgcl.ranks.context.context.communicator = None
    del comm
    gc.collect()
    return there() is None


def test_a_stack_keeps_no_communicator():
    assert dgcl.launch(forget, 1) == [True]

"""A compiled model computes what the eager one does: one graph, dropout and sums over edges included."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from tests.support.awkward import CASES


class Model(nn.Module):
    """Attention between two exchanges, with dropout."""

    def __init__(self, graph):
        super().__init__()
        self.graph = graph
        self.first, self.second, self.scores = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 1)
        self.drop = dgcl.nn.Dropout(0.3)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.relu(self.first(self.graph.mean(dgcl.graph_allgather(x)))))
        rows = dgcl.graph_allgather(h)
        shares = self.graph.softmax(self.graph.at_sources(self.scores(rows).squeeze(1)))
        return self.second(self.graph.sum(rows, shares))


@pytest.mark.slow
def test_one_graph_with_the_numbers_of_the_eager_model():
    case = CASES[2]

    def rank(compiled: bool) -> list[Tensor]:
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(1))
        model = Model(comm.local_graph("csr")).double()
        run = torch.compile(model, fullgraph=True) if compiled else model
        x = torch.randn(case.num_nodes, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        found = []
        for _ in range(3):  # each with a mask of its own
            model.zero_grad()
            logits = run(x)
            logits.square().sum().backward()
            found += [logits.detach(), *(p.grad.clone() for p in model.parameters())]
        return found

    (expected,), (found,) = (dgcl.launch(rank, 1, compiled) for compiled in (False, True))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def compiled_layer(aggr: str) -> bool:
    """The layer's first call, which connects ranks, is a compiled one."""
    case = CASES[2]
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(2), strategy="cover")
    conv = dgcl.nn.SAGEConv(4, 3, aggr=aggr)  # type: ignore[arg-type]
    x = comm.dispatch_features(torch.linspace(-1, 1, 4 * case.num_nodes).view(-1, 4))
    return torch.equal(torch.compile(conv, backend="eager")(x), conv(x))


@pytest.mark.slow
@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_layers_that_connect_ranks_in_a_compiled_call(aggr, rank_pool):
    assert all(rank_pool(2).run(compiled_layer, aggr))


def collectives() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Every public collective of tensors, with a result of at least one element."""
    batch = dgcl.nn.BatchNorm(3, track_running_stats=False).double()
    return {
        "batch-norm": lambda x, labels: batch(x),
        "global-sum": lambda x, labels: dgcl.nn.global_sum(x.sum(0)) * x,
        "global-sum-one-column": lambda x, labels: dgcl.nn.global_sum(x[:, :1].sum(0)),
        "cross-entropy": lambda x, labels: dgcl.nn.loss(F.cross_entropy)(x, labels, labels > 0),
        "nll": lambda x, labels: dgcl.nn.loss(F.nll_loss, reduction="sum")(x.log_softmax(1), labels),
        "bce": lambda x, labels: dgcl.nn.loss(F.binary_cross_entropy_with_logits)(x, x.detach().sigmoid()),
        "mse": lambda x, labels: dgcl.nn.loss(F.mse_loss)(x, torch.zeros_like(x)),
        "accuracy": lambda x, labels: x.sum() * dgcl.nn.accuracy(x, labels),
        "allgather": lambda x, labels: dgcl.graph_allgather(x).square(),
    }


def collectives_beside_the_graph() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Those that a compiler calls as they are."""
    layer = nn.Linear(3, 3).double()
    return {
        "fetch": lambda x, labels: dgcl.fetch(x, torch.tensor([0, 5, 3])).square(),
        "collect": lambda x, labels: x * dgcl.collect(x.detach(), None).sum(0),
        "dispatch": lambda x, labels: x * dgcl.dispatch_features(torch.arange(CASES[0].num_nodes))[:, None],
        "shared": lambda x, labels: dgcl.nn.sum_shared(x, labels).square(),
        "check": lambda x, labels: (dgcl.nn.broadcast_parameters(layer), layer(x))[1],
    }


def transformed_collectives() -> list[tuple[str, Tensor, Tensor]]:
    """The gradient of each collective by autograd and by ``torch.func.grad``."""
    comm = dgcl.build_comm_info(CASES[0].graph, "uniform", part=CASES[0].part(2))
    x = dgcl.dispatch_features(
        torch.linspace(-1, 1, 78, dtype=torch.float64).view(-1, 3).sin()
    ).requires_grad_()
    labels = dgcl.dispatch_features(torch.arange(CASES[0].num_nodes) % 3)
    local = comm.local_graph("csr")
    calls = {
        **collectives(),
        "csr-sum": lambda x, labels: local.sum(dgcl.graph_allgather(x)).square(),
        "csr-softmax": lambda x, labels: local.softmax(local.at_sources(dgcl.graph_allgather(x))).square(),
    }
    for layer in (dgcl.nn.GCNConv, dgcl.nn.SAGEConv):  # whose first call connects ranks
        made = layer(3, 2).double()
        calls[layer.__name__] = lambda x, labels, made=made: made(x)
    results = []
    for name, call in calls.items():
        gradient = torch.func.grad(lambda x, call=call: call(x, labels).sum())(x.detach())
        results.append((name, *torch.autograd.grad(call(x, labels).sum(), [x]), gradient))
    in_place = dgcl.nn.InPlaceGCN([3, 3])
    for refused in (comm.aggregator("max"), dgcl.graph_allgather_async, dgcl.collect, in_place):
        with pytest.raises(NotImplementedError, match=r"torch\.autograd\.grad"):
            torch.func.grad(lambda x, refused=refused: refused(x).sum())(x.detach())
    return results


def test_each_collective_under_torch_func(rank_pool):
    for results in rank_pool(2).run(transformed_collectives):
        for name, expected, gradient in results:
            torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12, msg=name)


def compiled_collectives() -> dict[str, tuple[list[Tensor], list[Tensor]]]:
    """Value and gradient of each collective, eager and compiled."""
    dgcl.build_comm_info(CASES[0].graph, "uniform", part=CASES[0].part(2))
    rows = torch.linspace(-1, 1, 3 * CASES[0].num_nodes, dtype=torch.float64).view(-1, 3).sin()
    x = dgcl.dispatch_features(rows).requires_grad_()
    labels = dgcl.dispatch_features(torch.arange(CASES[0].num_nodes) % 3)

    def run(call) -> list[Tensor]:
        out = call(x, labels)
        (gradient,) = torch.autograd.grad(out.sum(), [x])
        return [out.detach(), gradient]

    results = {}
    within = collectives()
    for name, call in (within | collectives_beside_the_graph()).items():
        torch._dynamo.reset()
        results[name] = run(call), run(torch.compile(call, fullgraph=name in within, backend="aot_eager"))
    return results


@pytest.mark.slow
def test_each_collective_in_a_compiled_function_of_two_ranks(rank_pool):
    for results in rank_pool(2).run(compiled_collectives):
        for name, (eager, compiled) in results.items():
            torch.testing.assert_close(
                compiled, eager, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
            )

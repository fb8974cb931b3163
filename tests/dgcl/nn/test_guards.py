"""What gives other numbers on ranks than on one device, and no error: each is said, once, with the cure."""

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.errors import InexactWarning
from tests.dgcl.nn.ranks import CYCLE, NUM_NODES, rows

pyg = pytest.importorskip("torch_geometric.nn")
Data = pytest.importorskip("torch_geometric.data").Data


OTHER = (torch.arange(NUM_NODES) + 1) % 2


class Readout(nn.Module):
    """A layer, and what a function makes of its rows."""

    def __init__(self, pool: Callable[[Tensor], Tensor]):
        super().__init__()
        self.conv, self.pool = pyg.SAGEConv(3, 4).double(), pool

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.pool(self.conv(x, edge_index))


def step(model):
    dgcl.nn.sync_gradients(model)
    model.zero_grad()


def train(pool: Callable[[Tensor], Tensor], data: Any):
    """Two steps of a distributed model, of which the second must say nothing new."""
    model = dgcl.distribute(Readout(pool))
    for _ in range(2):
        out = model(data.x, data.edge_index)
        on_every_rank = len(out) == 1
        loss = dgcl.nn.loss(F.mse_loss, on_every_rank=on_every_rank)
        loss(out, torch.zeros_like(out)).backward()
        step(model)


def plain_loss(data: Any, share: Callable[[Tensor], Tensor]):
    model = dgcl.distribute(Readout(lambda x: x))
    for _ in range(2):
        share(model(data.x, data.edge_index).square()).backward()
        step(model)


def with_term(data: Any, term: Callable[[Tensor], Tensor]):
    model = dgcl.distribute(Readout(lambda x: x))
    for _ in range(2):
        out = model(data.x, data.edge_index)
        loss = dgcl.nn.loss(F.mse_loss)(out, torch.zeros_like(out))
        (2 * loss + term(model.conv.lin_l.weight)).backward()
        step(model)


def accumulated(data):
    model = dgcl.distribute(nn.Linear(3, 3).double())
    for _ in range(2):
        dgcl.nn.loss(F.mse_loss)(model(data.x), data.x).backward()
        dgcl.nn.sync_gradients(model)


def of_classes(data):
    n = len(data.x)
    logits = nn.Linear(3, n).double()(data.x)
    for each in (logits, logits.detach()):
        dgcl.nn.loss(F.cross_entropy)(each, torch.arange(n) // 2)


def evaluated(data, use=dgcl.collect):
    with torch.no_grad():
        use(dgcl.distribute(Readout(lambda x: x / x.max()))(data.x, data.edge_index))


def forces(data):
    pool = Readout(lambda x: dgcl.nn.global_mean_pool(x, batch_of(x)))
    energy = dgcl.nn.count_once(dgcl.distribute(pool)(data.x.requires_grad_(), data.edge_index).sum())
    (found,) = torch.autograd.grad(energy, data.x, create_graph=True)
    dgcl.nn.loss(F.mse_loss)(found, data.x.detach()).backward()


def apart(data, cross, part=OTHER):
    """Another graph of as many vertices, with rows of its own, or with those of the first."""
    other = dispatched(dgcl.current_communicator().part if part is None else part)
    model = dgcl.distribute(Readout(lambda x: x))
    for rows_of, edges_of in [(data, data), (other, other), (data, other)][: 2 + cross]:
        model(rows_of.x, edges_of.edge_index)


def closed_between(data):
    """A communicator of another graph closes between a readout and the sum that completes it."""
    out = dgcl.distribute(Readout(lambda x: x.sum(0)))(data.x, data.edge_index)
    comm = dgcl.current_communicator()
    dispatched(OTHER)
    dgcl.current_communicator().close()
    dgcl.nn.global_sum(out, comm=comm)


def undistributed(data):
    dgcl.nn.broadcast_parameters(pyg.GraphSAGE(3, 4, 2))


def batch_of(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.int64)


LOSS, POOL = "no loss of dgcl.nn took part.*dgcl.nn.loss", "global_mean_pool and its kin"
#: What a distributed model makes of the rows of its layer, and what is warned of; None: nothing.
POOLS: dict[str, tuple[Callable[[Tensor], Tensor], str | None]] = {
    "rows of the whole graph, cut": (
        lambda x: x + rows(4)[: len(x)],
        "first .* of 23 rows of the whole graph.*dgcl.dispatch",
    ),
    "mean of rows": (lambda x: x.mean(0, keepdim=True), f"mean over.*{POOL}"),
    "mean of rows, below a norm": (
        lambda x: dgcl.nn.BatchNorm(4).double()(x + x.mean(0)),
        f"mean over.*{POOL}",
    ),
    "mean of masked rows": (lambda x: x - x[x[:, 0] > 0].mean(0), f"mean over.*{POOL}"),
    "a number of masked rows": (lambda x: x / (x[:, 0] > 0).sum(), f"sum over.*{POOL}"),
    "product of rows": (lambda x: x @ (x.t() @ x), f"matmul over.*{POOL}"),
    "PyG's mean pool": (
        lambda x: pyg.global_mean_pool(x, batch_of(x), 1),
        f"scatter_add_ over.*{POOL}",
    ),
    "random numbers": (lambda x: x * torch.rand_like(x), "random numbers by rand_like"),
    "a sum that is completed": (lambda x: dgcl.nn.global_sum(x.sum(0, keepdim=True)), None),
    "our mean pool": (lambda x: dgcl.nn.global_mean_pool(x, batch_of(x), 1), None),
    "heads that are as many as rows": (lambda x: x.repeat(1, len(x)).unflatten(1, (4, -1)).mean(2), None),
    "a loss inside": (lambda x: x + dgcl.nn.loss(F.mse_loss)(x, x.detach().cos()), None),
}
#: What runs on each rank, and what is warned of.
GUARDS: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    **{name: (partial(train, pool), words) for name, (pool, words) in POOLS.items()},
    "mean of a rank's losses": (lambda data: plain_loss(data, torch.mean), LOSS),
    "mean of a rank's losses, below a norm": (
        lambda data: plain_loss(data, lambda squares: dgcl.nn.BatchNorm(4).double()(squares).mean()),
        LOSS,
    ),
    "a term beside the loss": (
        lambda data: with_term(data, lambda weight: dgcl.nn.global_sum(weight).square().sum()),
        "beside the loss",
    ),
    "a term that counts once": (
        lambda data: with_term(data, lambda weight: dgcl.nn.count_once(weight.square().sum())),
        None,
    ),
    "a loss of rows against each other": (
        lambda data: dgcl.nn.loss(F.cross_entropy)(data.x @ data.x.t(), torch.arange(len(data.x))),
        "rows of this rank against each other",
    ),
    "as many classes as rows": (of_classes, None),
    "gradients that are summed twice": (accumulated, "sums over ranks already"),
    "a maximum of rows, without gradients": (evaluated, f"max over.*{POOL}"),
    "several hops, not distributed": (undistributed, r"GraphSAGE|BasicGNN.*several hops.*dgcl\.distribute"),
    "readout that is only evaluated": (partial(evaluated, use=len), f"max over.*{POOL}"),
    "forces of a pool that counts once": (forces, None),
    "edges of others' vertices": (partial(apart, cross=True), "rows of one dispatched.*part=comm.part"),
    "graphs with rows of their own": (partial(apart, cross=False), None),
    "graphs of the same vertices": (partial(apart, cross=True, part=None), None),
    "another graph that closes": (closed_between, None),
}


@pytest.mark.parametrize("name", GUARDS)
def test_it_is_said_once(name: str):
    run, words = GUARDS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dgcl.launch(on_rank, 2, run)
    inexact = [str(each.message) for each in caught if issubclass(each.category, InexactWarning)]
    assert len(inexact) == (words is not None), inexact
    if words is not None:
        assert re.search(words, inexact[0], re.DOTALL), inexact[0]


def on_rank(run: Callable[[Any], Any]) -> Any:
    return run(dispatched(None))


def dispatched(part: Tensor | None) -> Any:
    edges = torch.from_numpy(CYCLE)
    return dgcl.dispatch(Data(x=rows(3), edge_index=torch.cat([edges, edges.flip(0)], 1)), part=part)


def test_collected_rows_carry_no_gradient_silently():
    def run(data: Any):
        x = data.x.requires_grad_()
        for dst in (0, None):
            whole = dgcl.collect(2 * x, dst)
            if whole is not None:
                assert torch.equal(whole, 2 * rows(3))
                with pytest.raises(RuntimeError, match=r"carry no gradient back.*dgcl\.fetch"):
                    whole.sum().backward()
        with torch.no_grad():
            whole = dgcl.collect(2 * x, None)
        assert not whole.requires_grad
        assert len(whole) == NUM_NODES

    dgcl.launch(on_rank, 2, run)

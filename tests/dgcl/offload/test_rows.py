"""Rows of an Offload are those of ``comm.owned_ids`` to everybody, in whatever order they are stored.

| case                                        | judged by                                                   |
| ------------------------------------------- | ----------------------------------------------------------- |
| torch's operations, their gradients         | the same operations on an ordinary tensor                   |
| changes in place, optimizers                | the same                                                    |
| copies, pickles, numpy, DLPack              | the values, in an ordinary tensor                           |
| what would read memory, or write to a copy  | an error that says what to do                               |
| every way of the library that takes rows    | dense products over the whole graph, one process, float64   |
"""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.offload.chunked_rows import ChunkedRows, RowOrder
from tests.dgcl.offload.sets import random_graph
from tests.support.samples import slow

N = 7
ORDER, OTHER = (RowOrder(torch.tensor(rows)) for rows in ([4, 2, 6, 0, 5, 1, 3], [1, 0, 3, 2, 5, 6, 4]))
VALUES = torch.randn(N, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
MASK = torch.arange(N) % 3 == 0


def chunked(values: Tensor = VALUES, order: RowOrder = ORDER) -> ChunkedRows:
    return ChunkedRows(values[order.rows], order)


def plain(rows: Any) -> Any:
    return rows.in_owned_order() if isinstance(rows, ChunkedRows) else rows


#: name: (function of rows and an ordinary tensor of as many, whether its result is stored chunk by chunk)
OPERATIONS: dict[str, tuple[Callable[[Tensor, Tensor], Any], bool]] = {
    "scaled": (lambda x, y: 2 * x + 1, True),
    "activation": (lambda x, y: x.tanh().relu(), True),
    "with-itself": (lambda x, y: x * x.sigmoid() + x, True),
    "columns-broadcast": (lambda x, y: x * torch.arange(4.0), True),
    "one-row-broadcast": (lambda x, y: x - torch.ones(1, 4), True),
    "column-views": (lambda x, y: x[:, 1:3] * x[:, 3:], True),
    "view-of-heads": (lambda x, y: x.view(N, 2, 2).unsqueeze(1).exp(), True),
    "to-float32": (lambda x, y: x.float().double(), True),
    "where": (lambda x, y: torch.where(x > 0, x, 0.1 * x), True),
    "layer-norm": (lambda x, y: F.layer_norm(x, (4,)), False),
    "ordinary-right": (lambda x, y: x + y, False),
    "ordinary-left": (lambda x, y: y / x.square().add(1), False),
    "a-number-for-each-row": (lambda x, y: x * y[:, :1], False),
    "vector-of-a-column": (lambda x, y: x[:, 0] * y[:, 0], False),
    "by-a-vector-of-rows": (lambda x, y: x * x[:4, 0], True),
    "linear": (lambda x, y: F.linear(x, y[:3], y[0, :3]), False),
    "product-with-transposed": (lambda x, y: x.T @ y, False),
    "softmax": (lambda x, y: x.log_softmax(1), False),
    "softmax-over-rows": (lambda x, y: x.softmax(0), False),
    "sum-of-rows": (lambda x, y: x.sum(0), False),
    "running-sum": (lambda x, y: x.cumsum(0), False),
    "sorted-rows": (lambda x, y: x[x[:, 0].argsort()], False),
    "one-row": (lambda x, y: x[2] * x[-1], False),
    "some-rows": (lambda x, y: x[1:5:2] + x[-2:], False),
    "masked-rows": (lambda x, y: x[MASK], False),
    "masked-by-itself": (lambda x, y: x[x[:, 0] > 0], False),
    "rows-by-index": (lambda x, y: x[torch.tensor([3, 3, -1])], False),
    "elements-by-index": (lambda x, y: x[torch.arange(N), torch.arange(N) % 4], False),
    "index-select": (lambda x, y: x.index_select(0, torch.tensor([5, 0])), False),
    "gathered-columns": (lambda x, y: x.gather(1, torch.arange(N)[:, None] % 4), False),
    "side-by-side": (lambda x, y: torch.cat([x, y], 1), False),
    "below-each-other": (lambda x, y: torch.cat([x, x]), False),
    "unbound": (lambda x, y: torch.stack(list(x)), False),
    "flattened": (lambda x, y: x.reshape(-1)[:6], False),
    "flipped": (lambda x, y: x.flip(0), False),
    "custom-function": (lambda x, y: Squares.apply(x, y), False),
    "cross-entropy": (lambda x, y: F.cross_entropy(x, torch.arange(N) % 4, reduction="none"), False),
    "seeded-dropout": (lambda x, y: _seeded(lambda: F.dropout(x, 0.5)), False),
}


class Squares(torch.autograd.Function):
    """A user's own: saves rows, and multiplies gradients with them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * x + y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, _ = ctx.saved_tensors
        return 2 * x * grad, grad


def _seeded(function: Callable[[], Tensor]) -> Tensor:
    torch.manual_seed(3)
    return function()


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_mean_those_of_ordinary_rows(name: str):
    operation, stays = OPERATIONS[name]
    other = VALUES.flip(0) + 0.5
    x, y = chunked().requires_grad_(), VALUES.clone().requires_grad_()
    got, expected = operation(x, other), operation(y, other)
    assert isinstance(got, ChunkedRows) == stays
    torch.testing.assert_close(plain(got), expected)
    upstream = torch.arange(expected.numel(), dtype=torch.float64).view(expected.shape).sin()
    (got * upstream).sum().backward()
    (expected * upstream).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(plain(x.grad), y.grad)
    with torch.inference_mode():
        torch.testing.assert_close(plain(operation(chunked(), other)), expected.detach())


def test_rows_stored_in_two_orders_mix():
    x, y = chunked().requires_grad_(), chunked(VALUES.flip(0), OTHER).requires_grad_()
    (x * y).square().sum().backward()
    of_x, of_y = torch.autograd.grad((x * y).square().sum(), [x, y])
    torch.testing.assert_close(plain(x.grad), 2 * VALUES * VALUES.flip(0).square())
    assert plain(of_x).equal(plain(x.grad))
    assert plain(of_y).equal(plain(y.grad))


def test_hooks_get_gradients_in_the_usual_order():
    seen: list[Tensor] = []
    x = chunked().requires_grad_()
    h = 2 * x
    h.register_hook(lambda grad: seen.append(plain(grad)))
    (h * VALUES).sum().backward()
    assert seen[0].equal(VALUES)


def changed(y: Tensor) -> Tensor:
    y[1:3] = 0
    y[MASK] += 1
    y[:, 1].zero_()
    y[y[:, 0] > 0] *= 3
    y += VALUES
    y.mul_(2).clamp_(min=-1)
    y[2] = 7
    y[4, 1] = 9
    y.detach().add_(1)
    y.data.sub_(VALUES)
    y.copy_(y.flip(0))
    y.index_add_(0, torch.tensor([0, 6]), VALUES[:2])
    torch.add(y, 1, out=y)
    torch._foreach_mul_([y, y], 0.5)
    return y


def test_changes_in_place():
    assert plain(changed(chunked())).equal(changed(VALUES.clone()))


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_rows_that_are_learned(kind: Any, foreach: bool):
    one, other = nn.Parameter(chunked()), nn.Parameter(VALUES.clone())
    for parameter in (one, other):
        optimizer = kind([parameter], lr=0.1, foreach=foreach)
        for _ in range(3):
            optimizer.zero_grad()
            (parameter.tanh() * VALUES).square().sum().backward()
            optimizer.step()
    assert isinstance(one, ChunkedRows)
    torch.testing.assert_close(plain(one.detach()), other.detach())


def test_copies_and_conversions():
    x, memory = chunked(), io.BytesIO()
    torch.save({"rows": x}, memory)
    memory.seek(0)
    copied = copy.deepcopy(nn.Parameter(x))
    assert isinstance(copied, nn.Parameter)
    assert plain(copied.detach()).equal(VALUES)
    for got in (torch.load(memory)["rows"], pickle.loads(pickle.dumps(x)), torch.from_dlpack(x)):
        assert type(got) is Tensor
        assert got.equal(VALUES)
    assert np.array_equal(x.numpy(), VALUES.numpy())
    assert np.array_equal(np.asarray(x), VALUES.numpy())
    assert torch.tensor(x.tolist(), dtype=x.dtype).equal(VALUES)
    assert repr(x).removeprefix("ChunkedRows").split() == repr(VALUES).removeprefix("tensor").split()
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 1


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.data_ptr(),
        lambda x: x.untyped_storage(),
        lambda x: x.share_memory_(),
        lambda x: setattr(x, "data", VALUES),
    ],
)
def test_memory_is_refused(use: Callable[[Tensor], Any]):
    with pytest.raises(TypeError, match=r"stored chunk by chunk .* pass rows.in_owned_order\(\)"):
        use(chunked())


@pytest.mark.parametrize("view", [lambda x: x[1:3], lambda x: x.T, lambda x: x.view(-1), lambda x: x[2]])
def test_a_change_through_a_copy_is_told(view: Callable[[Tensor], Tensor]):
    x = chunked()
    view(x).zero_()
    with pytest.raises(RuntimeError, match=r"changed through a view of some rows.* write rows\[1:3\] = "):
        x + 1


# On ranks

NODES = 30
GRAPH = random_graph(NODES, 110, 3)
FEATURES = torch.randn(NODES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(NODES) * 7 % 4
TRAIN = torch.arange(NODES) % 3 != 1
WEIGHTS = torch.rand(GRAPH.num_edges, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def dense(weights: Tensor | None = None) -> Tensor:
    """Row v holds v's in-edges."""
    sources, heads = map(torch.as_tensor, GRAPH.edges())
    values = torch.ones(len(sources), dtype=torch.float64) if weights is None else weights
    return torch.zeros(NODES, NODES, dtype=torch.float64).index_put((heads, sources), values, accumulate=True)


def part(world_size: int, empty: bool) -> np.ndarray:
    """Owners that have nothing to do with ids; the last rank may own nothing."""
    ranks = max(1, world_size - empty)
    return (np.arange(NODES) * 7 % 11 % ranks).astype(np.int32)


def mean_of(a: Tensor, x: Tensor) -> Tensor:
    return a @ x / a.sum(1, keepdim=True).clamp(min=1)


class SumThenTanh(nn.Module):
    def forward(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        return (g.sum(src) + dst).tanh()


def _results(comm: dgcl.Communicator, chunk_by: str, folder: Path) -> dict[str, Any]:
    """By every way, in the order of the whole graph."""
    off = dgcl.Offload(comm, chunks=4, chunk_by=chunk_by, method="direct")
    other = dgcl.Offload(comm, chunks=3, chunk_by="range", method="direct")
    mine, labels, mask = (dgcl.dispatch_features(rows) for rows in (FEATURES, LABELS, TRAIN))
    x = off.dispatch_features(FEATURES)
    found: dict[str, Any] = {}

    def both(name: str, function: Callable[[Tensor], Tensor], is_scalar: bool = False):
        """The result, and the gradient, of rows from the Offload."""
        rows = off.dispatch_features(FEATURES).requires_grad_()
        out = function(rows)
        (out if is_scalar else (out * 0.5).square().sum()).backward()
        found[name] = out.detach() if is_scalar else comm.collect(out.detach(), None)
        assert rows.grad is not None
        found[f"gradient of {name}"] = comm.collect(rows.grad, None)

    assert off.num_owned == len(comm.owned_ids)
    assert off.dispatch_features(LABELS).equal(labels)
    assert x.equal(FEATURES[comm.owned_ids])
    assert dgcl.graph_allgather(x).equal(FEATURES[torch.cat([comm.owned_ids, comm.halo_ids])])
    assert dgcl.graph_allgather_async(x).wait().equal(FEATURES[comm.halo_ids])
    assert x[mask].equal(FEATURES[comm.owned_ids][mask])
    dgcl.collect(x, file=folder / "rows.npy")
    found["file"] = torch.from_numpy(np.load(folder / "rows.npy")) if comm.rank == 0 else FEATURES
    weights = comm.dispatch_edges(WEIGHTS)
    both("collect", lambda rows: rows + 0)
    both("sum", comm.aggregator())
    both("mean", comm.aggregator("mean"))
    both("max", comm.aggregator("max"))
    both("weighted", comm.aggregator(edge_weight=weights))
    both("windows", comm.aggregator(windows=2))
    both("local graph", lambda rows: comm.local_graph("csr").sum(dgcl.graph_allgather(rows)))
    both("layer", lambda rows: off.layer(SumThenTanh(), rows))
    both("layer of ordinary rows", lambda rows: off.layer(SumThenTanh(), rows * 1 + 0 * mine))
    both("layer of another", lambda rows: other.layer(SumThenTanh(), off.layer(SumThenTanh(), rows)))
    both("residual", lambda rows: off.layer(SumThenTanh(), rows) + rows)
    both("batch norm", lambda rows: off.batch_norm(_norm(nn.BatchNorm1d(4)), rows))
    both("batch norm of all", lambda rows: _norm(dgcl.nn.BatchNorm(4))(rows))
    both("loss", lambda rows: off.cross_entropy(rows, labels, mask), True)
    both("loss beside", lambda rows: dgcl.nn.loss(F.cross_entropy)(rows, labels, mask), True)
    both("loss of ordinary rows", lambda rows: off.cross_entropy(rows + 0 * mine, labels, mask), True)
    total = comm.aggregator()
    found["constant"] = comm.collect(total.constant(x).aggregated(total, "sum", total), None)
    found["dropout"] = comm.collect(dgcl.nn.dropout(x, 0.5, call=5), None)
    found["dropout of ordinary rows"] = comm.collect(dgcl.nn.dropout(mine, 0.5, call=5), None)
    found["accuracy"] = off.accuracy(x, labels, mask)
    found["accuracy beside"] = dgcl.nn.accuracy(x, labels, mask)
    learned = mine.clone().requires_grad_()
    off.layer(SumThenTanh(), learned).square().sum().backward()
    assert type(learned.grad) is Tensor
    found["gradient of ordinary rows"] = comm.collect(learned.grad, None)
    for each in (off, other):
        each.close()
    return found


def _norm(norm: Any) -> Any:
    with torch.no_grad():
        norm.double().weight.copy_(torch.arange(1.0, 5.0))
    return norm


def expected() -> dict[str, Any]:
    a, weighted = dense(), dense(WEIGHTS)
    found: dict[str, Any] = {"file": FEATURES, "constant": a @ FEATURES}

    def both(names: str, function: Callable[[Tensor], Tensor], is_scalar: bool = False):
        x = FEATURES.clone().requires_grad_()
        out = function(x)
        (out if is_scalar else (out * 0.5).square().sum()).backward()
        for name in names.split(", "):
            found[name], found[f"gradient of {name}"] = out.detach(), x.grad

    def layer(x: Tensor) -> Tensor:
        return (a @ x + x).tanh()

    def extremes(x: Tensor) -> Tensor:
        each = torch.where(a[:, :, None] > 0, x[None], torch.tensor(-torch.inf, dtype=x.dtype)).amax(1)
        return torch.where((a.sum(1) > 0)[:, None], each, 0.0)

    both("collect", lambda x: x + 0)
    both("sum, windows, local graph", lambda x: a @ x)
    both("mean", lambda x: mean_of(a, x))
    both("max", extremes)
    both("weighted", lambda x: weighted @ x)
    both("layer, layer of ordinary rows", layer)
    both("layer of another", lambda x: layer(layer(x)))
    both("residual", lambda x: layer(x) + x)
    both("batch norm, batch norm of all", lambda x: _norm(nn.BatchNorm1d(4))(x))
    both("loss, loss beside, loss of ordinary rows", lambda x: F.cross_entropy(x[TRAIN], LABELS[TRAIN]), True)
    right = (FEATURES.argmax(1) == LABELS)[TRAIN].double().mean()
    found["accuracy"] = found["accuracy beside"] = right
    x = FEATURES.clone().requires_grad_()
    layer(x).square().sum().backward()
    found["gradient of ordinary rows"] = x.grad
    return found


@pytest.mark.parametrize(
    "world_size, empty, chunk_by",
    [
        (3, True, "metis"),
        *(
            slow(*each)
            for each in ((1, False, "metis"), (2, False, "range"), (3, True, "range"), (4, True, "metis"))
        ),
    ],
)
def test_every_way_that_takes_rows(tmp_path, world_size: int, empty: bool, chunk_by: str):
    def run() -> dict[str, Any]:
        comm = dgcl.build_comm_info(GRAPH, "uniform", part=part(world_size, empty), method="direct")
        found = _results(comm, chunk_by, tmp_path)
        comm.close()
        return found

    wanted = expected()
    for found in dgcl.launch(run, world_size):
        assert found.pop("dropout").equal(found.pop("dropout of ordinary rows"))
        assert found.keys() == wanted.keys()
        for name, values in found.items():
            torch.testing.assert_close(
                values,
                wanted[name],
                rtol=1e-10,
                atol=1e-10,
                check_dtype=False,
                msg=partial("{}: {}".format, name),
            )

"""What a chunked layer is to autograd, what it counts, and what it refuses.

| case                                     | judged by                                                  |
| ---------------------------------------- | ---------------------------------------------------------- |
| parameters' gradients                    | ``torch.autograd.grad``, hooks that run once, accumulation |
| dropout by vertex                        | the communicator in memory, which has the same masks       |
| torch's dropout                          | differences of losses with the same seed                   |
| tuples, residuals, shared parameters     | the dense model                                            |
| constant inputs                          | the layer that aggregates each time; nothing loaded later  |
| rows counted                             | the formulas                                               |
| refusals                                 | their text, on every rank                                  |
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.offload.schedule import reorganise
from tests.dgcl.offload.sets import chunks_of, random_graph
from tests.support.samples import named

GRAPH = random_graph(30, 110, 3)
PART = (np.arange(30) * 7 % 3 % 2).astype(np.int32)


def dense():
    """Row v holds v's in-edges."""
    counts = np.zeros((30, 30))
    sources, heads = GRAPH.edges()
    np.add.at(counts, (heads, sources), 1.0)
    return torch.from_numpy(counts)


def features(width=4, seed=0):
    return torch.randn(30, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Layer(nn.Module):
    """Sums, then a product."""

    def __init__(self, width_in=4, width_out=3):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(width_in, width_out, generator=torch.Generator().manual_seed(1))
        )
        self.double()

    def forward(self, g, src, dst):
        return torch.tanh(g.sum(src) @ self.weight) + dst[:, :1]


def on_ranks(function, world_size=2, **options):
    """``function(comm, off)`` on every rank."""

    def run():
        comm = dgcl.build_comm_info(GRAPH, "uniform", part=PART if world_size == 2 else None, method="direct")
        off = dgcl.Offload(comm, **{"chunks": 4, "method": "direct", **options})
        result = function(comm, off)
        off.close()
        comm.close()
        return result

    return dgcl.launch(run, world_size)


def test_parameters_get_gradients_as_of_any_function():
    def run(comm, off):
        layer, calls = Layer(), []
        layer.weight.register_hook(lambda grad: calls.append(1))
        x = off.dispatch_features(features()).requires_grad_()
        loss = off.layer(layer, x).square().sum()
        of_weight, of_x = torch.autograd.grad(loss, [layer.weight, x], retain_graph=True)
        assert layer.weight.grad is None
        loss.backward()
        loss = 2 * off.layer(layer, x).square().sum()
        loss.backward()
        dgcl.nn.sync_gradients(layer)
        return comm.all_reduce_sum(of_weight), off.comm.collect(of_x, None), layer.weight.grad, len(calls)

    layer, x = Layer(), features().requires_grad_()
    out = torch.tanh(dense() @ x @ layer.weight) + x[:, :1]
    expected = torch.autograd.grad(out.square().sum(), [layer.weight, x])
    for of_weight, of_x, accumulated, calls in on_ranks(run):
        torch.testing.assert_close(of_weight, expected[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(of_x, expected[1], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(accumulated, 3 * expected[0], rtol=1e-10, atol=1e-10)
        assert calls == 3


@named("times", {"named once": 1, "named twice": 2})
def test_functions_come_with_their_parameters(times):
    def run(comm, off):
        weight = features(4, 5)[:4].clone().requires_grad_() * 1.0  # no leaf
        weight.retain_grad()
        weight.register_hook(lambda grad: grad / 3)  # of the gradient of all chunks, once
        x = off.dispatch_features(features())
        layer = off.layer(lambda g, src, dst: g.mean(src) @ weight, x, parameters=[weight] * times)
        layer.square().sum().backward()
        return comm.all_reduce_sum(3 * weight.grad)

    weight = features(4, 5)[:4].clone().requires_grad_()
    adjacency = dense() / dense().sum(1, keepdim=True).clamp(min=1)
    (adjacency @ features() @ weight).square().sum().backward()
    for found in on_ranks(run):
        torch.testing.assert_close(found, weight.grad, rtol=1e-10, atol=1e-10)


class WithDropout(Layer):
    def __init__(self, drop):
        super().__init__()
        self.drop = drop

    def forward(self, g, src, dst):
        return self.drop(super().forward(g, self.drop(src), self.drop(dst)))


def test_dropout_by_vertex_drops_what_one_device_drops():
    """Three calls in a layer, two layers: on sources, own rows and results."""

    def chunked(comm, off):
        layers = [WithDropout(dgcl.nn.Dropout(0.5)), WithDropout(dgcl.nn.Dropout(0.5, seed=3))]
        x = off.dispatch_features(features()).requires_grad_()
        h = off.layer(layers[0], x)
        h = off.layer(layers[1], torch.cat([h, h[:, :1]], 1))
        h.square().sum().backward()
        return off.comm.collect(h, None), off.comm.collect(x.grad, None)

    def in_memory():
        comm = dgcl.build_comm_info(GRAPH)
        g = comm.local_graph("csr")
        x = features().requires_grad_()
        h = WithDropout(dgcl.nn.Dropout(0.5))(g, x, x)
        h = torch.cat([h, h[:, :1]], 1)
        h = WithDropout(dgcl.nn.Dropout(0.5, seed=3))(g, h, h)
        h.square().sum().backward()
        return h.detach(), x.grad

    (expected,) = dgcl.launch(in_memory, 1)
    assert 0.3 < (expected[0] == 0).double().mean() < 0.7
    for world_size in (1, 2):
        for found in on_ranks(chunked, world_size):
            for mine, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kept", [True, False])
def test_torch_dropout_is_the_same_in_the_backward(kept):
    class Product(WithDropout):
        def forward(self, a):  # type: ignore[override]
            return self.drop(torch.tanh(a @ self.weight))

    def run(comm, off):
        x = off.dispatch_features(features())
        layer = (Product if kept else WithDropout)(nn.Dropout(0.5))

        def loss():
            torch.manual_seed(5)
            options: Any = {"aggregate": "sum", "keep": True} if kept else {}
            return off.layer(layer, x, **options).square().sum()

        loss().backward()
        before = torch.get_rng_state()
        for place in [(0, 0), (2, 1), (3, 2)]:
            values = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    layer.weight[place] += step
                    values.append(loss())
                    layer.weight[place] -= step
            slope = (values[0] - values[1]) / 2e-5
            torch.testing.assert_close(slope, layer.weight.grad[place], rtol=1e-6, atol=1e-6)
        assert torch.get_rng_state().equal(before)

    on_ranks(run, 1)


def test_tuples_of_rows_and_shared_parameters():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Layer()
            self.second = self.first  # tied

        def forward(self, g, src, dst):
            one = g.sum(src[0]) @ self.first.weight + g.sum(src[1]) * dst[2]
            return one, torch.tanh(g.sum(src[0] * src[2]) @ self.second.weight)

    def run(comm, off):
        x = off.dispatch_features(features()).requires_grad_()
        y = off.dispatch_features(features(3, 2)).requires_grad_()
        scale = off.dispatch_features(features(1, 4))
        model = Two()
        one, two = off.layer(model, (x, y, scale))
        (one.square().sum() + (two * 3).sum()).backward()
        alone = off.layer(model, (x, y, scale))[1]  # the other result gets no gradient
        (alone.square().sum()).backward()
        grad = comm.all_reduce_sum(model.first.weight.grad)
        return [off.comm.collect(each, None) for each in (one, two, x.grad, y.grad)] + [grad]

    x, y, scale = features().requires_grad_(), features(3, 2).requires_grad_(), features(1, 4)
    weight = Layer().weight
    one = dense() @ x @ weight + (dense() @ y) * scale
    two = torch.tanh((dense() @ (x * scale)) @ weight)
    (one.square().sum() + (two * 3).sum() + two.square().sum()).backward()
    for found in on_ranks(run):
        for mine, wanted in zip(found, (one, two, x.grad, y.grad, weight.grad), strict=True):
            torch.testing.assert_close(mine, wanted.detach(), rtol=1e-10, atol=1e-10)


def test_constant_inputs_are_aggregated_once():
    def run(comm, off):
        x = off.dispatch_features(features())
        layer = nn.Linear(4, 3).double()
        with torch.no_grad():
            layer.weight.copy_(features()[:3])
        expected = off.layer(layer, x, aggregate="mean", keep=True)
        found = [off.layer(layer, x, aggregate="mean", constant=True) for _ in range(2)]
        before = dict(off.account.rows)
        found.append(off.layer(layer, x, aggregate="mean", constant=True))
        found[-1].sum().backward()
        moved = {kind: count - before.get(kind, 0) for kind, count in off.account.rows.items()}
        n = off.num_owned
        assert {kind: count for kind, count in moved.items() if count} == {
            "kept_again": 2 * n,
            "stored": n,
            "gradients_in": n,
        }
        assert all(each.equal(expected) for each in found)
        weights = torch.rand(comm.local.num_edges, dtype=torch.float64)
        for changed, given in ((weights, weights), (x, None)):
            off.layer(layer, x, aggregate="mean", constant=True, edge_weight=given)
            changed += 1
            with pytest.raises(RuntimeError, match="changed in place after a layer with constant=True"):
                off.layer(layer, x, aggregate="mean", constant=True, edge_weight=given)
        return found

    on_ranks(run)


@pytest.mark.parametrize("aggregate", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_aggregates_of_16_bits_are_rounded_once(dtype, aggregate):
    """A mean of rows is in range though their sum is beyond float16."""
    scale = 3e4 if aggregate == "mean" else 1.0
    x = (scale * features().abs().clamp(0.5, 2)).to(dtype)
    matrix = dense()
    if aggregate == "mean":
        matrix /= matrix.sum(1, keepdim=True).clamp(min=1)
    weights = features(seed=1).to(dtype)

    def run(comm, off):
        mine = off.dispatch_features(x).requires_grad_()
        out = off.layer(nn.Identity(), mine, aggregate=aggregate)
        out.backward(off.dispatch_features(weights))
        assert mine.grad is not None
        return off.comm.collect(out.detach(), None), off.comm.collect(mine.grad, None)

    precision = 2.0**-10 if dtype == torch.float16 else 2.0**-7
    for out, grad in on_ranks(run):
        torch.testing.assert_close(out.double(), matrix @ x.double(), rtol=precision, atol=0)
        torch.testing.assert_close(grad.double(), matrix.T @ weights.double(), rtol=0, atol=16 * precision)


def test_a_constant_aggregate_that_inference_made_serves_training():
    def run(comm, off):
        x, layer = off.dispatch_features(features()), nn.Linear(4, 3).double()
        with torch.inference_mode():
            off.layer(layer, x, aggregate="sum", constant=True)
        found, expected = (
            torch.autograd.grad(off.layer(layer, x, aggregate="sum", constant=each).sum(), [layer.weight])[0]
            for each in (True, False)
        )
        assert found.equal(expected)

    on_ranks(run)


def test_inference_has_no_gradients_and_keeps_nothing():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = WithDropout(nn.Dropout(0.5)), Layer(3, 3)

        def forward(self, off, x):
            return off.layer(self.two, off.layer(self.one, x))

    def run(comm, off):
        model = Model()
        labels = off.dispatch_features(torch.arange(30) % 3)
        mask = off.dispatch_features(torch.arange(30) % 2 == 0)
        out = off.infer(model, off.dispatch_features(features()))
        assert not out.requires_grad
        assert model.training
        return off.comm.collect(out, None), float(off.accuracy(out, labels, mask))

    x = features()
    x = torch.tanh(dense() @ x @ Layer().weight) + x[:, :1]
    x = torch.tanh(dense() @ x @ Layer(3, 3).weight) + x[:, :1]
    right = (x.argmax(1) == torch.arange(30) % 3)[::2].double().mean()
    for out, accuracy in on_ranks(run):
        torch.testing.assert_close(out, x.detach(), rtol=1e-10, atol=1e-10)
        assert accuracy == right


def test_loss_and_accuracy_leave_out_what_does_not_count():
    labels = torch.arange(30) % 4
    labels[::5] = -100

    def run(comm, off):
        x = off.dispatch_features(features()).requires_grad_()
        mine = off.dispatch_features(labels)
        loss = off.cross_entropy(x, mine)
        (3 * loss).backward()
        return loss.detach(), off.comm.collect(x.grad, None), off.accuracy(x, mine)

    x = features().requires_grad_()
    loss = nn.functional.cross_entropy(x, labels)
    (3 * loss).backward()
    counts = labels != -100
    accuracy = (x.argmax(1) == labels)[counts].double().mean()
    for found in on_ranks(run):
        for mine, wanted in zip(found, (loss.detach(), x.grad, accuracy), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_has_the_statistics_of_all_rows(training, affine):
    def norm():
        made = nn.BatchNorm1d(4, affine=affine).double().train(training)
        with torch.no_grad():
            made.running_mean.copy_(features()[0])
            for parameter in made.parameters():
                parameter.copy_(features()[1])
        return made

    def run(comm, off):
        x, mine = off.dispatch_features(features()).requires_grad_(), norm()
        out = off.batch_norm(mine, x)
        (out * off.dispatch_features(features(4, 3))).sum().backward()
        dgcl.nn.sync_gradients(mine)
        learned = [p.grad for p in mine.parameters()]
        return [
            off.comm.collect(out, None),
            off.comm.collect(x.grad, None),
            mine.running_mean,
            mine.running_var,
            *learned,
        ]

    x, whole = features().requires_grad_(), norm()
    out = whole(x)
    (out * features(4, 3)).sum().backward()
    expected = [
        out.detach(),
        x.grad,
        whole.running_mean,
        whole.running_var,
        *(p.grad for p in whole.parameters()),
    ]
    for found in on_ranks(run):
        for mine, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


def test_mixed_precision_is_that_of_the_forward():
    def run(comm, off):
        layer = nn.Linear(4, 3)
        with torch.no_grad():
            layer.weight.copy_(features()[:3])
        x = off.dispatch_features(features().float())
        with torch.autocast("cpu", torch.bfloat16):
            out = off.layer(layer, x, aggregate="sum", keep=True)
        out.float().sum().backward()
        return layer.weight.grad, out.dtype

    (found, dtype), *_ = on_ranks(run, 1)
    assert dtype == torch.bfloat16
    expected = (dense() @ features()).sum(0).expand(3, 4)
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("mixed", [True, False])
def test_a_loss_has_the_type_of_torchs(mixed):
    """Of 16-bit logits in mixed precision float32, which shows the changes of a step."""
    labels, narrow = torch.arange(30) % 4, torch.bfloat16

    def run(comm, off):
        x = off.dispatch_features(features().to(narrow)).requires_grad_()
        with torch.autocast("cpu", narrow, enabled=mixed):
            loss = off.cross_entropy(x, off.dispatch_features(labels))
        loss.backward()
        return loss.detach(), off.comm.collect(x.grad, None)

    x = features().to(narrow).requires_grad_()
    with torch.autocast("cpu", narrow, enabled=mixed):
        loss = nn.functional.cross_entropy(x, labels)
    loss.backward()
    for found, grad in on_ranks(run):
        torch.testing.assert_close(found, loss.detach())
        torch.testing.assert_close(grad, x.grad)


@pytest.mark.parametrize("aggregate, keep", [(None, "auto"), ("mean", True), ("mean", False)])
@pytest.mark.parametrize("needs_grad", [True, False])
def test_rows_counted_are_those_of_the_formulas(aggregate, keep, needs_grad):
    chunks = chunks_of(GRAPH, PART, 2, 4, "range")
    reads = [[chunk.reads for chunk in of_rank] for of_rank in chunks]
    _, schedule = reorganise(reads, PART)
    host, device, kept = int(schedule.host_rows.sum()), int(schedule.device_rows.sum()), keep is True
    expected = {
        "loaded": host, "loaded_again": host * (not kept), "gradients_out": host * needs_grad,
        "exchanged": device, "exchanged_again": device * (needs_grad + (not kept)),
        "gradients_in": len(PART), "stored": len(PART), "kept": len(PART) * kept, "kept_again": len(PART) * kept,
    }  # fmt: skip

    def run(comm, off):
        layer = Layer() if aggregate is None else nn.Linear(4, 3).double()
        x = off.dispatch_features(features()).requires_grad_(needs_grad)
        off.account.rows.clear()
        off.account.bytes.clear()
        off.layer(layer, x, aggregate=aggregate, keep=keep).sum().backward()
        return dict(off.account.rows), dict(off.account.bytes), off._transport.bytes_sent.sum(0)

    told = on_ranks(run, chunk_by="range")
    total = {kind: sum(rows.get(kind, 0) for rows, _, _ in told) for kind in expected}
    assert total == expected
    of_bytes = {kind: sum(found.get(kind, 0) for _, found, _ in told) for kind in expected}
    narrow = ("stored", "gradients_in")
    assert of_bytes == {kind: count * 8 * (3 if kind in narrow else 4) for kind, count in expected.items()}
    sent = sum(bytes_sent for _, _, bytes_sent in told).sum()  # direct plans: no relays
    assert sent == of_bytes["exchanged"] + of_bytes["exchanged_again"]


class Spoilt(Layer):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, g, src, dst):
        if self.what == "rows":
            return src
        raise ArithmeticError("no")


def _norm():
    layer = Layer()
    layer.norm = nn.Sequential(nn.BatchNorm1d(3))
    return layer


REFUSED: list[tuple[str, Callable[[dgcl.Offload, Tensor], Any], str]] = [
    (
        "batch-norm",
        lambda off, x: off.layer(_norm(), x),
        r"norm.0 \(torch.nn.BatchNorm1d\) takes statistics.*off.batch_norm",
    ),
    ("rows", lambda off, x: off.layer(Spoilt("rows"), x), "must give one row for each of the"),
    ("function", lambda off, x: off.layer(lambda g, s, d: d, x), "come with parameters="),
    (
        "one tensor of parameters",
        lambda off, x: off.layer(lambda g, s, d: d, x, parameters=torch.ones(4, 5, requires_grad=True)),
        "parameters must be a list of tensors",
    ),
    (
        "labels",
        lambda off, x: off.cross_entropy(x, torch.arange(off.num_owned)),
        r"labels must be classes 0\.\.3, the columns of the logits \(got (\d+) in row \1; \d+ such labels",
    ),
    ("shape", lambda off, x: off.layer(Layer(), x[:3]), "x must have .* floating point rows"),
    ("integers", lambda off, x: off.layer(Layer(), x.long()), "floating point rows"),
    (
        "aggregate",
        lambda off, x: off.layer(Layer(), x, aggregate="max"),
        "aggregate must be one of sum, mean",
    ),
    ("own-rows", lambda off, x: off.layer(Layer(), x, own_rows=True), "go with aggregate="),
    ("keep", lambda off, x: off.layer(Layer(), x, keep=False), "keep go with aggregate="),
    (
        "kept-how",
        lambda off, x: off.layer(Layer(), x, aggregate="sum", keep="never"),
        "keep must be True, False or 'auto' \\(got 'never'\\)",
    ),
    (
        "constant-not-kept",
        lambda off, x: off.layer(Layer(), x, aggregate="sum", constant=True, keep=False),
        "constant=True keeps the aggregate",
    ),
    ("tuple", lambda off, x: off.layer(Layer(), (x, x), aggregate="sum"), "takes one tensor of rows"),
    (
        "constant",
        lambda off, x: off.layer(Layer(), x.requires_grad_(), aggregate="sum", constant=True),
        "must not require a gradient with constant=True",
    ),
    (
        "weights",
        lambda off, x: off.layer(Layer(), x, aggregate="sum", edge_weight=torch.ones(3)),
        "edge_weight must be .* constant weights",
    ),
]


@named("call, message", {case[0]: case[1:] for case in REFUSED})
def test_refusals(call, message):
    def run(comm, off):
        with pytest.raises((ValueError, TypeError, dgcl.CommError), match=f"(?s){message}"):
            call(off, off.dispatch_features(features()))

    on_ranks(run)


def test_layers_of_pyg_are_refused_by_name():
    pyg = pytest.importorskip("torch_geometric.nn")

    def run(comm, off):
        x = off.dispatch_features(features())
        for conv, message in (
            (pyg.SAGEConv(4, 3), r"got a SAGEConv itself"),
            (pyg.SGConv(4, 3, K=2), "goes several hops"),
            (dgcl.nn.BatchNorm(4), "takes statistics"),
        ):
            with pytest.raises(ValueError, match=message):
                off.layer(conv, x)

    on_ranks(run)


def test_rows_changed_before_the_backward():
    def run(comm, off):
        x = off.dispatch_features(features())
        h = off.layer(Layer(), x)
        out = off.layer(Layer(3, 3), h)
        h.detach().mul_(2)
        with pytest.raises(
            RuntimeError, match=r"layer 2 \(Layer\): its rows, or its parameters, were changed in place"
        ):
            out.sum().backward()

    on_ranks(run, 1)


def test_ranks_that_call_different_layers():
    def run(comm, off):
        x = off.dispatch_features(features())
        with pytest.raises(ValueError, match=r"layers.*got .*layer 1 \(Layer\).*rank 0 and .*\(Linear\)"):
            off.layer(nn.Linear(4, 3).double(), x, aggregate="sum") if comm.rank else off.layer(Layer(), x)

    on_ranks(run)


def test_a_rank_that_fails_in_a_chunk_is_named_on_all():
    def run(comm, off):
        x = off.dispatch_features(features())
        if comm.rank == 1:
            with pytest.raises(ArithmeticError) as caught:
                off.layer(Spoilt("raise"), x)
            assert "in chunk 0 of 4 of layer 1 (Spoilt) on rank 1" in caught.value.__notes__
        else:

            class Spoilt_(Layer):
                pass

            Spoilt_.__name__ = "Spoilt"
            with pytest.raises(dgcl.CommError, match=r"layer 1 \(Spoilt\) failed with ArithmeticError"):
                off.layer(Spoilt_(), x)

    on_ranks(run)

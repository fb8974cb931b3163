"""What goes past torch's functions, and would see a rank's memory, is exact or raises a sentence of dgcl's."""

import pytest
import torch
from torch import nn

import dgcl
from tests.dgcl.rows.programs import graph
from tests.support.rows_harness import differs, on_threads, plain, value_of


class Centre(torch.autograd.Function):
    """A reduction over rows in a function of one's own."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean(0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 * ctx.saved_tensors[0] ** 2


def total(x):
    return (x * 2).mean(0)


def by_row(x):
    return torch.relu(x) * 2 + 1


def gradient(function, x):
    x = x.clone().requires_grad_()
    (function(x) * torch.arange(6)).square().sum().backward()
    return x.grad


HERE = {
    **globals(),
    "scripted": torch.jit.script(total),
    "scripted_by_row": torch.jit.script(by_row),
    "traced": torch.jit.trace(total, torch.ones(4, 6)),
    "module": torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.ReLU()).double()),
    "compiled": torch.compile(total, backend="eager"),
    "compiled_by_row": torch.compile(by_row, backend="eager"),
}
BYPASSES = [
    "torch.tensor(x)", "x.data_ptr()", "x.untyped_storage()", "torch.from_dlpack(x)", "torch.zeros(2).set_(x)",
    "x.as_strided((3, 2), (1, 1))", "scripted(x)", "scripted_by_row(x)", "gradient(scripted_by_row, x)", "module(x)",
    "torch.jit.trace(total, x)(x)", "traced(x)", "compiled(x)", "gradient(compiled_by_row, x)",
    "torch.func.vmap(total)(x)", "torch.func.grad(lambda x: x.square().mean())(x)", "torch.func.jacrev(total)(x)",
    "gradient(Centre.apply, x)", "gradient(Cube.apply, x)",
    "dgcl.nn.sync_gradients(module)", "dgcl.nn.loss(F.mse_loss)(x, x)", "dgcl.nn.accuracy(x, y)",
    "dgcl.graph_allgather(x)",
]  # fmt: skip


def run(line, data):
    return value_of(line, **HERE, x=data.x, y=data.y)


@pytest.mark.sample(3, whole=True)
@pytest.mark.parametrize("line", BYPASSES)
def test_bypass(line):
    for got in on_threads(run, [line], graph())[0]:
        if isinstance(got, Exception):
            assert isinstance(got, (ValueError, TypeError, RuntimeError)), repr(got)
            assert not isinstance(got, dgcl.CommError)
            assert "dgcl" in str(got)
        else:
            assert not differs(got, plain(run(line, graph())))

"""What goes past torch's functions, and would see a rank's memory, is exact or raises a sentence of dgcl's."""

import pytest
import torch
from torch import nn

import dgcl
import dgcl.nn
from tests.dgcl.rows.harness import differs, each_on_threads, plain
from tests.dgcl.rows.programs import graph


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


def gradient_of(function, x):
    x = x.clone().requires_grad_()
    (function(x) * torch.arange(6)).square().sum().backward()
    return x.grad


SCRIPTED_TOTAL, SCRIPTED = torch.jit.script(total), torch.jit.script(by_row)
TRACED_TOTAL = torch.jit.trace(total, torch.ones(4, 6))
MODULE = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.ReLU()).double())
BYPASSES = {
    "torch.tensor": lambda x: torch.tensor(x),
    "data_ptr": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage(),
    "from_dlpack": lambda x: torch.from_dlpack(x),
    "set_": lambda x: torch.zeros(2).set_(x),
    "as_strided": lambda x: x.as_strided((3, 2), (1, 1)),
    "script": lambda x: SCRIPTED_TOTAL(x),
    "script by row": lambda x: SCRIPTED(x),
    "gradient of a script": lambda x: gradient_of(SCRIPTED, x),
    "ScriptModule": lambda x: MODULE(x),
    "trace": lambda x: torch.jit.trace(total, x)(x),
    "traced": lambda x: TRACED_TOTAL(x),
    "vmap": lambda x: torch.func.vmap(total)(x),
    "func.grad": lambda x: torch.func.grad(lambda x: x.square().mean())(x),
    "func.jacrev": lambda x: torch.func.jacrev(total)(x),
    "func.jvp": lambda x: torch.func.jvp(total, (x,), (x,))[1],
    "Function with a mean": lambda x: gradient_of(Centre.apply, x),
    "Function by row": lambda x: gradient_of(Cube.apply, x),
    "compiled": lambda x: torch.compile(total, backend="eager")(x),
    "gradient of compiled": lambda x: gradient_of(torch.compile(by_row, backend="eager"), x),
    "sync_gradients": lambda x: dgcl.nn.sync_gradients(nn.Linear(6, 6)),
    "nn.loss": lambda x: dgcl.nn.loss(nn.functional.mse_loss)(x, x),
    "nn.accuracy": lambda x: dgcl.nn.accuracy(x, x[:, 0].long()),
    "graph_allgather": lambda x: dgcl.graph_allgather(x),
}


@pytest.mark.parametrize("name", BYPASSES)
def test_bypass(name):
    call = BYPASSES[name]
    for got in each_on_threads(lambda call, data: plain(call(data.x)), [call], graph())[0]:
        if isinstance(got, Exception):
            assert isinstance(got, (ValueError, TypeError, RuntimeError)), repr(got)
            assert not isinstance(got, dgcl.CommError)
            assert "dgcl" in str(got)
        else:
            assert not differs(got, plain(call(graph().x)))

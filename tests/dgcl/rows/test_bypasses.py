"""What goes past torch's functions, and would see a rank's memory, is exact or raises a sentence of dgcl's."""

import pytest
import torch
from torch import nn

import dgcl
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


def rowwise(x):
    return torch.relu(x) * 2 + 1


def gradient_of(function, x):
    x = x.clone().requires_grad_()
    (function(x) * torch.arange(6)).square().sum().backward()
    return x.grad


MUST_RAISE = {
    "torch.tensor": lambda x: torch.tensor(x),
    "data_ptr": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage(),
    "from_dlpack": lambda x: torch.from_dlpack(x),
    "set_": lambda x: torch.zeros(2).set_(x),
    "script of a mean": lambda x: SCRIPTED_TOTAL(x),
    "trace": lambda x: torch.jit.trace(total, x)(x),
    "a traced mean": lambda x: TRACED_TOTAL(x),
    "vmap": lambda x: torch.func.vmap(total)(x),
    "func.grad": lambda x: torch.func.grad(lambda x: x.square().mean())(x),
    "func.jacrev": lambda x: torch.func.jacrev(total)(x),
    "Function with a mean": lambda x: gradient_of(Centre.apply, x),
    "compiled": lambda x: torch.compile(total, backend="eager")(x),
}
SCRIPTED_TOTAL, SCRIPTED = torch.jit.script(total), torch.jit.script(rowwise)
TRACED_TOTAL = torch.jit.trace(total, torch.ones(4, 6))
MODULE = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.ReLU()).double())
MAY_RAISE = {
    "script row by row": lambda x: SCRIPTED(x),
    "gradient of a script": lambda x: gradient_of(SCRIPTED, x),
    "ScriptModule": lambda x: MODULE(x),
    "Function row by row": lambda x: gradient_of(Cube.apply, x),
    "compiled row by row": lambda x: torch.compile(rowwise, backend="eager")(x),
}


@pytest.mark.parametrize("name", MUST_RAISE | MAY_RAISE)
def test_bypass(name):
    call = (MUST_RAISE | MAY_RAISE)[name]
    (got,) = each_on_threads(lambda call, data: plain(call(data.x)), [call], graph())
    for each in got:
        if isinstance(each, Exception):
            assert isinstance(each, (ValueError, TypeError, RuntimeError)), repr(each)
            assert not isinstance(each, dgcl.CommError)
            assert "dgcl" in str(each)
        else:
            assert name in MAY_RAISE
            assert not differs(each, plain(call(graph().x)))

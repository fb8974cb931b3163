"""Checks tensor arguments, and has decorators for functions that torch.compile or torch.func must not trace.

``mark_of`` differs between communicators, so that a checkpointed layer that is recomputed on another one raises.

Called by `dgcl/communicator`, `dgcl/nn/layer_arguments`, `dgcl/aggregation/aggregator`, `dgcl/autograd/operators` and
others. Free to change while an argument that is no tensor is refused by name (`tests/dgcl/test_messages.py`), ``vmap``
is refused (`tests/dgcl/autograd/test_operators.py`), and so is a layer of another wiring (`tests/dgcl/test_rewire.py`).
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from dgcl.ranks.torch_private import functorch_level, untransformed_tensors

P = ParamSpec("P")
R = TypeVar("R")


def require_tensors(**arguments: Any) -> None:
    """Refuse an argument that is no tensor.

    Raises:
        TypeError: Naming the first of them.
    """
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} must be a torch tensor (got {type(value).__name__}); torch.as_tensor makes one"
            )
        if hasattr(value, "dgcl_one_device"):
            raise TypeError(
                f"{name} shows one device's rows and values, for which a function of dgcl is not needed: call torch's"
                " own; or take this rank's rows, dgcl.local(x)"
            )


def refuse_transforms(what: str) -> None:
    """Raise under ``torch.func``, of what needs the values of its rows.

    Raises:
        NotImplementedError: Saying so.
    """
    if functorch_level() is not None:
        raise NotImplementedError(
            f"{what} cannot run under torch.func (grad, vmap, jvp); use torch.autograd.grad"
        )


def beside_the_graph(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate what a compiler calls as it is; ``torch.compiler.disable`` would import the compiler at once."""

    @functools.wraps(function)
    def run(*args: P.args, **keywords: P.kwargs) -> R:
        call = torch.compiler.disable(function) if torch.compiler.is_compiling() else function
        return call(*args, **keywords)

    return run


def untransformed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate what connects ranks, whose tensors may outlive a transform of ``torch.func``, and need memory."""

    @functools.wraps(function)
    def run(*args: P.args, **keywords: P.kwargs) -> R:
        if functorch_level() is None:
            return function(*args, **keywords)
        with untransformed_tensors():
            return function(*args, **keywords)

    return beside_the_graph(run)


def mark_of(comm: Any) -> Tensor:
    """An empty tensor whose shape says which communicator a call is made on, to be saved for its backward.

    Where a checkpointed layer is computed again on another one, torch finds that the shape differs, and raises.
    """
    return torch.empty(0, comm._number, device="cpu")


def refuse_vmap(*call: Any) -> None:
    """The ``vmap`` of a function that exchanges rows."""
    raise NotImplementedError(
        "exchanges of rows cannot be mapped (torch.func.vmap): give the samples in one call, as rows of (samples, F)"
    )

"""Checks of the arguments of ``dgcl.nn``, whose errors name the argument; and the communicator that a layer uses.

:func:`current` is the communicator that was given, or this thread's current one.
Called by `attention`, `convolutions`, `losses`, `dgcl/offload/refusals`, `dgcl/distributed/distribute` and others. Free
to change while wrong arguments raise with the argument's name and what came (`tests/dgcl/nn/test_drop_in_layers.py`,
`tests/dgcl/nn/test_losses.py`), and slices of rows are refused (`tests/dgcl/grid/test_slices.py`).
"""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from dgcl.communicator import Communicator, given_or_current
from dgcl.ranks.tensors import require_tensors


def current(comm: Communicator | None) -> Communicator:
    """The communicator that is given, or this thread's current one.

    Raises:
        TypeError: It is none.
    """
    if isinstance(comm, Tensor):
        raise TypeError(
            "comm must be a dgcl.Communicator, which has the edges (got a tensor); leave edge_index out"
        )
    comm = given_or_current(comm)
    comm.require_current("dgcl.nn")
    return comm


def require_whole_rows(comm: Communicator, rows: Tensor) -> None:
    """Refuse slices of rows, on a grid.

    Raises:
        ValueError: There are as many rows as this rank has slices.
    """
    if comm.are_slices(len(rows)):
        raise ValueError(
            f"outputs must be whole rows of the {comm.num_owned} vertices of rank {comm.rank}, and {len(rows)} are"
            " those of its slices: bring them back with comm.rows first"
        )


def require_floats(**arguments: Any) -> None:
    """Refuse what is no tensor of floating point.

    Raises:
        TypeError: Naming the first of them.
    """
    require_tensors(**arguments)
    for name, value in arguments.items():
        if not value.is_floating_point():
            raise TypeError(f"{name} must be floating point (got {value.dtype}); convert it first")


def require_module(module: Any, name: str = "model") -> None:
    """Refuse what is no module; the argument is called ``name``.

    Raises:
        TypeError: Naming what came.
    """
    if not isinstance(module, Module):
        raise TypeError(f"{name} must be a torch.nn.Module (got {type(module).__name__})")


def require_parameters(model: Any) -> list[Parameter]:
    """The parameters of a model, or those that are given.

    Raises:
        TypeError: They are neither.
    """
    candidates = model.parameters() if isinstance(model, Module) else model
    return require_list(candidates, "model must be a torch.nn.Module, or a list of its parameters")


def require_list(values: Any, what: str) -> list[Any]:
    """The tensors of a list, or of what else gives some.

    Raises:
        TypeError: It begins with ``what``: these are none.
    """
    is_list = isinstance(values, Iterable) and not isinstance(values, Tensor)
    tensors: list[Any] = list(values) if is_list else [values]
    for each in tensors:
        if not (is_list and isinstance(each, Tensor)):
            raise TypeError(f"{what} (got {type(each).__name__})")
    return tensors


def require_integers(**arguments: Any) -> None:
    """Refuse what is no integer.

    Raises:
        TypeError: Naming the first of them.
    """
    _require("an integer", Integral, arguments)


def require_dense(**arguments: Tensor) -> None:
    """Refuse sparse tensors.

    Raises:
        ValueError: Naming the first of them.
    """
    for name, value in arguments.items():
        if value.layout != torch.strided:
            raise ValueError(f"{name} must be a dense tensor (got {value.layout}); call .to_dense()")


def require_numbers(**arguments: Any) -> None:
    """Refuse what is no real number.

    Raises:
        TypeError: Naming the first of them.
    """
    _require("a number", Real, arguments)


def _require(what: str, kind: type, arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TypeError(f"{name} must be {what} (got {value!r})")

"""Calls of ``torch.nn.functional.dropout`` inside a distributed model, which drop by vertex or by edge."""

from types import CodeType, FunctionType

import torch
from torch import Tensor
from torch.nn import functional

from dgcl.nn.vertex_dropout import dropout, has_edge_rows

DROPOUTS = {functional.dropout, torch.dropout}


def dropout_of_rows(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool | None = None
) -> Tensor:
    """What a call of one of them calls in a distributed model."""
    out = dropout(input, p, bool(training if train is None else train), edges=has_edge_rows(input))
    return input.copy_(out) if inplace and out is not input else out


def own_functions(kind: type) -> dict[str, FunctionType]:
    """The functions of a class, outside of torch's own."""
    return {
        name: value
        for base in reversed(kind.__mro__)
        if not base.__module__.startswith("torch.")
        for name, value in vars(base).items()
        if isinstance(value, FunctionType)
    }


def dropping(kind: type) -> dict[str, FunctionType]:
    """Those of them that call something named dropout."""
    return {name: value for name, value in own_functions(kind).items() if _mentions_dropout(value.__code__)}


def _mentions_dropout(code: CodeType) -> bool:
    """Whether code, or a function in it, uses a name with dropout."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return any("dropout" in name for name in code.co_names) or any(map(_mentions_dropout, inner))

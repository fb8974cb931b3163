"""Calls of ``torch.nn.functional.dropout`` inside a distributed model, which drop by vertex or by edge."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dgcl.nn.vertex_dropout import dropout, has_edge_rows

_DROPOUTS = {functional.dropout, torch.dropout}
_OTHERS = {
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
}


def replaced(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """What a call of ``func`` calls in a distributed model.

    Raises:
        ValueError: A dropout that cannot be made one by vertex.
    """
    if func in _DROPOUTS:
        return _dropout
    if func not in _OTHERS:
        return func
    name = func.__name__
    if args[2] if len(args) > 2 else kwargs.get("training", "alpha" not in name):
        raise ValueError(
            f"torch.nn.functional.{name} draws other numbers on each rank; take torch.nn.functional"
            ".dropout, which a distributed model calls by vertex"
        )
    return func


def _dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool | None = None
) -> Tensor:
    out = dropout(input, p, bool(training if train is None else train), edges=has_edge_rows(input))
    return input.copy_(out) if inplace and out is not input else out


def dropping(kind: type) -> dict[str, FunctionType]:
    """The functions of a class, outside of torch's own, that call something named dropout."""
    functions = {
        name: value
        for base in reversed(kind.__mro__)
        if not base.__module__.startswith("torch.")
        for name, value in vars(base).items()
        if isinstance(value, FunctionType)
    }
    return {name: value for name, value in functions.items() if mentions_dropout(value.__code__)}


def mentions_dropout(code: CodeType) -> bool:
    """Whether code, or a function in it, uses a name with dropout."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return any("dropout" in name for name in code.co_names) or any(map(mentions_dropout, inner))

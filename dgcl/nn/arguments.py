"""Arguments of another type than the functions of ``dgcl.nn`` take, by their names."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module

__all__ = ["require_floats", "require_module", "require_tensors"]


def require_tensors(**given: Any) -> None:
    """Refuse an argument that is no tensor; None is what was left out.

    Raises:
        TypeError: Naming the first of them.
    """
    for name, value in given.items():
        if not (value is None or isinstance(value, Tensor)):
            raise TypeError(
                f"{name} must be a torch tensor (got {type(value).__name__}); torch.as_tensor makes one"
            )


def require_floats(x: Tensor) -> None:
    """Refuse rows that a normalisation would round to integers.

    Raises:
        TypeError: Naming their type.
    """
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point (got {x.dtype}); convert it first")


def require_module(model: Any) -> None:
    """Refuse a model that is no module.

    Raises:
        TypeError: Naming what came.
    """
    if not isinstance(model, Module):
        raise TypeError(f"model must be a torch.nn.Module (got {type(model).__name__})")

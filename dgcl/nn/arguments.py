"""Arguments of another type than the functions of ``dgcl.nn`` take, by their names."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from torch import Tensor
from torch.nn import Module

__all__ = [
    "require_floats",
    "require_integers",
    "require_module",
    "require_numbers",
    "require_tensors",
    "require_widths",
]


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


def require_module(module: Any, name: str = "model") -> None:
    """Refuse what is no module; the argument is called ``name``.

    Raises:
        TypeError: Naming what came.
    """
    if not isinstance(module, Module):
        raise TypeError(f"{name} must be a torch.nn.Module (got {type(module).__name__})")


def require_integers(**given: Any) -> None:
    """Refuse what is no integer.

    Raises:
        TypeError: Naming the first of them.
    """
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be an integer (got {value!r})")


def require_numbers(**given: Any) -> None:
    """Refuse what is no real number.

    Raises:
        TypeError: Naming the first of them.
    """
    for name, value in given.items():
        if not isinstance(value, Real):
            raise TypeError(f"{name} must be a number (got {value!r})")


def require_widths(**given: Any) -> None:
    """Refuse numbers of columns that are none.

    Raises:
        ValueError: Naming the first of them.
    """
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise ValueError(f"{name} must be a number of columns, 0 or more (got {value!r})")

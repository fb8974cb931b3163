"""Tensor arguments: whether they are tensors, traced by a compiler or torch.func, or of which communicator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgcl.ranks.torch_private import functorch_level

__all__ = ["is_transformed", "mark_of", "require_tensors"]


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


def is_transformed() -> bool:
    """Whether the call runs in a compiler or under ``torch.func``, where tensors need not have values."""
    return torch.compiler.is_compiling() or functorch_level() is not None


def mark_of(comm: Any) -> Tensor:
    """An empty tensor whose shape says which communicator a call is made on, to be saved for its backward.

    Where a checkpointed layer is computed again on another one, torch finds that the shape differs, and raises.
    """
    return torch.empty(0, comm._number, device="cpu")

"""Arguments that must be tensors, by their names."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["require_tensors"]


def require_tensors(**given: Any) -> None:
    """Refuse an argument that is no tensor.

    Raises:
        TypeError: Naming the first of them.
    """
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} must be a torch tensor (got {type(value).__name__}); torch.as_tensor makes one"
            )

"""Inference of a model: in evaluation mode, without gradients."""

from collections.abc import Callable
from typing import Any

import torch


def evaluate(model: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``model(*arguments)``; its parts are in training again afterwards where they were.

    Raises:
        TypeError: It cannot be called.
    """
    if not callable(model):
        raise TypeError(f"model must be a torch.nn.Module or a function (got {type(model).__name__})")
    parts = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    training = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        with torch.no_grad():
            return model(*arguments)
    finally:
        for part, before in zip(parts, training, strict=True):
            part.training = before

"""Functions of autograd that have a first derivative and no second one, and say so.

torch's decorator of this name refuses a second derivative in ``backward()`` alone. ``torch.autograd.grad`` asks for the
paths to its inputs, of which what refuses is none: other paths, of a residual connection for instance, then gave a
number without this one's part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["once_differentiable"]

Backward = Callable[..., tuple[Any, ...]]


def once_differentiable(what: str) -> Callable[[Backward], Backward]:
    """Decorate a backward, which returns a tuple, so that differentiating what it gives is an error.

    Args:
        what: What has no second derivative, for the message.
    """

    def decorate(backward: Backward) -> Backward:
        @functools.wraps(backward)
        def wrapper(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
            with torch.no_grad():
                found = backward(ctx, *grads)
            if not torch.is_grad_enabled():
                return found
            # All that the gradients may depend on: the error is on each path.
            sources = [x for x in (*grads, *ctx.saved_tensors) if x is not None and x.requires_grad]
            if not sources:
                return found
            return tuple(None if x is None else _Refusing.apply(what, x, *sources) for x in found)

        return wrapper

    return decorate


class _Refusing(torch.autograd.Function):
    """A gradient as it is, for the graph a function of what it may depend on."""

    @staticmethod
    def forward(ctx: Any, what: str, found: Tensor, *sources: Tensor) -> Tensor:
        ctx.what = what
        return found.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise RuntimeError(f"{ctx.what} can be differentiated once (a second derivative was asked for)")

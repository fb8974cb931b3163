"""A decorator for backward functions that makes a second derivative through them an error.

torch's own ``once_differentiable`` refuses only in ``backward()``: ``torch.autograd.grad`` finds another path,
such as a residual connection, and gives a number without this part.
Called by `aggregator`, `extremes`, `dgcl/autograd/pending`, `dgcl/nn/stack`, `dgcl/offload/layer_function` and others.
Free to change while first derivatives keep their bits, and a second one raises whatever other path there is
(`tests/dgcl/aggregation/test_once.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
                gradients = backward(ctx, *grads)
            if not torch.is_grad_enabled():
                return gradients
            # All that the gradients may depend on: the error is on each path.
            sources = [x for x in (*grads, *ctx.saved_tensors) if x is not None and x.requires_grad]
            if not sources:
                return gradients
            text = f"{what} can be differentiated once (a second derivative was asked for)"
            return tuple(None if x is None else refusing(text, x, *sources) for x in gradients)

        return wrapper

    return decorate


def refusing(text: str, result: Tensor, *sources: Tensor) -> Tensor:
    """The result as it is, for the graph a function of ``sources``, of which a gradient is an error that says this."""
    return _Refusing.apply(text, result, *sources)


class _Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, text: str, result: Tensor, *sources: Tensor) -> Tensor:
        ctx.text = text
        return result.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise RuntimeError(ctx.text)

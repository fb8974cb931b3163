"""Log-softmax and cross entropy of activations that are split by columns: 3 numbers of each row travel, not the row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgcl.bench.published.exchanges import mean_of_ranks
from dgcl.bench.published.split import SplitRows

__all__ = ["cross_entropy", "log_softmax"]


def log_softmax(x: Tensor, split: SplitRows, num_classes: int) -> Tensor:
    """``(n, slice width)`` logarithms of the softmax over whole rows of ``num_classes``; -inf beyond. Collective."""
    out: Tensor = _LogSoftmax.apply(x, split, num_classes)
    return out


def cross_entropy(
    logits: Tensor, split: SplitRows, num_classes: int, labels: Tensor, mask: Tensor | None = None
) -> Tensor:
    """The mean of all ranks, the same on each; its gradient is that of the whole graph's mean. Collective.

    Args:
        logits: ``(n, slice width)``.
        split: How they are split.
        num_classes: Columns of whole rows.
        labels: ``(n,)`` int64 classes of ``split.vertices``.
        mask: ``(n,)`` bool, the rows that count; default all.
    """
    scores, columns = log_softmax(logits, split, num_classes), split.columns(num_classes)
    counted = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    rows = torch.nonzero(counted & (labels >= columns.start) & (labels < columns.stop)).view(-1)
    own = -scores[rows, labels[rows] - columns.start].sum()
    return mean_of_ranks(own, counted.sum(dtype=torch.float64) / split.grid.slices, split.comm)


class _LogSoftmax(torch.autograd.Function):
    """Three numbers of each row are gathered along a row of ranks.

    They are its largest element, its sum of exponentials and, in the backward, its sum of gradients.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: SplitRows, num_classes: int) -> Tensor:
        columns = split.columns(num_classes)
        x = x.clone()
        x[:, columns.stop - columns.start :] = -torch.inf
        most = split.gather(x.amax(1, keepdim=True)).amax(1, keepdim=True)
        sums = split.gather((x - most).exp().sum(1, keepdim=True)).sum(1, keepdim=True)
        out = x - most - sums.log()
        ctx.split = split
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        total = ctx.split.gather(grad.sum(1, keepdim=True)).sum(1, keepdim=True)
        return grad - out.exp() * total, None, None

"""Computes cross entropy and accuracy over rows in host memory, a chunk of rows at a time.

Both are over the whole graph's vertices, and the same on every rank. Rows outside a mask, or with the label -100 as in
torch, do not count. Gradients go to host memory, too; 16-bit floats are summed in 32 bits.
Called by `offload`. Free to change while loss, gradients and accuracy are those of torch over all rows at once, and the
loss has torch's type (`tests/dgcl/offload/test_layer.py`).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dgcl.aggregation.once import once_differentiable
from dgcl.aggregation.sparse import sum_dtype
from dgcl.communicator import Communicator
from dgcl.nn.metrics import rows_that_count
from dgcl.offload.chunked_rows import ChunkedRows

#: Labels that do not count, as in torch.
IGNORED = -100


def chunked_cross_entropy(
    logits: ChunkedRows,
    labels: Tensor,
    mask: Tensor | None,
    comm: Communicator,
) -> Tensor:
    """The mean over the whole graph's vertices that count, the same on every rank. Collective.

    Args:
        logits: ``(num_owned, num_classes)`` in host memory.
        labels: ``(num_owned,)`` int64.
        mask: ``(num_owned,)`` bool; None: all rows count.
        comm: The communicator.

    Raises:
        ValueError: Shapes or types do not fit.
    """
    labels, mask = _checked(logits, labels, mask)
    wrong = (mask & ((labels < 0) | (labels >= logits.shape[1]))).nonzero().squeeze(1)
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"labels must be classes 0..{logits.shape[1] - 1}, the columns of the logits (got {int(labels[row])} in row"
            f" {row}; {len(wrong)} such labels on this rank); give the model more columns, or"
            f" leave rows out with mask= or labels of {IGNORED}"
        )
    return _CrossEntropy.apply(logits, labels, mask, comm)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: ChunkedRows,
        labels: Tensor,
        mask: Tensor,
        comm: Communicator,
    ) -> Tensor:
        wide = sum_dtype(logits.dtype)
        total, order = torch.zeros(2, dtype=torch.float64, device="cpu"), logits.order
        for rows in order.stretches:
            counts = mask[order.rows[rows]]
            which = slice(None) if counts.all() else counts
            some = order.host.look_at(logits.checked(), rows)[which].to(wide)
            total[0] += F.cross_entropy(some, labels[order.rows[rows]][which], reduction="sum").double()
            total[1] += counts.sum()
        value, count = comm.all_reduce_sum(total, "cross_entropy").unbind()
        ctx.save_for_backward(logits, labels, mask)
        ctx.count, ctx.order = float(count), order
        # As torch's: of 16 bits where the logits are, but not in mixed precision.
        return (value / count).to(wide if torch.is_autocast_enabled("cpu") else logits.dtype)

    @staticmethod
    @once_differentiable("Offload.cross_entropy")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, labels, mask = ctx.saved_tensors
        order, host = ctx.order, ctx.order.host
        memory = order.stored(logits)
        out = host.empty(tuple(logits.shape), logits.dtype, "gradients")
        scale = grad.to(sum_dtype(logits.dtype)) / ctx.count
        for rows in order.stretches:
            some = host.look_at(memory, rows).to(scale.dtype).softmax(1)
            counts = mask[order.rows[rows]]
            some[counts, labels[order.rows[rows]][counts]] -= 1
            some[~counts] = 0
            host.write(out, rows, some.mul_(scale).to(out.dtype))
        return ChunkedRows(out, order), None, None, None


def chunked_accuracy(
    logits: ChunkedRows,
    labels: Tensor,
    mask: Tensor | None,
    comm: Communicator,
) -> Tensor:
    """The fraction of vertices whose largest logit is that of their label; NaN if none counts. Collective."""
    labels, mask = _checked(logits, labels, mask)
    memory, order = logits.checked(), logits.order
    total = torch.zeros(2, dtype=torch.int64, device="cpu")
    for rows in order.stretches:
        counts = mask[order.rows[rows]]
        right = order.host.look_at(memory, rows).argmax(1) == labels[order.rows[rows]]
        total += torch.stack([(right & counts).sum(), counts.sum()])
    right, count = comm.all_reduce_sum(total, "accuracy").unbind()
    return right.double() / count.double()


def _checked(logits: ChunkedRows, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Labels, and which rows count, as they came: a copy in the order of host memory would not be in any limit."""
    mask = rows_that_count(logits, labels, mask)
    if labels.dtype != torch.int64:
        raise TypeError(f"labels must be int64 classes (got {labels.dtype}); call .long()")
    return labels.cpu(), (mask & (labels != IGNORED)).cpu()

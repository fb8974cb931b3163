"""Normalises rows in host memory by batch normalisation, with the statistics of the whole graph's rows.

A chunk of rows at a time, in several passes. Means are known before squared deviations are summed, which loses no
digits. As in torch the variance that divides is biased, and the running one is not.
Called by `offload`. Free to change while results, gradients and running statistics are those of
``torch.nn.BatchNorm1d`` on all rows at once, in training and evaluation (`tests/dgcl/offload/test_layer.py`).
"""

from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.once import once_differentiable
from dgcl.aggregation.sparse import sum_dtype
from dgcl.communicator import Communicator
from dgcl.nn.batch_norm import update_running
from dgcl.offload.chunked_rows import ChunkedRows, RowOrder


def chunked_batch_norm(
    norm: torch.nn.BatchNorm1d,
    x: ChunkedRows,
    comm: Communicator,
) -> Tensor:
    """Normalise rows as ``norm`` would those of the whole graph at once. Collective.

    Args:
        norm: ``torch.nn.BatchNorm1d`` or :class:`dgcl.nn.BatchNorm`; its running statistics are updated in training.
        x: ``(num_owned, C)`` in host memory.
        comm: The communicator.

    Raises:
        TypeError, ValueError: Another module, other rows, or one vertex in all.
    """
    if not isinstance(norm, torch.nn.BatchNorm1d):
        raise TypeError(f"norm must be a BatchNorm1d (got {type(norm).__name__})")
    if norm.weight is not None and norm.weight.device != x.device:
        raise ValueError(f"norm must be on the CPU, where rows of an Offload are (got {norm.weight.device})")
    if x.dim() != 2 or x.shape[1] != norm.num_features or not x.is_floating_point():
        raise ValueError(
            f"x must be floating point rows of {norm.num_features} features (got {x.dtype}, shape {tuple(x.shape)})"
        )
    learns = norm.training or not norm.track_running_stats
    if not learns:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, variance = norm.running_mean, norm.running_var
    elif comm.num_nodes == 1:
        raise ValueError("x must have more than one row over all ranks (got 1)")
    else:
        mean, variance = _statistics(x, comm)
        if norm.training and norm.track_running_stats:
            update_running(norm, mean, variance * (comm.num_nodes / (comm.num_nodes - 1)))
    inverse = torch.rsqrt(variance + norm.eps)
    return _Normalise.apply(x, norm.weight, norm.bias, mean, inverse, learns, comm)


def _some(x: ChunkedRows, rows: slice) -> Tensor:
    """A stretch of rows, in the type that sums have."""
    return x.order.host.look_at(x.checked(), rows).to(sum_dtype(x.dtype))


def _statistics(x: ChunkedRows, comm: Communicator) -> tuple[Tensor, Tensor]:
    """Mean and biased variance; squared deviations are summed after the means are known, which loses no digits."""
    total = torch.zeros(x.shape[1], dtype=sum_dtype(x.dtype), device="cpu")
    for rows in x.order.stretches:
        total += _some(x, rows).sum(0)
    mean = comm.all_reduce_sum(total, "batch_norm") / comm.num_nodes
    squares = torch.zeros_like(total)
    for rows in x.order.stretches:
        squares += (_some(x, rows) - mean).square().sum(0)
    return mean, comm.all_reduce_sum(squares, "batch_norm") / comm.num_nodes


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: ChunkedRows,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        inverse: Tensor,
        learns: bool,
        comm: Communicator,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean.clone(), inverse)
        ctx.learns, ctx.comm, ctx.order = learns, comm, x.order
        out = x.order.host.empty(tuple(x.shape), x.dtype)
        for rows in x.order.stretches:
            some = (_some(x, rows) - mean) * inverse
            some = some if weight is None or bias is None else some * weight + bias
            x.order.host.write(out, rows, some.to(x.dtype))
        return ChunkedRows(out, x.order)

    @staticmethod
    @once_differentiable("Offload.batch_norm")
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, weight, mean, inverse = ctx.saved_tensors
        order: RowOrder = ctx.order
        x, grad = (ChunkedRows(order.stored(rows), order) for rows in (x, grad))
        # of gradients, and of gradients times normalised rows
        sums = torch.zeros(2, x.shape[1], dtype=sum_dtype(x.dtype), device="cpu")
        for rows in order.stretches:
            some = _some(grad, rows)
            sums += torch.stack([some.sum(0), (some * ((_some(x, rows) - mean) * inverse)).sum(0)])
        of_weight, of_bias = (
            (None, None) if weight is None else (sums[1].to(weight.dtype), sums[0].to(weight.dtype))
        )
        if not ctx.needs_input_grad[0]:
            return None, of_weight, of_bias, None, None, None, None
        means = torch.zeros_like(sums)
        if ctx.learns:
            means = ctx.comm.all_reduce_sum(sums, "batch_norm") / ctx.comm.num_nodes
        scale = inverse if weight is None else inverse * weight
        out = order.host.empty(tuple(x.shape), x.dtype, "gradients")
        for rows in order.stretches:
            normal = (_some(x, rows) - mean) * inverse
            order.host.write(
                out, rows, ((_some(grad, rows) - means[0] - normal * means[1]) * scale).to(x.dtype)
            )
        return ChunkedRows(out, order), of_weight, of_bias, None, None, None, None

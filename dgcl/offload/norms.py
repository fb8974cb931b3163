"""Batch normalisation over rows in host memory: statistics of all rows first, then the rows, a chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.once import once_differentiable
from dgcl.communicator import Communicator
from dgcl.nn.batch_norm import update_running
from dgcl.offload.chunked_rows import ChunkedRows, RowOrder
from dgcl.offload.host_store import HostStore

__all__ = ["chunked_batch_norm"]


def chunked_batch_norm(
    norm: torch.nn.BatchNorm1d,
    x: ChunkedRows,
    stretches: Sequence[slice],
    store: HostStore,
    comm: Communicator,
) -> Tensor:
    """Normalise rows as ``norm`` would those of the whole graph at once. Collective.

    Args:
        norm: ``torch.nn.BatchNorm1d`` or :class:`dgcl.nn.BatchNorm`; its running statistics are updated in training.
        x: ``(num_owned, C)`` in host memory.
        stretches: Of host memory, that are in memory at a time.
        store: Where they are.
        comm: The communicator.

    Raises:
        TypeError, ValueError: Another module, other rows, or one vertex in all.
    """
    if not isinstance(norm, torch.nn.BatchNorm1d):
        raise TypeError(f"norm must be a BatchNorm1d (got {type(norm).__name__})")
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
        mean, variance = _statistics(x.checked(), stretches, store, comm)
        if norm.training and norm.track_running_stats:
            update_running(norm, mean, variance * (comm.num_nodes / (comm.num_nodes - 1)))
    inverse = torch.rsqrt(variance + norm.eps)
    out: Tensor = _Normalise.apply(x, norm.weight, norm.bias, mean, inverse, learns, (stretches, store, comm))
    return out


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _statistics(
    x: Tensor, stretches: Sequence[slice], store: HostStore, comm: Communicator
) -> tuple[Tensor, Tensor]:
    """Mean and biased variance; squared deviations are summed after the means are known, which loses no digits."""
    total = torch.zeros(x.shape[1], dtype=_wide(x), device="cpu")
    for rows in stretches:
        total += store.look_at(x, rows).to(total.dtype).sum(0)
    mean = comm.all_reduce_sum(total, "batch_norm") / comm.num_nodes
    squares = torch.zeros_like(total)
    for rows in stretches:
        squares += (store.look_at(x, rows).to(total.dtype) - mean).square().sum(0)
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
        where: tuple[Sequence[slice], HostStore, Communicator],
    ) -> Tensor:
        stretches, store, _ = where
        ctx.save_for_backward(x, weight, mean.clone(), inverse)
        ctx.learns, ctx.where = learns, where
        out = store.empty(tuple(x.shape), x.dtype)
        for rows in stretches:
            some = (store.look_at(x.checked(), rows).to(_wide(x)) - mean) * inverse
            some = some if weight is None or bias is None else some * weight + bias
            store.write(out, rows, some.to(x.dtype))
        return ChunkedRows(out, x.order)

    @staticmethod
    @once_differentiable("Offload.batch_norm")
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        rows_of_x, weight, mean, inverse = ctx.saved_tensors
        order: RowOrder = rows_of_x.order
        x, grad = rows_of_x.checked(), order.stored(grad)
        stretches, store, comm = ctx.where
        sums = torch.zeros(
            2, x.shape[1], dtype=_wide(x), device="cpu"
        )  # of gradients, and of gradients times normalised rows
        for rows in stretches:
            some, normal = _pair(store, x, grad, rows, mean, inverse)
            sums += torch.stack([some.sum(0), (some * normal).sum(0)])
        of_weight, of_bias = (
            (None, None) if weight is None else (sums[1].to(weight.dtype), sums[0].to(weight.dtype))
        )
        if not ctx.needs_input_grad[0]:
            return None, of_weight, of_bias, None, None, None, None
        means = torch.zeros_like(sums)
        if ctx.learns:
            means = comm.all_reduce_sum(sums, "batch_norm") / comm.num_nodes
        scale = inverse if weight is None else inverse * weight
        out = store.empty(tuple(x.shape), x.dtype, "gradients")
        for rows in stretches:
            some, normal = _pair(store, x, grad, rows, mean, inverse)
            store.write(out, rows, ((some - means[0] - normal * means[1]) * scale).to(x.dtype))
        return ChunkedRows(out, order), of_weight, of_bias, None, None, None, None


def _pair(
    store: HostStore, x: Tensor, grad: Tensor, rows: slice, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of some rows, and the rows normalised."""
    wide = _wide(x)
    return store.look_at(grad, rows).to(wide), (store.look_at(x, rows).to(wide) - mean) * inverse

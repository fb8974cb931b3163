"""``BatchNorm1d`` with means and variances over the vertices of all ranks.

Two sums over ranks: of values, then of squared deviations, which loses no digits as one sum of squares would. It takes
owned rows alone, before the exchange, so that each vertex counts once. :func:`normalised` is the arithmetic for others.
Called by users (``dgcl.nn.BatchNorm``), `dgcl/offload/norms` and `dgcl/rows/reductions`. Free to change while outputs,
first and second derivatives and running statistics are those of ``BatchNorm1d`` on all rows
(`tests/dgcl/nn/test_batch_norm.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dgcl.communicator import Communicator
from dgcl.nn.layer_arguments import current, require_floats, require_numbers
from dgcl.nn.reduce import named_sum
from dgcl.topology.checks import check_index


class BatchNorm(torch.nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` over the rows of all ranks.

    Outputs, gradients and running statistics are those of one device.

    Same arguments, parameters and state as ``BatchNorm1d``, so a checkpoint loads into either. In training
    the forward is collective (two small sums over ranks: the means, then the squared deviations from them,
    which loses no digits as one sum of squares would), and so is its backward. In evaluation rows are
    independent, and nothing is exchanged.

    Takes this rank's owned rows, (num_owned, C) or (num_owned, C, L): apply it before the exchange, where
    every vertex counts once.

    Args:
        num_features: C.
        eps, momentum, affine, track_running_stats, device, dtype: as in ``BatchNorm1d``.
        comm: the communicator; default the current one at each call.
    """

    dgcl_base = torch.nn.BatchNorm1d  # what it is on one device

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        comm: Communicator | None = None,
    ) -> None:
        check_index(num_features, "num_features")
        require_numbers(eps=eps, momentum=0.0 if momentum is None else momentum)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self._comm = comm

    def forward(self, x: Tensor) -> Tensor:
        """Normalise this rank's owned rows."""
        if not self.training and self.track_running_stats:
            return super().forward(x)
        comm = current(self._comm)
        require_floats(x=x)
        if x.dim() not in (2, 3) or x.shape[1] != self.num_features:
            raise ValueError(
                f"x must have shape (num_owned, {self.num_features}) or (num_owned, {self.num_features}, L) (got"
                f" {tuple(x.shape)})"
            )
        if len(x) != comm.num_owned:
            raise ValueError(
                f"x must hold the {comm.num_owned} owned rows of this rank (got {len(x)}): a halo row is"
                " counted by the rank that owns it; normalise before dgcl.graph_allgather, on a grid before"
                " comm.slices or after comm.rows"
            )
        count = comm.num_nodes * math.prod(x.shape[2:])  # values in each channel, on all ranks
        if count == 1:
            raise ValueError("x must have more than one value in each channel over all ranks (got 1)")

        def sums(share: Tensor) -> Tensor:
            return named_sum(share, comm, "BatchNorm")

        def update(mean: Tensor, variance: Tensor) -> None:
            if self.training and self.track_running_stats:
                update_running(self, mean, variance)

        return normalised(x, self.weight, self.bias, self.eps, count, sums, update)


def normalised(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    count: int,
    sums: Callable[[Tensor], Tensor],
    update: Callable[[Tensor, Tensor], None],
) -> Tensor:
    """Rows (rows, C, *) as batch normalisation gives them in training, in two passes.

    Args:
        x, weight, bias, eps: As of ``torch.nn.functional.batch_norm``.
        count: Values in each channel, on all ranks.
        sums: The sum over ranks.
        update: Gets the means and unbiased variances, (C,), for running statistics.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    rows, channels = [dim for dim in range(x.dim()) if dim != 1], [-1, *[1] * (x.dim() - 2)]
    mean = sums(wide.sum(rows)) / count
    centred = wide - mean.view(channels)
    variance = sums(centred.square().sum(rows)) / count
    update(mean.detach(), variance.detach() * (count / (count - 1)))
    out = centred * torch.rsqrt(variance + eps).view(channels)
    out = out if weight is None else out * weight.view(channels)
    return (out if bias is None else out + bias.view(channels)).to(x.dtype)


def update_running(norm: Any, mean: Tensor, unbiased_variance: Tensor) -> None:
    """As ``BatchNorm1d``, which normalises by the biased variance and remembers the unbiased one."""
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        factor = 1.0 / norm.num_batches_tracked.double() if norm.momentum is None else norm.momentum
        for running, value in ((norm.running_mean, mean), (norm.running_var, unbiased_variance)):
            running.copy_(running * (1 - factor) + value * factor)

"""Batch normalisation with the statistics of the whole graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dgcl.nn.arguments import current, require_floats, require_module, require_numbers, require_widths
from dgcl.nn.core_rows import first_rows
from dgcl.nn.reduce import named_sum

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

__all__ = ["BatchNorm"]


class BatchNorm(torch.nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` over the rows of all ranks.

    Outputs, gradients and running statistics are those of one device.

    Same arguments, parameters and state as ``BatchNorm1d``, so a checkpoint loads into either. In training
    the forward is collective (two small sums over ranks: the means, then the squared deviations from them,
    which loses no digits as one sum of squares would), and so is its backward. In evaluation rows are
    independent, and nothing is exchanged.

    Takes this rank's owned rows, (num_owned, C) or (num_owned, C, L): apply it before the exchange, where
    every vertex counts once. Replicas (:mod:`dgcl.replication`) are normalised, and do not count.

    Args:
        num_features: C.
        eps, momentum, affine, track_running_stats, device, dtype: as in ``BatchNorm1d``.
        comm: the communicator; default the current one at each call.
    """

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
        require_widths(num_features=num_features)
        require_numbers(eps=eps, **({} if momentum is None else {"momentum": momentum}))
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self._comm = comm

    @classmethod
    def convert(cls, model: torch.nn.Module, *, comm: Communicator | None = None) -> torch.nn.Module:
        """Put this in the place of every ``torch.nn.BatchNorm1d`` in a model, as ``SyncBatchNorm`` does it.

        For layers that make one themselves, which would silently see this rank's rows alone::

            model = dgcl.nn.BatchNorm.convert(model)    # GENConv, MLP and BatchNorm of PyG, ...

        Args:
            model: changed in place; its parameters and buffers stay the same tensors.
            comm: the communicator; default the current one at each call.

        Returns:
            ``model``, or what replaces it if it is a ``BatchNorm1d`` itself.
        """
        require_module(model)
        converted: dict[torch.nn.Module, torch.nn.Module] = {
            norm: cls._like(norm, comm) for norm in model.modules() if type(norm) is torch.nn.BatchNorm1d
        }
        for parent in list(model.modules()):
            for name, child in parent._modules.items():
                if child in converted:
                    parent.add_module(name, converted[child])
        return converted.get(model, model)

    @classmethod
    def _like(cls, norm: torch.nn.BatchNorm1d, comm: Communicator | None) -> BatchNorm:
        out = cls(norm.num_features, norm.eps, norm.momentum, False, False, comm=comm)
        out.__dict__.update({**norm.__dict__, "_comm": comm})
        return out

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
        messages = comm.message_edges is not None  # rows of edges, each on one rank
        if len(x) != comm.num_owned and not messages:
            raise ValueError(
                f"x must hold the {comm.num_owned} owned rows of this rank (got {len(x)}): a halo row is"
                " counted by the rank that owns it; normalise before dgcl.graph_allgather, on a grid before"
                " comm.slices or after comm.rows"
            )
        rows = [dim for dim in range(x.dim()) if dim != 1]
        channels = [1, -1, *[1] * (x.dim() - 2)]
        count = comm.num_nodes * math.prod(x.shape[2:])  # values in each channel, on all ranks
        core = len(x) if messages else comm.num_core
        if messages:
            count = int(
                named_sum(x.new_tensor([x.numel() // x.shape[1]], dtype=torch.float64), comm, "BatchNorm")
            )
        if count == 1:
            raise ValueError("x must have more than one value in each channel over all ranks (got 1)")

        wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        mean = named_sum(first_rows(wide, core).sum(rows), comm, "BatchNorm") / count
        centred = wide - mean.view(channels)
        squares = first_rows(centred, core).square().sum(rows)
        variance = named_sum(squares, comm, "BatchNorm") / count
        if self.training and self.track_running_stats:
            update_running(self, mean.detach(), variance.detach() * (count / (count - 1)))
        out = centred * torch.rsqrt(variance + self.eps).view(channels)
        if self.affine:
            out = out * self.weight.view(channels) + self.bias.view(channels)
        return out.to(x.dtype)


def update_running(norm: torch.nn.BatchNorm1d, mean: Tensor, unbiased_variance: Tensor) -> None:
    """As ``BatchNorm1d``, which normalises by the biased variance and remembers the unbiased one."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        factor = 1.0 / norm.num_batches_tracked.double() if norm.momentum is None else norm.momentum
        for running, value in ((norm.running_mean, mean), (norm.running_var, unbiased_variance)):
            running.copy_(running * (1 - factor) + value * factor)

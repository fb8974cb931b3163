"""Normalisation over all vertices of the graph, in training and evaluation alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from dgcl.nn.layer_arguments import current, require_floats, require_numbers
from dgcl.nn.reduce import mean_of_rows
from dgcl.topology.checks import check_index

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


class GraphNorm(Module):
    """Normalise columns over the rows of all ranks, with a learned share of the mean: PyG's ``GraphNorm``.

    The graph is one graph, as with PyG's without ``batch`` (Cai et al., 2021). Parameters ``weight``, ``bias`` and
    ``mean_scale`` (in_channels,), as there. Takes this rank's owned rows, before the exchange; forward and backward
    are collective, in evaluation too.

    Args:
        in_channels: Columns.
        eps: Added to the variance.
        comm: The communicator; default the current one at each call.
    """

    def __init__(self, in_channels: int, eps: float = 1e-5, *, comm: Communicator | None = None) -> None:
        super().__init__()
        check_index(in_channels, "in_channels")
        require_numbers(eps=eps)
        self.in_channels, self.eps, self._comm = in_channels, eps, comm
        self.weight = Parameter(torch.ones(in_channels))
        self.bias = Parameter(torch.zeros(in_channels))
        self.mean_scale = Parameter(torch.ones(in_channels))

    def forward(self, x: Tensor) -> Tensor:
        """``(num_owned, in_channels)`` to the same shape."""
        comm = current(self._comm)
        require_floats(x=x)
        if x.shape != (comm.num_owned, self.in_channels):
            raise ValueError(
                f"x must hold the owned rows of this rank, ({comm.num_owned}, {self.in_channels}) (got"
                f" {tuple(x.shape)}): normalise before dgcl.graph_allgather, on a grid before"
                " comm.slices or after comm.rows"
            )
        wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        mean = mean_of_rows(wide, comm, "GraphNorm")
        centred = wide - mean * self.mean_scale
        variance = mean_of_rows(centred.square(), comm, "GraphNorm")
        return (self.weight * centred / (variance + self.eps).sqrt() + self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"{self.in_channels}, eps={self.eps}"

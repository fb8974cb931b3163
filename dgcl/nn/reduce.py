"""A sum over ranks that gradients pass through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgcl.nn.arguments import current
from dgcl.ranks.tensors import require_tensors

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

__all__ = ["global_sum"]


def global_sum(x: Tensor, *, comm: Communicator | None = None) -> Tensor:
    """The sum of ``x`` over all ranks, added in rank order, with the same bits on every rank.

    Differentiable: every rank's result depends on every rank's ``x``, so the gradient of ``x`` is the sum over ranks
    of the gradients of the results, and the backward is collective too. Where it leads into a loss, let every rank
    take its own share of that loss (its own rows), as the losses of :mod:`dgcl.nn` do, not the whole of it.

    Sums over a rank's rows must leave out replicas (:mod:`dgcl.replication`): sum ``rows[:comm.num_core]``.

    For small tensors: statistics, pooled rows. Rows of vertices travel by :func:`dgcl.graph_allgather`.

    Args:
        x: any shape, the same on every rank; 16-bit floats are summed in float32 and rounded once.
        comm: the communicator; default the current one.
    """
    require_tensors(x=x)
    return named_sum(x, current(comm), "global_sum")


def named_sum(x: Tensor, comm: Communicator, name: str) -> Tensor:
    """:func:`global_sum` under the name of another collective, which messages mention."""
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return comm.all_reduce_sum(x.to(wide), name).to(x.dtype)

"""Rows of all ranks' vertices pooled by graph, or all to one: the readout of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgcl.nn.layer_arguments import current, require_dense, require_floats
from dgcl.nn.own_rows import require_whole_rows
from dgcl.nn.reduce import named_sum
from dgcl.ranks.tensors import beside_the_graph, refuse_transforms, require_tensors
from dgcl.topology.checks import check_index

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


def global_add_pool(
    x: Tensor, batch: Tensor | None = None, size: int | None = None, *, comm: Communicator | None = None
) -> Tensor:
    """The sum of the rows of each graph over all ranks, as PyG's function of this name on one device. Collective.

    Every rank gets all of them: a loss of what follows is ``dgcl.nn.loss(fn, on_every_rank=True)``.

    Args:
        x: (num_owned, *F), this rank's rows.
        batch: (num_owned,) int64, the graph of each; None: there is one.
        size: the number of graphs; default the largest in ``batch`` on any rank, plus one.
        comm: the communicator; default the current one.

    Returns:
        (size, *F).
    """
    x, batch, size, comm = _checked(x, batch, size, comm)
    return named_sum(_add(x, batch, size), comm, "global_add_pool")


def global_mean_pool(
    x: Tensor, batch: Tensor | None = None, size: int | None = None, *, comm: Communicator | None = None
) -> Tensor:
    """The mean of the rows of each graph, 0 of none.

    Args:
        x, batch, size, comm: as of :func:`global_add_pool`.
    """
    x, batch, size, comm = _checked(x, batch, size, comm)
    total = named_sum(_add(x, batch, size), comm, "global_mean_pool")
    return total / _count(torch.ones_like(x), batch, size, comm).clamp(min=1)


@beside_the_graph
def global_max_pool(
    x: Tensor, batch: Tensor | None = None, size: int | None = None, *, comm: Communicator | None = None
) -> Tensor:
    """The maximum of the rows of each graph, column by column, 0 of none.

    Rows that are largest together share the gradient, as in torch's ``amax``.

    Args:
        x, batch, size, comm: as of :func:`global_add_pool`.
    """
    refuse_transforms("global_max_pool")
    x, batch, size, comm = _checked(x, batch, size, comm)
    with comm.control.collective("global_max_pool"):
        own = x.new_full((size, *x.shape[1:]), -torch.inf).detach()
        places = batch.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        own.scatter_reduce_(0, places, x.detach(), "amax")
        largest = torch.stack([each.to(x.device) for each in comm.control.exchange(own.cpu())]).amax(0)
    is_largest = x.detach() == largest[batch]
    share = torch.where(is_largest, x, 0.0) / _count(is_largest.to(x.dtype), batch, size, comm)[batch].clamp(
        min=1
    )
    total = named_sum(_add(share, batch, size), comm, "global_max_pool")
    return torch.where(largest == -torch.inf, 0.0, largest) + (
        total - total.detach()
    )  # the maximum to the bit


def _checked(
    x: Tensor, batch: Tensor | None, size: int | None, comm: Communicator | None
) -> tuple[Tensor, Tensor, int, Communicator]:
    comm = current(comm)
    require_floats(x=x)
    require_dense(x=x)
    if x.dim() == 0:
        raise ValueError("x must have a row for each vertex (got a scalar)")
    batch = torch.zeros(len(x), dtype=torch.int64, device=x.device) if batch is None else batch
    require_tensors(batch=batch)
    if batch.dtype != torch.int64 or batch.shape != x.shape[:1]:
        raise ValueError(
            f"batch must be int64 with shape ({len(x)},), the graph of each row (got {batch.dtype}, shape"
            f" {tuple(batch.shape)}): dgcl.dispatch hands it out with the other rows"
        )
    require_whole_rows(comm, x)
    size = _size(batch, comm) if size is None else size
    return x, batch, check_index(size, "size", most=2**40), comm


@beside_the_graph
def _size(batch: Tensor, comm: Communicator) -> int:
    largest = int(batch.max()) if len(batch) else -1
    with comm.control.collective("pool"):
        return max(comm.control.exchange(largest)) + 1


def _add(x: Tensor, batch: Tensor, size: int) -> Tensor:
    return x.new_zeros((size, *x.shape[1:])).index_add(0, batch, x)


def _count(x: Tensor, batch: Tensor, size: int, comm: Communicator) -> Tensor:
    return named_sum(_add(x.detach(), batch, size), comm, "pool")

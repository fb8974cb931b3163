"""A differentiable sum over ranks, whose gradient is the sum over ranks of the gradients of the results.

So the backward is collective, too. What all ranks compute alike of a sum would count once for each rank: then take
``on_every_rank=True`` or :func:`count_once`, which divide the gradient by the number of ranks.
Called by users (``dgcl.nn.global_sum``), `batch_norm` and `losses`. Free to change while sums have the same bits on
every rank, gradients are those of one device, and 16-bit floats are rounded once (`tests/dgcl/nn/test_reduce.py`).
"""

from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.sparse import sum_dtype
from dgcl.communicator import Communicator
from dgcl.nn.layer_arguments import current
from dgcl.ranks.tensors import require_tensors
from dgcl.topology.checks import check_flag


def global_sum(x: Tensor, *, on_every_rank: bool = False, comm: Communicator | None = None) -> Tensor:
    """The sum of ``x`` over all ranks, added in rank order, with the same bits on every rank.

    Differentiable: every rank's result depends on every rank's ``x``, so the gradient of ``x`` is the sum over ranks
    of the gradients of the results, and the backward is collective too. So what every rank computes of it alike would
    count once a rank: a loss of it is ``dgcl.nn.loss(fn, on_every_rank=True)``; what it is differentiated for
    otherwise, as an energy for its forces, says so here, and its own loss is a plain one::

        energy = dgcl.nn.global_sum(energies.sum(), on_every_rank=True)
        (gradient,) = torch.autograd.grad(energy, places, create_graph=True)

    For small tensors: statistics, pooled rows. Rows of vertices travel by :func:`dgcl.graph_allgather`.

    Args:
        x: any shape, the same on every rank; 16-bit floats are summed in float32 and rounded once.
        on_every_rank: all ranks do the same with the result, and all of that together counts once.
        comm: the communicator; default the current one.
    """
    require_tensors(x=x)
    name = "global_sum" + ", on_every_rank=True" * check_flag(on_every_rank, "on_every_rank")
    total = named_sum(x, current(comm), name)
    return count_once(total, comm=comm) if on_every_rank else total


def count_once(x: Tensor, *, comm: Communicator | None = None) -> Tensor:
    """``x``, which every rank has computed alike, for use on every rank alike that counts once.

    For the end of a computation that all ranks repeat, such as the energy that an MLP makes of pooled rows: what is
    differentiated, or a plain loss of it, then has the gradients of one device. Once in each path; what goes into
    ``dgcl.nn.loss(fn, on_every_rank=True)`` needs none.

    Args:
        x: any shape.
        comm: the communicator; default the current one.
    """
    require_tensors(x=x)
    return with_value(x, x.detach(), 1 / current(comm).world_size)


def with_value(share: Tensor, value: Tensor, factor: float) -> Tensor:
    """The value, with the gradient of the share times a factor."""
    return _WithValue.apply(share, value, factor)


class _WithValue(torch.autograd.Function):
    @staticmethod
    def forward(share: Tensor, value: Tensor, factor: float) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.factor = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad * ctx.factor, None, None


def named_sum(x: Tensor, comm: Communicator, name: str) -> Tensor:
    """:func:`global_sum` under the name of another collective, which messages mention."""
    return comm.all_reduce_sum(x.to(sum_dtype(x.dtype)), name).to(x.dtype)

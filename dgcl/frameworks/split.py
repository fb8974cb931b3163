"""A rank's edges in two parts, by where they read: sums over owned rows run while halo rows arrive.

    >>> split = comm.split_graph()
    >>> x = torch.relu(linear(split.mean(x)))            # the exchange is inside

:meth:`SplitGraph.sum` is ``comm.aggregator()``; the two parts of it serve programs that start the exchange themselves.
At each vertex edges from owned rows are added first, in the order of the edges, then those from halo rows: always the
same bits, which differ in rounding from those of :class:`~dgcl.frameworks.csr.CSRLocalGraph`, where all edges are in
one order.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.aggregator import Aggregating, Aggregator
from dgcl.aggregation.block import Block
from dgcl.aggregation.once import once_differentiable
from dgcl.aggregation.sparse import sum_dtype
from dgcl.ranks.tensors import require_tensors


class SplitGraph:
    """One rank's in-edges: from its owned rows, and from its halo rows. Sums without edge weights or with
    constant ones, differentiable once; 16-bit floats are summed in float32. On GPUs the exchange and the sums are in
    one stream, one after the other."""

    def __init__(self, comm: Aggregating, edge_weight: Tensor | None = None) -> None:
        if edge_weight is not None:
            require_tensors(edge_weight=edge_weight)
        if edge_weight is not None and edge_weight.requires_grad:
            raise ValueError(
                "edge_weight must be constant; weights that need gradients go with comm.aggregator() or the csr graph"
            )
        self.comm, self._weight = comm, edge_weight
        self._aggregate = Aggregator(comm, edge_weight=edge_weight)

    def sum_owned(self, x: Tensor) -> Tensor:
        """``(num_owned, F)``: over the edges from owned rows ``(num_owned, F)``."""
        operation = self._aggregate.operation
        out: Tensor = _BlockSum.apply(x, operation.blocks[0], operation.weights[0])
        return out

    def sum_halo(self, halo: Tensor) -> Tensor:
        """``(num_owned, F)``: over the edges from halo rows ``(num_halo, F)``."""
        operation = self._aggregate.operation
        out: Tensor = _BlockSum.apply(halo, operation.blocks[2], operation.weights[2])
        return out

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all in-edges, ``(num_owned, F)``, of owned rows ``(num_owned, F)``. Collective.

        Rows of other ranks travel while edges from owned rows are summed; in the backward gradients do.
        """
        return self._aggregate(self._checked(x))

    def mean(self, x: Tensor) -> Tensor:
        """:meth:`sum` over the in-degree; zero where there is no in-edge. Collective."""
        return self._mean(self._checked(x))

    @functools.cached_property
    def _mean(self) -> Aggregator:
        """Not the sum divided: a hub's may be beyond float16, and so may its degree."""
        return Aggregator(self.comm, "mean", edge_weight=self._weight)

    def _checked(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or len(x) != self.comm.local.num_owned:
            raise ValueError(
                f"x must hold this rank's {self.comm.local.num_owned} owned rows, (num_owned, F)"
                f" (got shape {tuple(x.shape)})"
            )
        return x


class _BlockSum(torch.autograd.Function):
    """The sum over a block of edges, at all vertices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block, weight: Tensor | None) -> Tensor:
        ctx.block, ctx.weight = block, weight
        out = x.new_zeros(block.num_heads, x.shape[1], dtype=sum_dtype(x.dtype))
        block.add(x, out, weight)  # put would leave to the fold what the fold alone brings
        return out.to(x.dtype)

    @staticmethod
    @once_differentiable("a sum over the edges from owned, or from halo rows")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        out = grad.new_zeros(ctx.block.num_tails, grad.shape[1], dtype=sum_dtype(grad.dtype))
        ctx.block.transposed.add(grad, out, ctx.weight)
        return out.to(grad.dtype), None, None

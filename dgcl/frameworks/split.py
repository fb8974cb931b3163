"""A rank's edges in two parts, by where they read: sums over owned rows run while halo rows arrive.

    >>> split = comm.split_graph()
    >>> x = torch.relu(linear(split.mean(x)))            # the exchange is inside

Order of summation: at each vertex first the edges from owned rows, in the order of the edges, then those from
halo rows; the second sum is added to the first. It is always the same, so results are reproducible bit for
bit, and differ in rounding from those of :class:`~dgcl.frameworks.csr.CSRLocalGraph`, which takes all
edges in one order.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dgcl.autograd.operators import Exchanging
from dgcl.autograd.pending import PendingFold, PendingRows
from dgcl.frameworks.csr_ops import sparse_product, sum_dtype
from dgcl.relation.local_graph import LocalGraph


class SplitCommunicator(Exchanging, Protocol):
    """What a split graph needs of a communicator.

    Attributes:
        local: This rank's edges.
        device: Where rows are.
    """

    local: LocalGraph
    device: torch.device

    @property
    def num_owned(self) -> int:
        """Rows that this rank computes."""


class SplitGraph:
    """One rank's in-edges: from its owned rows, and from its halo rows. Sums without edge weights or with
    constant ones, differentiable once; 16-bit floats are summed in float32. On GPUs the exchange and the sums are in
    one stream, one after the other."""

    def __init__(self, comm: SplitCommunicator, edge_weight: Tensor | None = None) -> None:
        local = comm.local
        if edge_weight is not None and edge_weight.shape != (local.num_edges,):
            raise ValueError(
                f"edge_weight must have shape ({local.num_edges},), one for each local edge as"
                f" comm.dispatch_edges gives them (got {tuple(edge_weight.shape)})"
            )
        if edge_weight is not None and edge_weight.requires_grad:
            raise ValueError(
                "edge_weight must be constant; weights that need gradients go with the csr graph"
            )
        self.comm = comm
        degrees = torch.from_numpy(np.maximum(local.in_degrees[: local.num_owned], 1))
        self._degrees = degrees.to(comm.device)
        self._weight = None if edge_weight is None else edge_weight.cpu()
        from_halo = local.indices >= local.num_owned
        rows = np.arange(local.num_owned)
        self._owned = _Part(rows, local.num_owned, local.heads, local.indices, ~from_halo, comm.device)
        # Vertices with an edge from a halo row are few: the others' rows are not touched for it.
        rows = np.unique(local.heads[from_halo])
        tails = local.indices - local.num_owned
        self._halo = _Part(rows, local.num_halo, local.heads, tails, from_halo, comm.device)

    def sum_owned(self, x: Tensor) -> Tensor:
        """``(num_owned, F)``: over the edges from owned rows ``(num_owned, F)``."""
        out: Tensor = _Product.apply(x, self, self._owned)
        return out

    def sum_halo(self, halo: Tensor) -> Tensor:
        """``(num_owned, F)``: over the edges from halo rows ``(num_halo, F)``."""
        out: Tensor = _Product.apply(halo, self, self._halo)
        return out

    def sum(self, x: Tensor) -> Tensor:
        """``(num_owned, F)``: over all in-edges, of owned rows ``(num_owned, F)`` that are exchanged
        meanwhile; in the backward gradients travel while the rest is computed. Collective."""
        if x.dim() != 2 or len(x) != self.comm.num_owned:
            raise ValueError(
                f"x must hold this rank's {self.comm.num_owned} owned rows (got shape {tuple(x.shape)})"
            )
        out: Tensor = _OverlappedSum.apply(x, self)
        return out

    def mean(self, x: Tensor) -> Tensor:
        """:meth:`sum` over the in-degree; zero where there is no in-edge. Collective."""
        return self.sum(x) / self._degrees.to(x.dtype)[:, None]

    def product(self, part: _Part, x: Tensor) -> Tensor:
        """``(len(part.rows), F)``: sums over a part of the edges at the vertices that have one, not yet rounded to 16
        bits."""
        wide = x.to(sum_dtype(x.dtype))
        return sparse_product(part.matrix(False, wide.dtype, self._weight), wide)

    def product_back(self, part: _Part, grad: Tensor) -> Tensor:
        """Gradients of what :meth:`product` was given, from those ``(num_owned, F)`` of all sums."""
        wide = grad.to(sum_dtype(grad.dtype))
        wide = wide if len(part.rows) == len(grad) else wide.index_select(0, part.rows)
        return sparse_product(part.matrix(True, wide.dtype, self._weight), wide).to(grad.dtype)


class _Part:
    """Some of the edges as a sparse matrix, both ways round; each made when it is first needed.

    Args:
        rows: Vertices with such an edge, ascending; the rows of the matrix.
        columns: How many columns it has.
        heads, tails: Of all edges, where they lead and their columns.
        mask: Which edges.
        device: Where the matrices are to be.
    """

    def __init__(
        self,
        rows: np.ndarray,
        columns: int,
        heads: np.ndarray,
        tails: np.ndarray,
        mask: np.ndarray,
        device: torch.device,
    ) -> None:
        self._device = device
        self.rows = torch.from_numpy(rows.astype(np.int64)).to(device)
        self._heads, self._tails = np.searchsorted(rows, heads[mask]), tails[mask]
        self._shape = (len(rows), columns)
        self._edges = torch.from_numpy(np.flatnonzero(mask))
        self.matrix = functools.cache(self._matrix)

    def _matrix(self, transposed: bool, dtype: torch.dtype, weight: Tensor | None) -> Tensor:
        rows, columns = (self._tails, self._heads) if transposed else (self._heads, self._tails)
        shape = self._shape[::-1] if transposed else self._shape
        order = np.argsort(rows, kind="stable")  # keeps the order of the edges within a row
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
        values = torch.ones(len(rows), dtype=dtype)
        if weight is not None:
            values = weight[self._edges].to(dtype)[torch.from_numpy(order)]
        index = torch.int32 if len(rows) < 2**31 else torch.int64
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr).to(index),
            torch.from_numpy(columns[order]).to(index),
            values,
            shape,
            check_invariants=False,
        ).to(self._device)


class _Product(torch.autograd.Function):
    """A part of the matrix times rows, at all vertices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: SplitGraph, part: _Part) -> Tensor:
        ctx.graph, ctx.part = graph, part
        sums = graph.product(part, x)
        if len(part.rows) == graph.comm.num_owned:
            return sums.to(x.dtype)
        return x.new_zeros(graph.comm.num_owned, x.shape[1]).index_copy_(0, part.rows, sums.to(x.dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.graph.product_back(ctx.part, grad), None, None


class _OverlappedSum(torch.autograd.Function):
    """Both parts and the exchange as one operation, which so can add gradients in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: SplitGraph) -> Tensor:
        ctx.graph = graph
        pending = PendingRows(graph.comm, x)
        out = graph.product(graph._owned, x)
        halo = pending.wait()
        return out.index_add_(0, graph._halo.rows, graph.product(graph._halo, halo)).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        graph: SplitGraph = ctx.graph
        halo_grad = graph.product_back(graph._halo, grad)
        started = PendingFold(graph.comm, halo_grad)
        return started.wait(graph.product_back(graph._owned, grad)), None

"""Differentiable sums over edges in plain torch, in a fixed order and without a row per edge in memory.

Four operations that are each other's gradients, so that derivatives of any order exist. For edge e from row s
to row t, with weight w of the edge:

=================  ==========================  ====================================
operation          result                      gradient
=================  ==========================  ====================================
``weighted_sum``   out_t = sum_e w_e x_s       transposed weighted sum; edge dots
``edge_dots``      out_e = <y_t, x_s>          weighted sum; transposed weighted sum
``at_edges``       out_e = x_s                 ``edge_sum``
``edge_sum``       out_s = sum_e x_e           ``at_edges``
=================  ==========================  ====================================

``torch.Tensor.index_add`` gives the same sums five times slower on a CPU, and in no fixed order on a GPU.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Adjacency",
    "EndPoints",
    "at_edges",
    "build_adjacency",
    "edge_sum",
    "sparse_product",
    "sum_dtype",
    "weighted_sum",
]

DOTS_BLOCK = 1 << 18
"""Elements of the temporaries of ``edge_dots`` on a CPU: they stay in its cache."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns once in a process that its CSR support is a beta
    torch.sparse_csr_tensor([0, 0], torch.zeros(0, dtype=torch.int64), torch.zeros(0), (1, 1))


@dataclass(frozen=True, eq=False)
class EndPoints:
    """Which row each edge touches at one of its ends, both ways round.

    Attributes:
        rows: (E,) the row at this end of each edge.
        indptr: (num_rows + 1,) offsets into ``order``.
        order: (E,) edges row by row, ascending in each row; None where ``rows`` ascends already.
    """

    rows: Tensor
    indptr: Tensor
    order: Tensor | None

    @property
    def num_rows(self) -> int:
        """Rows at this end, those without an edge included."""
        return len(self.indptr) - 1

    def sort(self, values: Tensor) -> Tensor:
        """(E, ...) values of the edges, row by row."""
        return values if self.order is None else values.index_select(0, self.order)

    def to(self, device: torch.device | str) -> EndPoints:
        """The same on ``device``."""
        order = None if self.order is None else self.order.to(device)
        return EndPoints(self.rows.to(device), self.indptr.to(device), order)


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Edges that take rows at their tails to rows at their heads; ``transposed`` takes them back."""

    tails: EndPoints
    heads: EndPoints

    @property
    def transposed(self) -> Adjacency:
        """The same edges the other way round."""
        return Adjacency(self.heads, self.tails)

    def matrix(self, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The CSR matrix (heads, tails) of ``weight`` (E,), default ones; parallel edges stay apart."""
        columns = self.heads.sort(self.tails.rows)
        values = columns.new_ones(len(columns), dtype=dtype) if weight is None else self.heads.sort(weight)
        shape = (self.heads.num_rows, self.tails.num_rows)
        return torch.sparse_csr_tensor(self.heads.indptr, columns, values, shape, check_invariants=False)

    def to(self, device: torch.device | str) -> Adjacency:
        """The same on ``device``."""
        return Adjacency(self.tails.to(device), self.heads.to(device))


def build_adjacency(indptr: Tensor, indices: Tensor, num_tails: int) -> Adjacency:
    """From CSR of in-edges: the edges of head t come from tails ``indices[indptr[t]:indptr[t + 1]]``."""
    heads = torch.repeat_interleave(torch.arange(len(indptr) - 1, dtype=indices.dtype), indptr.diff())
    order = torch.argsort(indices, stable=True)
    tail_indptr = torch.zeros(num_tails + 1, dtype=indptr.dtype)
    torch.cumsum(torch.bincount(indices, minlength=num_tails), 0, dtype=indptr.dtype, out=tail_indptr[1:])
    return Adjacency(
        tails=EndPoints(indices, tail_indptr, order.to(indices.dtype)), heads=EndPoints(heads, indptr, None)
    )


def weighted_sum(x: Tensor, weight: Tensor | None, edges: Adjacency) -> Tensor:
    """(num_heads, *F): at each head the sum over edges of ``weight`` (E,), default 1, by the tail's row."""
    flat = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    out: Tensor = _WeightedSum.apply(flat, weight, edges)
    return out.reshape(edges.heads.num_rows, *x.shape[1:])


def at_edges(x: Tensor, end: EndPoints) -> Tensor:
    """(E, *F): the row of ``x`` (num_rows, *F) at this end of each edge."""
    out: Tensor = _AtEdges.apply(x, end)
    return out


def edge_sum(values: Tensor, end: EndPoints) -> Tensor:
    """(num_rows, *F): for each row the sum of ``values`` (E, *F) over the edges that touch it at this end."""
    out: Tensor = _EdgeSum.apply(values, end)
    return out


def sparse_product(matrix: Tensor, x: Tensor) -> Tensor:
    """``matrix @ x`` in the type that they have: autocast would narrow both, to types that on a CPU have no sparse
    product."""
    if not torch.is_autocast_enabled(x.device.type):
        return torch.mm(matrix, x)
    with torch.autocast(x.device.type, enabled=False):
        return torch.mm(matrix, x)


@torch.library.custom_op("dgcl::csr_matmul", mutates_args=())
def _csr_matmul(indptr: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """A CSR matrix times dense rows, as one operator, because compilers do not see into sparse tensors."""
    shape = (len(indptr) - 1, len(x))
    return sparse_product(torch.sparse_csr_tensor(indptr, columns, values, shape, check_invariants=False), x)


@_csr_matmul.register_fake
def _(indptr: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(len(indptr) - 1, x.size(1))


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, edges: Adjacency) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(x, weight)
        dtype = sum_dtype(x.dtype)
        columns = edges.heads.sort(edges.tails.rows)
        values = (
            columns.new_ones(len(columns), dtype=dtype)
            if weight is None
            else edges.heads.sort(weight).to(dtype)
        )
        return _csr_matmul(edges.heads.indptr, columns, values, x.to(dtype)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = _WeightedSum.apply(grad, weight, ctx.edges.transposed)
        if ctx.needs_input_grad[1]:
            grad_weight = _EdgeDots.apply(grad, x, ctx.edges).to(weight.dtype)
        return grad_x, grad_weight, None


class _EdgeDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, edges: Adjacency) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(y, x)
        heads, tails = edges.heads.rows, edges.tails.rows
        step = len(heads) if x.is_cuda else max(1, DOTS_BLOCK // max(1, x.size(1)))
        out = x.new_empty(len(heads))
        for block in (slice(start, start + step) for start in range(0, len(heads), max(1, step))):
            out[block] = (y.index_select(0, heads[block]) * x.index_select(0, tails[block])).sum(1)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        y, x = ctx.saved_tensors
        return (
            _WeightedSum.apply(x, grad, ctx.edges),
            _WeightedSum.apply(y, grad, ctx.edges.transposed),
            None,
        )


class _AtEdges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, end: EndPoints) -> Tensor:
        ctx.end = end
        return x.index_select(0, end.rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _EdgeSum.apply(grad, ctx.end), None


class _EdgeSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, end: EndPoints) -> Tensor:
        ctx.end = end
        wide = end.sort(values).to(sum_dtype(values.dtype))
        return torch.segment_reduce(wide, "sum", offsets=end.indptr.long()).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _AtEdges.apply(grad, ctx.end), None


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """16-bit floats are summed in 32 bits, as torch does, and rounded once."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

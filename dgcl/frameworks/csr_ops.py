"""Differentiable sums, dot products and attention scores over edges in plain torch, without a row per edge in memory.

Sums have a fixed order, so the same run gives the same bits; 16-bit floats are added in float32. Which operation is
whose gradient stands in the table below. On a CPU kernels of ours run, on a GPU sparse products and gathered rows.
Called by `csr`, `dgcl/nn/attention`, `dgcl/distributed/rank_graph` and `dgcl/advisor/device_rates`. Free to change
while values, first and second derivatives equal a loop over edges, and a compiler sees no break in a sum
(`tests/dgcl/frameworks/test_csr.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.aggregation.grouped_edges import NONE, EdgeGroups, dots_at_edges, in_threads, sum_over_edges
from dgcl.aggregation.sparse import gathered_dots, sparse_sums, sum_dtype
from dgcl.frameworks.movable import Movable
from dgcl.kernels.edge_scores import scores_or_slopes
from dgcl.kernels.edge_sums import EDGE_SUMS

#: Elements of a part of scores that torch's own operations compute at a time.
_PART = 1 << 24


# Four operations that are each other's gradients, so that derivatives of any order exist. For edge e from row s
# to row t, with weight w of the edge:
#
# =================  ==========================  ====================================
# operation          result                      gradient
# =================  ==========================  ====================================
# ``weighted_sum``   out_t = sum_e w_e x_s       transposed weighted sum; edge dots
# ``edge_dots``      out_e = <y_t, x_s>          weighted sum; transposed weighted sum
# ``at_edges``       out_e = x_s                 ``edge_sum``
# ``edge_sum``       out_s = sum_e x_e           ``at_edges``
# =================  ==========================  ====================================
#
# On a CPU the first two are kernels of ours (:mod:`dgcl.kernels.edge_sums`), on a GPU sparse products and gathered
# rows. ``torch.Tensor.index_add`` gives the same sums far slower, and on a GPU in no fixed order.


@dataclass(frozen=True, eq=False)
class EndPoints(Movable):
    """Which row each edge touches at one of its ends, both ways round.

    Attributes:
        rows: (E,) the row at this end of each edge.
        indptr: (num_rows + 1,) offsets into ``order``.
        order: (E,) edges row by row, ascending in each row; None where ``rows`` ascends already.
        others: (E,) the row at the other end of each edge, row by row.
    """

    rows: Tensor
    indptr: Tensor
    order: Tensor | None
    others: Tensor

    @property
    def num_rows(self) -> int:
        """Rows at this end, those without an edge included."""
        return len(self.indptr) - 1

    def sort(self, values: Tensor) -> Tensor:
        """(E, ...) values of the edges, row by row."""
        return values if self.order is None else values.index_select(0, self.order)


@dataclass(frozen=True, eq=False)
class Adjacency(Movable):
    """Edges that take rows at their tails to rows at their heads; ``transposed`` takes them back."""

    tails: EndPoints
    heads: EndPoints

    @property
    def transposed(self) -> Adjacency:
        """The same edges the other way round."""
        return Adjacency(self.heads, self.tails)


def build_adjacency(indptr: Tensor, indices: Tensor, num_tails: int) -> Adjacency:
    """From CSR of in-edges: the edges of head t come from tails ``indices[indptr[t]:indptr[t + 1]]``."""
    # One integer type for offsets and columns, as MKL and cuSPARSE want it; int32 where it can count edges.
    id_type = torch.int32 if len(indices) < 2**31 else torch.int64
    indptr, indices = indptr.to(id_type), indices.to(id_type)
    heads = torch.repeat_interleave(
        torch.arange(len(indptr) - 1, dtype=indices.dtype, device=indices.device), indptr.diff()
    )
    order = torch.argsort(indices, stable=True)
    tail_indptr = indptr.new_zeros(num_tails + 1)
    torch.cumsum(torch.bincount(indices, minlength=num_tails), 0, dtype=indptr.dtype, out=tail_indptr[1:])
    return Adjacency(
        tails=EndPoints(indices, tail_indptr, order.to(indices.dtype), heads[order]),
        heads=EndPoints(heads, indptr, None, indices),
    )


def weighted_sum(x: Tensor, weight: Tensor | None, edges: Adjacency) -> Tensor:
    """(num_heads, *F): at each head the sum over edges of ``weight`` (E,), default 1, by the tail's row.

    With weights (E, H) of several heads of attention rows are (num_tails, H, ...).
    """
    flat = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    out: Tensor = _WeightedSum.apply(flat, weight, edges)
    return out.reshape(edges.heads.num_rows, *x.shape[1:])


def edge_dots(y: Tensor, x: Tensor, edges: Adjacency) -> Tensor:
    """(E, H) of the type of sums: for each edge and head of attention the dot product of both ends' rows.

    Rows are ``y`` (num_heads, H, D) and ``x`` (num_tails, H, D).
    """
    dots: Tensor = _EdgeDots.apply(y.flatten(1), x.flatten(1), y.shape[1], edges)
    return dots


def edge_scores(
    y: Tensor, x: Tensor, vector: Tensor, slope: float, edges: Adjacency, *of_edges: Tensor
) -> Tensor:
    """(E, H) of the type of sums: ``(vector * leaky_relu(y + x, slope)).sum(-1)`` at both ends of each edge.

    On a CPU by a kernel of ours (:mod:`dgcl.kernels.edge_scores`). Elsewhere, with rows of edges, and for derivatives
    of the second order by torch's own operations on some columns of all heads at a time, which a backward makes again.

    Args:
        y, x: (num_heads, H, D) and (num_tails, H, D) rows.
        vector: (H, D).
        slope: Of the leaky rectifier.
        edges: The edges.
        of_edges: (K, H, D) and (E, K): by what rows of edges are multiplied before they are added to ``y + x``, and
            these rows.
    """
    tensors = [each.to(sum_dtype(x.dtype)).contiguous() for each in (y, x, vector, *of_edges)]
    in_parts = partial(_scores_in_parts, slope, edges)
    if of_edges or not _has_kernel(tensors[1], edges.heads.others):
        return in_parts(*tensors)
    out: Tensor = _MadeAgain.apply(
        in_parts, [partial(each, slope, edges) for each in (_scores, _slopes)], *tensors
    )
    return out


def _scores_in_parts(
    slope: float, edges: Adjacency, y: Tensor, x: Tensor, vector: Tensor, *of_edges: Tensor
) -> Any:
    def part(y: Tensor, x: Tensor, vector: Tensor, *of_edges: Tensor) -> Tensor:
        total = at_edges(y, edges.heads) + at_edges(x, edges.tails)
        if of_edges:
            total = total + (of_edges[1] @ of_edges[0].flatten(1)).view(total.shape)
        return (torch.nn.functional.leaky_relu(total, slope) * vector).sum(-1)

    step = max(1, _PART // max(1, len(edges.tails.rows) * y.shape[1]))
    pieces = zip(*(each.split(step, -1) for each in (y, x, vector, *of_edges[:1])), strict=True)
    return sum(_MadeAgain.apply(part, [], *piece, *of_edges[1:]) for piece in pieces)


def _scores(slope: float, edges: Adjacency, y: Tensor, x: Tensor, vector: Tensor) -> Tensor:
    scores = x.new_empty(len(vector), len(edges.heads.rows))
    _run(edges.heads, y, x, vector, slope, scores, x[:0])
    return scores.t()


def _slopes(
    slope: float, edges: Adjacency, y: Tensor, x: Tensor, vector: Tensor, grad: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of what :func:`_scores` takes."""
    grads, of_vector, grad = [], torch.zeros_like(vector), grad.t().contiguous()
    for end, own, other in (edges.heads, y, x), (edges.tails, x, y):
        sums = torch.zeros_like(own)
        _run(end, own, other, vector, slope, grad, sums)
        for rows, slopes in zip(own.split(1 << 14), sums.split(1 << 14), strict=True):  # in a cache
            of_vector += (rows * slopes).sum(0)
        grads.append(sums.mul_(vector))
    return *grads, of_vector


def _run(end: EndPoints, y: Tensor, x: Tensor, vector: Tensor, slope: float, *results: Tensor) -> None:
    groups = _groups(end.indptr, end.others, end.order)
    values, out = (each.numpy() for each in results)
    ends = y.numpy(), x.numpy(), groups.indptr, groups.tails, groups.order
    run = partial(scores_or_slopes, *ends, vector.numpy(), slope, values, out)
    in_threads(run, groups, x.stride(0) * x.element_size())


def at_edges(x: Tensor, end: EndPoints) -> Tensor:
    """(E, *F): the row of ``x`` (num_rows, *F) at this end of each edge."""
    return _AtEdges.apply(x, end)


def edge_sum(values: Tensor, end: EndPoints) -> Tensor:
    """(num_rows, *F): for each row the sum of ``values`` (E, *F) over the edges that touch it at this end."""
    return _EdgeSum.apply(values, end)


def _has_kernel(x: Tensor, columns: Tensor) -> bool:
    return x.device.type == "cpu" and str(x.dtype)[6:] in EDGE_SUMS and columns.dtype == torch.int32


def _groups(indptr: Tensor, columns: Tensor, order: Tensor | None = None) -> EdgeGroups:
    places = NONE if order is None else order.numpy()
    return EdgeGroups(indptr.numpy().astype(np.int64), columns.numpy(), NONE, places)


@torch.library.custom_op(
    "dgcl::edge_weighted_sum",
    mutates_args=(),
    schema="(Tensor indptr, Tensor columns, Tensor? weight, Tensor x) -> Tensor",
)
def _edge_weighted_sum(indptr: Tensor, columns: Tensor, weight: Tensor | None, x: Tensor) -> Tensor:
    """(rows, F) of the type of sums: rows of ``x``, row by row, times weights (E,), or (E, H) of H pieces of a row; one
    operator, because compilers see into neither."""
    dtype = sum_dtype(x.dtype)
    weight = weight.unsqueeze(1) if weight is not None and weight.dim() == 1 else weight
    weights = [None] if weight is None else weight.to(dtype).unbind(1)
    out = x.new_empty(len(indptr) - 1, x.size(1), dtype=dtype)
    groups = _groups(indptr, columns) if _has_kernel(x, columns) else None
    for total, rows, values in zip(
        *(each.tensor_split(len(weights), 1) for each in (out, x)), weights, strict=True
    ):
        if groups is not None:
            sum_over_edges(groups, rows, total, values, add=False)
        else:
            values = None if values is None else values.contiguous()
            total.copy_(sparse_sums(indptr, columns, values, rows.to(dtype)))
    return out


@_edge_weighted_sum.register_fake
def _(indptr: Tensor, columns: Tensor, weight: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(len(indptr) - 1, x.size(1), dtype=sum_dtype(x.dtype))


@torch.library.custom_op(
    "dgcl::edge_dots",
    mutates_args=(),
    schema="(Tensor indptr, Tensor columns, Tensor? order, Tensor heads, Tensor tails, Tensor y, Tensor x) -> Tensor",
)
def _edge_dots(
    indptr: Tensor, columns: Tensor, order: Tensor | None, heads: Tensor, tails: Tensor, y: Tensor, x: Tensor
) -> Tensor:
    """(E,) of the type of sums: dot products of rows of ``y`` and ``x`` at both ends of each edge."""
    if _has_kernel(x, columns) and y.dtype == x.dtype:
        edges = _groups(indptr, columns, order)
        return dots_at_edges(edges, y, x)
    return gathered_dots(y, x, heads, tails)


@_edge_dots.register_fake
def _(
    indptr: Tensor, columns: Tensor, order: Tensor | None, heads: Tensor, tails: Tensor, y: Tensor, x: Tensor
) -> Tensor:
    return x.new_empty(len(columns), dtype=sum_dtype(x.dtype))


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor | None, edges: Adjacency) -> Tensor:
        values = None if weight is None else edges.heads.sort(weight)
        return _edge_weighted_sum(edges.heads.indptr, edges.heads.others, values, x).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None, Adjacency], output: Tensor) -> None:
        x, weight, ctx.edges = inputs
        # Rows are what a layer has most of: kept only for gradients of weights.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = _WeightedSum.apply(grad, weight, ctx.edges.transposed)
        if ctx.needs_input_grad[1]:
            num = weight.shape[1:].numel()
            grad_weight = _EdgeDots.apply(grad, x, num, ctx.edges).to(weight.dtype).view(weight.shape)
        return grad_x, grad_weight, None


class _EdgeDots(torch.autograd.Function):
    @staticmethod
    def forward(y: Tensor, x: Tensor, num: int, edges: Adjacency) -> Tensor:
        heads, tails = edges.heads, edges.tails
        pairs = zip(y.tensor_split(num, 1), x.tensor_split(num, 1), strict=True)
        dots = [
            _edge_dots(heads.indptr, heads.others, heads.order, heads.rows, tails.rows, *p) for p in pairs
        ]
        return torch.stack(dots, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, Adjacency], output: Tensor) -> None:
        *rows, _, ctx.edges = inputs
        ctx.save_for_backward(*rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        y, x = ctx.saved_tensors
        grad_y = _WeightedSum.apply(x, grad, ctx.edges)
        return grad_y, _WeightedSum.apply(y, grad, ctx.edges.transposed), None, None


class _MadeAgain(torch.autograd.Function):
    """A function of tensors, of which nothing else is kept: derivatives of any order compute it again.

    ``quick`` are faster ways to compute it and its first derivatives, as far as there are any.
    """

    @staticmethod
    def forward(function: Any, quick: list[Any], *tensors: Tensor) -> Any:
        return [*quick, function][0](*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.function, ctx.quick, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        function, tensors = ctx.function, ctx.saved_tensors

        def derivatives(*values: Tensor) -> tuple[Tensor, ...]:
            out, vjp = torch.func.vjp(function, *values[: len(tensors)])  # type: ignore[misc]
            cotangents = values[len(tensors) :]
            return tuple(vjp(cotangents if isinstance(out, tuple) else cotangents[0]))

        return None, None, *_MadeAgain.apply(derivatives, ctx.quick[1:], *tensors, *grads)


class _AtEdges(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, end: EndPoints) -> Tensor:
        return x.index_select(0, end.rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, EndPoints], output: Tensor) -> None:
        ctx.end = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _EdgeSum.apply(grad, ctx.end), None


class _EdgeSum(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, end: EndPoints) -> Tensor:
        if values.is_complex():  # the sum of complex numbers is that of their parts
            return torch.view_as_complex(_EdgeSum.forward(torch.view_as_real(values.resolve_conj()), end))
        wide = end.sort(values).to(sum_dtype(values.dtype))
        return torch.segment_reduce(wide, "sum", offsets=end.indptr.long()).to(values.dtype)

    setup_context = _AtEdges.setup_context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _AtEdges.apply(grad, ctx.end), None

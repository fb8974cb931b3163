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

On a CPU the first two are kernels of ours (:mod:`dgcl.kernels.edge_sums`), on a GPU sparse products and gathered rows.
``torch.Tensor.index_add`` gives the same sums far slower, and on a GPU in no fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.aggregation.edges import (
    NONE,
    EdgeGroups,
    dots_at_edges,
    scores_at_edges,
    slopes_over_edges,
    sum_over_edges,
)
from dgcl.aggregation.sparse import gathered_dots, sparse_product, sum_dtype
from dgcl.kernels.edge_sums import EDGE_SUMS


#: Elements of a part of scores that torch's own operations compute at a time.
_PART = 1 << 24


@dataclass(frozen=True, eq=False)
class EndPoints:
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

    def to(self, device: torch.device | str) -> EndPoints:
        """The same on ``device``."""
        order = None if self.order is None else self.order.to(device)
        return EndPoints(self.rows.to(device), self.indptr.to(device), order, self.others.to(device))


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Edges that take rows at their tails to rows at their heads; ``transposed`` takes them back."""

    tails: EndPoints
    heads: EndPoints

    @property
    def transposed(self) -> Adjacency:
        """The same edges the other way round."""
        return Adjacency(self.heads, self.tails)

    def to(self, device: torch.device | str) -> Adjacency:
        """The same on ``device``."""
        return Adjacency(self.tails.to(device), self.heads.to(device))


def build_adjacency(indptr: Tensor, indices: Tensor, num_tails: int) -> Adjacency:
    """From CSR of in-edges: the edges of head t come from tails ``indices[indptr[t]:indptr[t + 1]]``."""
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
    dtype = torch.promote_types(y.dtype, x.dtype)
    out: Tensor = _EdgeDots.apply(y.flatten(1).to(dtype), x.flatten(1).to(dtype), y.shape[1], edges)
    return out


def edge_scores(y: Tensor, x: Tensor, vector: Tensor, slope: float, edges: Adjacency) -> Tensor:
    """(E, H) of the type of sums: ``(vector * leaky_relu(y + x, slope)).sum(-1)`` at both ends of each edge.

    Rows are ``y`` (num_heads, H, D) and ``x`` (num_tails, H, D), and ``vector`` is (H, D).
    """
    if _has_kernel(x, edges.heads.others) and x.dtype == y.dtype:
        scores: Tensor = _EdgeScores.apply(y, x, vector, slope, edges)
        return scores
    return scores_in_parts(y, x, vector, slope, edges)


def scores_in_parts(
    y: Tensor,
    x: Tensor,
    vector: Tensor,
    slope: float,
    edges: Adjacency,
    of_edges: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """As :func:`edge_scores`, by torch's own operations, some columns of all heads at a time, which a backward makes again.

    Args:
        y, x, vector, slope, edges: As there.
        of_edges: (E, K) and (H, D, K): rows of edges, and by what they are multiplied before they are added to
            ``y + x``.
    """
    dtype, num_edges = sum_dtype(x.dtype), len(edges.tails.rows)

    def part(y: Tensor, x: Tensor, vector: Tensor, *more: Tensor) -> Tensor:
        total = at_edges(y.to(dtype), edges.heads) + at_edges(x.to(dtype), edges.tails)
        if more:
            rows, weight = (each.to(dtype) for each in more)
            total = total + (rows @ weight.flatten(0, 1).t()).view_as(total)
        return (torch.nn.functional.leaky_relu(total, slope) * vector.to(dtype)).sum(-1)

    step = max(1, _PART // max(1, num_edges * y.shape[1]))
    scores = x.new_zeros(num_edges, y.shape[1], dtype=dtype)
    for start in range(0, y.shape[2], step):
        columns = slice(start, start + step)
        more = () if of_edges is None else (of_edges[0], of_edges[1][:, columns])
        pieces = y[:, :, columns], x[:, :, columns], vector[:, columns], *more
        scores = scores + _MadeAgain.apply(part, *pieces)
    return scores


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
    dtype, num_rows = sum_dtype(x.dtype), len(indptr) - 1
    weight = weight.unsqueeze(1) if weight is not None and weight.dim() == 1 else weight
    weights = [None] if weight is None else weight.to(dtype).unbind(1)
    pieces = x.tensor_split(len(weights), 1)
    if _has_kernel(x, columns):
        out, groups = x.new_empty(num_rows, x.size(1), dtype=dtype), _groups(indptr, columns)
        for total, piece, of_edges in zip(out.tensor_split(len(weights), 1), pieces, weights, strict=True):
            sum_over_edges(groups, piece, total, of_edges, add=False)
        return out
    products = []
    for piece, of_edges in zip(pieces, weights, strict=True):
        values = x.new_ones(len(columns), dtype=dtype) if of_edges is None else of_edges.contiguous()
        matrix = torch.sparse_csr_tensor(
            indptr, columns, values, (num_rows, len(x)), check_invariants=False, device=values.device
        )
        products.append(sparse_product(matrix, piece.to(dtype)))
    return products[0] if len(products) == 1 else torch.cat(products, 1)


@_edge_weighted_sum.register_fake
def _(indptr: Tensor, columns: Tensor, weight: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(len(indptr) - 1, x.size(1), dtype=sum_dtype(x.dtype))


@torch.library.custom_op(
    "dgcl::edge_dots",
    mutates_args=(),
    schema="(Tensor indptr, Tensor columns, Tensor? order, Tensor heads, Tensor tails, Tensor y, Tensor x, int num)"
    " -> Tensor",
)
def _edge_dots(
    indptr: Tensor, columns: Tensor, order: Tensor | None, heads: Tensor, tails: Tensor, y: Tensor, x: Tensor, num: int
) -> Tensor:  # fmt: skip
    """(num, E) of the type of sums: dot products of pieces of rows of ``y`` and ``x`` at both ends of each edge."""
    if _has_kernel(x, columns) and y.dtype == x.dtype:
        return dots_at_edges(_groups(indptr, columns, order), y, x, num)
    return gathered_dots(y, x, heads, tails, num)


@_edge_dots.register_fake
def _(
    indptr: Tensor, columns: Tensor, order: Tensor | None, heads: Tensor, tails: Tensor, y: Tensor, x: Tensor, num: int
) -> Tensor:  # fmt: skip
    return x.new_empty(num, len(columns), dtype=sum_dtype(x.dtype))


@torch.library.custom_op(
    "dgcl::edge_scores",
    mutates_args=(),
    schema="(Tensor indptr, Tensor columns, Tensor y, Tensor x, Tensor vector, float slope) -> Tensor",
)
def _edge_scores(
    indptr: Tensor, columns: Tensor, y: Tensor, x: Tensor, vector: Tensor, slope: float
) -> Tensor:
    """(H, E) of the type of sums, of rows (rows, H, D) at both ends and a vector (H, D)."""
    rows = y.flatten(1), x.flatten(1), vector.flatten()
    return scores_at_edges(_groups(indptr, columns), *rows, slope, len(vector))


@_edge_scores.register_fake
def _(indptr: Tensor, columns: Tensor, y: Tensor, x: Tensor, vector: Tensor, slope: float) -> Tensor:
    return x.new_empty(len(vector), len(columns), dtype=sum_dtype(x.dtype))


@torch.library.custom_op(
    "dgcl::edge_slopes",
    mutates_args=(),
    schema="(Tensor indptr, Tensor columns, Tensor? order, Tensor y, Tensor x, Tensor grad, float slope) -> Tensor",
)
def _edge_slopes(
    indptr: Tensor, columns: Tensor, order: Tensor | None, y: Tensor, x: Tensor, grad: Tensor, slope: float
) -> Tensor:
    """(rows, H, D) of the type of sums: over the edges of each row of ``y`` ``grad`` (H, E) times slopes."""
    groups = _groups(indptr, columns, order)
    return slopes_over_edges(groups, y.flatten(1), x.flatten(1), grad, slope).view(y.shape)


@_edge_slopes.register_fake
def _(
    indptr: Tensor, columns: Tensor, order: Tensor | None, y: Tensor, x: Tensor, grad: Tensor, slope: float
) -> Tensor:
    return x.new_empty(y.shape, dtype=sum_dtype(x.dtype))


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
        return _edge_dots(heads.indptr, heads.others, heads.order, heads.rows, tails.rows, y, x, num).t()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, Adjacency], output: Tensor) -> None:
        *rows, _, ctx.edges = inputs
        ctx.save_for_backward(*rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        y, x = ctx.saved_tensors
        return (
            _WeightedSum.apply(x, grad, ctx.edges),
            _WeightedSum.apply(y, grad, ctx.edges.transposed),
            None,
            None,
        )


class _EdgeScores(torch.autograd.Function):
    @staticmethod
    def forward(y: Tensor, x: Tensor, vector: Tensor, slope: float, edges: Adjacency) -> Tensor:
        return _edge_scores(edges.heads.indptr, edges.heads.others, y, x, vector, slope).t()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        *rows, ctx.slope, ctx.edges = inputs
        ctx.save_for_backward(*rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        y, x, vector = ctx.saved_tensors
        if torch.is_grad_enabled():  # for derivatives of the second order
            scores = scores_in_parts(y, x, vector, ctx.slope, ctx.edges)
            return *_gradients((scores,), (y, x, vector), (grad,), create_graph=True), None, None
        grads, of_vector = [], torch.zeros_like(vector, dtype=sum_dtype(x.dtype))
        for end, own, other in (ctx.edges.heads, y, x), (ctx.edges.tails, x, y):
            slopes = _edge_slopes(end.indptr, end.others, end.order, own, other, grad.t(), ctx.slope)
            of_vector += (own * slopes).sum(0)
            grads.append(slopes.mul_(vector).to(own.dtype))
        return *grads, of_vector.to(vector.dtype), None, None


class _MadeAgain(torch.autograd.Function):
    """A function of tensors of which nothing is kept: derivatives, of any order, compute it again."""

    @staticmethod
    def forward(function: Any, *tensors: Tensor) -> Any:
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.function, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        function, tensors = ctx.function, ctx.saved_tensors

        def derivatives(*values: Tensor) -> tuple[Tensor | None, ...]:
            create_graph = torch.is_grad_enabled()
            with torch.enable_grad():
                # Views are inputs of this function alone: one of the values may have been computed of another.
                given = tuple(map(_view, values[: len(tensors)]))
                cotangents = values[len(tensors) :]
                out = function(*given)
                return _gradients(
                    out if isinstance(out, tuple) else (out,), given, cotangents, create_graph=create_graph
                )

        return (None, *_MadeAgain.apply(derivatives, *tensors, *grads))


def _view(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.view_as(value)


def _gradients(
    outputs: tuple[Any, ...], tensors: tuple[Tensor, ...], grads: tuple[Any, ...], *, create_graph: bool
) -> tuple[Tensor | None, ...]:
    """Of those tensors that require one; the others get None."""
    wanted = [each for each in tensors if each is not None and each.requires_grad]
    pairs = zip(outputs, grads, strict=True)
    differentiable = [each for each in pairs if isinstance(each[0], Tensor) and each[0].requires_grad]
    found = iter(
        torch.autograd.grad(
            [out for out, _ in differentiable],
            wanted,
            [grad for _, grad in differentiable],
            create_graph=create_graph,
            allow_unused=True,
        )
    )
    return tuple(next(found) if each is not None and each.requires_grad else None for each in tensors)


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

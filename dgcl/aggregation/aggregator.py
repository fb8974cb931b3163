"""What ``comm.aggregator()`` returns: sums, means, maxima or minima over each owned vertex's in-edges, differentiable.

>>> agg = comm.aggregator("mean")
>>> y = agg(x)                                 # (num_owned, *F) -> (num_owned, *F); the exchanges are inside

Aggregators of a communicator share one operation for each reduction and division into windows; learned weights make
another in each call. Means divide rows before they are summed, so that no partial sum overflows in 16 bits.
Called by users, `connect_aggregators`, `edge_sets`, `dgcl/nn/convolutions`, `dgcl/nn/stack` and others. Free to change
while results and gradients are those of A @ x, A the dense matrix of all edges
(`tests/dgcl/aggregation/test_windows.py`), and misuse is refused (`tests/dgcl/aggregation/test_aggregator.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.aggregation import extreme_kernels, grouped_edges
from dgcl.aggregation.aggregating import Aggregating
from dgcl.aggregation.block import Block
from dgcl.aggregation.contribution_exchange import connect_contributions
from dgcl.aggregation.extremes import reduce_extremes
from dgcl.aggregation.once import once_differentiable
from dgcl.aggregation.operation import Operation
from dgcl.aggregation.sparse import sum_dtype
from dgcl.aggregation.step_execution import Aggregation
from dgcl.aggregation.windowed import HaloWindows, divide
from dgcl.program.exchange import HALO, PARTIAL
from dgcl.ranks.tensors import beside_the_graph, mark_of, refuse_vmap, require_tensors, untransformed
from dgcl.relation.relation_kernels import gather, split_edges
from dgcl.topology.checks import check_choice
from dgcl.transport.row_checks import as_memory, check_rows, version_of
from dgcl.transport.steps import FOR_MEAN

Reduce = Literal["sum", "mean", "max", "min"]
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex64, torch.complex128)


class Aggregator:
    """Sums, means, maxima or minima over all in-edges of each owned vertex; made by :meth:`Communicator.aggregator`.

    Sums and means without learned weights are differentiable as often as needed; all else once.

    Attributes:
        comm: The communicator, kept alive by this object and by the graphs of autograd that it is in.
        reduce: "sum", "mean", "max" or "min".
        operation: What it carries out; with learned weights, without them.
        windows: Those of its halo rows; None: all at once. By default the communicator's.
    """

    @untransformed  # layers make one in each forward; the first connects ranks
    def __init__(
        self,
        comm: Aggregating,
        reduce: Reduce = "sum",
        edge_weight: Tensor | None = None,
        *,
        windows: HaloWindows | None = None,
        operation: Aggregation | None = None,
    ) -> None:
        check_reduction(comm, reduce, edge_weight)
        self.comm, self.reduce, self.windows = comm, reduce, (windows := windows or comm.windows)
        self._learned = self._scale = None
        with torch.inference_mode(False):  # what is made here is kept, and may be saved for a backward
            if reduce in ("max", "min"):
                # On a grid of depth 1 one rank has all in-edges of a row.
                several = number_of(comm, PARTIAL) is not None and (
                    comm.edges != "grid" or comm.grid.depth > 1
                )
                contributions = connect_contributions(comm) if several else None
                self._exchanges = (*_numbers(comm), contributions)
            if operation is None:
                operation = _shared(comm, reduce if reduce == "mean" else "sum", windows)
            self.operation = operation
            if edge_weight is None:
                return
            if reduce == "mean":
                scale = np.repeat(np.concatenate(_scales(comm)), np.diff(comm.local.indptr))
                self._scale = torch.from_numpy(scale).to(comm.device)
            if edge_weight.requires_grad:
                self._learned = edge_weight
            else:
                self.operation = self.operation.weighted(_times(edge_weight, self._scale))

    def __call__(self, x: Tensor) -> Tensor:
        """Aggregate. Collective: every rank calls it with the same trailing shape and dtype.

        Args:
            x: ``(num_owned, *F)``, floating point or complex, any strides.

        Returns:
            ``(num_owned, *F)`` of the same type; zeros where a vertex has no in-edge. In a fixed order of summation;
            16-bit floats are summed in float32 and rounded once on each rank and once per hop.

        Raises:
            ValueError, TypeError: Wrong shape, device or dtype.
            CommError: A peer is lost, late, or makes another call.
        """
        self.comm.require_current("aggregator")
        check_rows(x, self.comm.num_owned, "num_owned", self.comm.rank, self.comm.device)
        if x.dtype not in _FLOATS and not (x.dtype in _COMPLEX and self.reduce in ("sum", "mean")):
            raise TypeError(
                "x must be floating point of 16, 32 or 64 bits, or complex for sums and means"
                f" (got {x.dtype} and reduce={self.reduce!r})"
            )
        return self._apply(as_memory(x))

    @beside_the_graph
    def _apply(self, x: Tensor) -> Tensor:
        real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x.resolve_neg()
        whole = real.flatten(1) if real.dim() > 1 else real[:, None]  # -1 is ambiguous without rows
        rows = self.comm.to_items(whole)
        if self.reduce in ("max", "min"):
            out: Tensor = reduce_extremes(rows, self.comm, self._exchanges, self.reduce == "max")
        elif self._learned is None:
            out = _Aggregate.apply(rows, self.operation, self.comm)
        else:
            weight = _times(self._learned, self._scale)
            out = _WeightedAggregate.apply(rows, weight, self.operation, self.comm)
        out = self.comm.from_items(out, whole.shape[1]).reshape(real.shape)
        return torch.view_as_complex(out) if x.is_complex() else out

    def constant(self, x: Tensor) -> Constant:
        """Rows that never change, for :mod:`dgcl.nn`'s convolutions instead of x: aggregated once, then kept.

        Args:
            x: ``(num_owned, *F)``, without gradient.

        Raises:
            ValueError: x requires a gradient, or this aggregator's weights are learned; or as :meth:`__call__`.
        """
        if self._learned is not None:
            raise ValueError(
                "edge_weight must not require a gradient with constant rows: their aggregate is kept; pass x itself,"
                " or weights without gradient"
            )
        check_rows(x, self.comm.num_owned, "num_owned", self.comm.rank, self.comm.device)
        return Constant(x)


class Constant:
    """Rows that never change, and their aggregates, each made on first use and kept.

    Attributes:
        rows: ``(num_owned, *F)``.
    """

    def __init__(self, rows: Tensor) -> None:
        if rows.requires_grad:
            raise ValueError(
                "x must not require a gradient to be constant: its aggregate is kept; pass x itself to the layer"
            )
        self.rows, self._version = rows, version_of(rows)
        self._aggregates: WeakKeyDictionary[Any, dict[str, Tensor]] = WeakKeyDictionary()

    def aggregated(self, operation: Any, reduce: str, aggregate: Callable[[Tensor], Tensor]) -> Tensor:
        """What ``aggregate`` makes of the rows, by ``operation`` and ``reduce``. Collective the first time.

        Raises:
            RuntimeError: The rows were changed in place, or require a gradient by now.
        """
        if self.rows.requires_grad or version_of(self.rows) != self._version:
            raise RuntimeError(
                "x was said to be constant, and was changed in place, or made to require a gradient, since: its"
                " aggregate is kept; call constant(x) again, or pass x itself to the layer"
            )
        aggregates = self._aggregates.setdefault(operation, {})
        if reduce not in aggregates:
            # After a first use in inference mode too it may be saved for a backward.
            with torch.inference_mode(False), torch.no_grad():
                aggregates[reduce] = aggregate(as_memory(self.rows))
        return aggregates[reduce]


def check_reduction(comm: Aggregating, reduce: str, edge_weight: Tensor | None) -> None:
    """Raise where a reduction, or one with these weights, cannot be had."""
    check_choice(reduce, "reduce", ("sum", "mean", "max", "min"))
    if reduce in ("max", "min"):
        _check_extremes(comm, reduce, edge_weight)
    elif edge_weight is not None:
        _check_weight(comm, edge_weight)


def _check_extremes(comm: Aggregating, reduce: str, edge_weight: Tensor | None) -> None:
    """Raise where maxima or minima cannot be had."""
    if edge_weight is not None:
        raise ValueError(
            f"edge_weight goes with sums and means; reduce={reduce!r} takes rows as they are: leave it out"
        )
    if comm.was_rewired and comm.edges != "head":
        raise ValueError(
            f"reduce={reduce!r} with strategy={comm.edges!r} goes with a graph that stays, as each rewire would leave"
            " the exchange of contributions behind; build a new communicator"
        )
    if comm.device.type == "cpu":
        extreme_kernels.prepare()


def _check_weight(comm: Aggregating, weight: Tensor) -> None:
    """Raise unless there is a weight for each edge that this rank sums."""
    num_edges = comm.local.num_edges
    require_tensors(edge_weight=weight)
    if weight.shape != (num_edges,):
        raise ValueError(
            f"edge_weight must have shape ({num_edges},), one for each edge that this rank sums, as"
            f" comm.dispatch_edges gives them (got {tuple(weight.shape)})"
        )
    if weight.dtype not in _FLOATS:
        raise TypeError(f"edge_weight must be floating point (got {weight.dtype})")
    if weight.device != comm.device:
        raise ValueError(f"edge_weight must be on {comm.device}, where rows are (got {weight.device})")


def _times(weight: Tensor, scale: Tensor | None) -> Tensor:
    """Weights times a reduction's own, in the type of sums: 16 bits would be rounded twice."""
    return weight if scale is None else weight * scale.to(sum_dtype(weight.dtype))


#: Of each communicator the operations that its aggregators share, by reduction and windows.
_operations: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def _shared(comm: Aggregating, reduce: str, windows: HaloWindows | None) -> Aggregation:
    """The operation of a reduction without weights, made once for each communicator and way to divide its rows."""
    of_comm = _operations.setdefault(comm, {})
    if ("sum", windows) not in of_comm:
        whole = of_comm.get(("sum", None)) or _build_operation(comm)
        of_comm["sum", windows] = whole if windows is None else divide(whole, windows)
    if (reduce, windows) not in of_comm:
        whole, scales = of_comm["sum", windows], _scales(comm)
        # Blocks of sums at owned rows and of partial sums take turns.
        weights = [gather(scales[i % 2], block.ends[0]) for i, block in enumerate(whole.blocks)]
        on_device = tuple(torch.from_numpy(each).to(comm.device) for each in weights)
        of_comm[reduce, windows] = replace(whole, weights=on_device, purpose=FOR_MEAN)
    return of_comm[reduce, windows]


def _scales(comm: Aggregating) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a mean multiplies each edge's row with, at owned rows and in partial sums: 1 over the in-degree of its head.

    So partial sums are parts of the mean, and no 16-bit sum overflows.
    """
    local = comm.local
    return (
        1 / np.maximum(local.in_degrees[: local.num_owned], 1),
        1 / np.maximum(local.partial_in_degrees, 1),
    )


def _build_operation(comm: Aggregating) -> Operation:
    if comm.device.type == "cpu":
        grouped_edges.prepare()
    local, n = comm.local, comm.local.num_owned
    # Of owned rows, and of partial sums.
    of_heads = [split_edges(each, local.indices, n) for each in (local.indptr[: n + 1], local.indptr[n:])]
    num_partial, num_halo = len(local.partial_ids), local.num_halo
    blocks, places = [], []
    for partial, halo in ((False, False), (True, False), (False, True), (True, True)):
        heads, tails, ids = of_heads[partial][halo]
        sizes = num_partial if partial else n, num_halo if halo else n
        blocks.append(Block(heads, tails, *sizes, comm.device))
        places.append(torch.from_numpy(ids).to(comm.device))
    return Operation(tuple(blocks), tuple(places), *_numbers(comm))


def _numbers(comm: Aggregating) -> tuple[int | None, int | None]:
    """The numbers of the exchanges of rows and of partial sums."""
    return number_of(comm, HALO), number_of(comm, PARTIAL)


def number_of(comm: Aggregating, name: str) -> int | None:
    """The number of an exchange; None where no rank sends a row in it."""
    if name not in comm.exchanges or not comm.exchanges[name].relation.deliveries:
        return None
    return comm.number_of(name)


class _Aggregate(torch.autograd.Function):
    """Linear in x; its backward is the same for the adjoint. Keeps nothing."""

    vmap = staticmethod(refuse_vmap)

    @staticmethod
    def forward(x: Tensor, operation: Aggregation, comm: Aggregating) -> Tensor:
        return operation.run(x, comm.transport)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Aggregation, Aggregating], output: Tensor) -> None:
        _, ctx.operation, ctx.comm = inputs
        ctx.save_for_backward(mark_of(ctx.comm))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return _Aggregate.apply(grad, ctx.operation.transposed, ctx.comm), None, None


class _WeightedAggregate(torch.autograd.Function):
    """Linear in x and in the weights of the edges; keeps both and the halo rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, operation: Aggregation, comm: Aggregating) -> Tensor:
        out, halo = operation.weighted(weight).run(x, comm.transport, keep=True)
        ctx.operation, ctx.comm = operation, comm
        ctx.save_for_backward(mark_of(comm), x, weight, *halo)
        return out

    @staticmethod
    @once_differentiable("an aggregation with learned weights")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        operation: Aggregation = ctx.operation
        _, x, weight, *halo = ctx.saved_tensors
        adjoint = operation.weighted(weight).transposed
        grad_x, (grad_partial,) = adjoint.run(grad, ctx.comm.transport, keep=True)
        grad_weight = operation.dots(grad, grad_partial, x, halo).to(weight.dtype)
        return grad_x, grad_weight, None, None

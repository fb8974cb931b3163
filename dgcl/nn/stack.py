"""The forward and the backward of :class:`dgcl.nn.InPlaceGCN`, and the memory that they share.

Arguments named ``stack`` are such modules, typed ``Any``: `in_place` imports this file. A backward overwrites a layer's
rows by their gradients, so it runs once, and before the next forward: a counter (``filled``) finds other orders.
Called by `in_place`. Free to change while gradients are those of separate layers, also on a grid and with dropout,
buffers are allocated once, and a backward whose rows are gone raises (`tests/dgcl/nn/test_in_place.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.aggregator import Aggregator
from dgcl.aggregation.once import once_differentiable
from dgcl.communicator import Communicator
from dgcl.nn.convolutions import Normalised
from dgcl.nn.vertex_dropout import keep_mask, scale_of

_BLOCK = 1 << 18
"""Elements of the temporaries of a block of rows."""


def aggregation(stack: Any, comm: Communicator) -> Aggregator | Normalised:
    """The aggregation of all layers as a function of rows."""
    first = stack.convs[0]
    return Normalised(comm, first.add_self_loops) if first.normalize else Aggregator(comm)


class KeptRows:
    """What a stack keeps on one communicator, allocated once; nothing that refers to the communicator.

    Attributes:
        ids: ``(num_owned,)`` of the owned rows.
        operation: The aggregation of all layers.
        layers: Rows of the hidden layers, (n, d_l) each.
        filled: Grows with every forward and backward, which write over the layers.
    """

    def __init__(self, stack: Any, comm: Communicator) -> None:
        self.ids = comm.owned_ids.to(comm.device)
        aggregate = aggregation(stack, comm)
        self.operation = aggregate.operation
        self._loops = aggregate.loops if isinstance(aggregate, Normalised) else None
        self.layers: list[Tensor] = []
        self._product = torch.empty(0, device="cpu")
        self.filled = 0

    def take(self, x: Tensor, widths: Sequence[int], widest: int, comm: Communicator) -> None:
        """Have buffers for rows like x, of hidden layers of these widths; rows that travel have up to ``widest``."""
        if len(self.layers) != len(widths) or any(rows.dtype != x.dtype for rows in self.layers):
            self.layers = [x.new_empty(len(x), width) for width in widths]
            self.operation.reserve(widest, x.dtype, comm.transport)  # once, for the widest

    def product(self, like: Tensor, width: int) -> Tensor:
        """(n, width) of the memory that products and aggregates share."""
        size = len(like) * width
        kept = self._product
        if len(kept) < size or (kept.dtype, kept.device) != (like.dtype, like.device):
            with torch.inference_mode(False):  # it is kept, and written to in a later training step
                self._product = like.new_empty(size)
        return self._product[:size].view(len(like), width)

    def sum(self, x: Tensor, out: Tensor, comm: Communicator, *, transposed: bool = False) -> Tensor:
        """Aggregate ``x`` into ``out``, or by the adjoint."""
        operation = self.operation.transposed if transposed else self.operation
        into = comm.to_items(out)  # on a grid slices of rows are summed: a view where they divide the columns
        operation.run(comm.to_items(x), comm.transport, out=into)
        if into.data_ptr() != out.data_ptr():
            out.copy_(comm.from_items(into, out.shape[1]))
        return out if self._loops is None else out.addcmul_(x, self._loops.to(x.dtype))


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a stack: what it keeps, numbers of the layers' dropout calls, and whether inputs are constant."""

    stack: Any
    kept: KeptRows
    comm: Communicator
    dropout_calls: list[int]
    is_constant: bool
    p: float  # these three as they were in the forward
    slope: float
    seed: int


class StackFunction(torch.autograd.Function):
    """All layers; saves inputs and parameters, and keeps the hidden layers' rows in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Call, *parameters: Tensor) -> Tensor:
        """The last layer's rows; ``parameters`` are all weights, then all biases, if there are any."""
        stack, kept, calls = call.stack, call.kept, call.dropout_calls
        kept.filled += 1
        ctx.call, ctx.filled = call, kept.filled
        ctx.save_for_backward(x, *parameters)
        number = len(stack.convs)
        rows = x.contiguous()
        for layer, weight in enumerate(parameters[:number]):
            is_hidden = layer + 1 < number
            out = kept.layers[layer] if is_hidden else x.new_empty(len(x), weight.shape[0])
            if layer == 0 and call.is_constant:
                torch.mm(rows, weight.t(), out=out)
            elif stack.convs[layer].multiply_first:
                product = torch.mm(rows, weight.t(), out=kept.product(x, weight.shape[0]))
                kept.sum(product, out, call.comm)
            else:
                sums = kept.sum(rows, kept.product(x, weight.shape[1]), call.comm)
                torch.mm(sums, weight.t(), out=out)
            if len(parameters) > number:
                out.add_(parameters[number + layer])
            if is_hidden:
                torch.relu_(out) if call.slope == 0 else torch.nn.functional.leaky_relu_(out, call.slope)
                if calls:
                    _drop(out, call, kept.ids, calls[layer])
            rows = out
        return rows

    @staticmethod
    @once_differentiable("InPlaceGCN")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of what the forward took; the hidden layers' rows are gone after it."""
        call: Call = ctx.call
        stack, kept, calls = call.stack, call.kept, call.dropout_calls
        if kept.filled != ctx.filled:
            raise RuntimeError(
                "InPlaceGCN: another forward or backward of this stack has written over the rows that this backward"
                " needs; call backward once, before the next forward, or use dgcl.nn.GCNConv layers"
            )
        kept.filled += 1
        x, *parameters = ctx.saved_tensors
        number = len(stack.convs)
        parameter_grads: list[Tensor | None] = [None] * len(parameters)
        grad = grad.contiguous()
        of_input = None
        with torch.autocast(x.device.type, enabled=False):
            for layer in reversed(range(number)):
                weight = parameters[layer]
                rows = kept.layers[layer - 1] if layer else x
                if len(parameters) > number:
                    parameter_grads[number + layer] = grad.sum(0)
                if layer == 0 and call.is_constant:
                    parameter_grads[0] = grad.t() @ x
                    break
                if layer == 0 and not (ctx.needs_input_grad[0] or ctx.needs_input_grad[2]):
                    break
                # Biases were added after the sum: M = A^T G, dW = M^T H, dH = M W, whatever came first in the forward.
                product = kept.product(x, weight.shape[0])
                sums = kept.sum(grad, product, call.comm, transposed=True)
                parameter_grads[layer] = sums.t() @ rows
                if layer:
                    _into_gradient(rows, sums, weight, call, kept.ids, calls[layer - 1] if calls else None)
                    grad = rows
                elif ctx.needs_input_grad[0]:
                    of_input = sums @ weight
        return of_input, None, *parameter_grads


def _blocks(rows: Tensor) -> list[slice]:
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def _drop(rows: Tensor, call: Call, ids: Tensor, number: int) -> None:
    """Dropout in place."""
    for block in _blocks(rows):
        kept = keep_mask(ids[block], rows.shape[1], call.p, seed=call.seed, call=number)
        rows[block].mul_(scale_of(call.p)).masked_fill_(~kept, 0.0)


def _into_gradient(
    rows: Tensor, sums: Tensor, weight: Tensor, call: Call, ids: Tensor, number: int | None
) -> None:
    """Put in place of a hidden layer's rows the gradient of what it had before its activation.

    Args:
        rows: (n, d) after activation and dropout.
        sums: (n, k), and ``weight`` (k, d): their product is the gradient of ``rows``.
        call: Of the stack.
        number: Of the layer's dropout call; None: there was none.
    """
    for block in _blocks(rows):
        mine = rows[block]
        gradient = sums[block] @ weight
        if call.slope == 0:  # what dropout dropped is zero, as what the activation did
            gradient.masked_fill_(mine <= 0, 0.0)
        else:
            gradient = torch.where(mine > 0, gradient, gradient * call.slope)
        if number is not None:
            gradient.mul_(scale_of(call.p))
            if call.slope > 0:
                dropped = ~keep_mask(ids[block], rows.shape[1], call.p, seed=call.seed, call=number)
                gradient.masked_fill_(dropped, 0.0)
        mine.copy_(gradient)

"""Makes a layer that is computed in chunks one function of autograd, over rows in host memory.

It returns the gradients of the parameters like those of any function, so that hooks, ``torch.autograd.grad`` and
accumulation work as usual. A rank that fails in a layer tells the others at once.
Called by `offload`. Free to change while parameters get gradients, and their hooks one call, as of any function, and
rows that were changed in place before the backward are an error (`tests/dgcl/offload/test_layer.py`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.once import once_differentiable
from dgcl.offload.chunked_rows import ChunkedRows
from dgcl.offload.layer import LayerCall


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: LayerCall, num_inputs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.num_inputs, ctx.parameters = call, num_inputs, tensors[num_inputs:]
        ctx.set_materialize_grads(False)
        rows, order = tensors[:num_inputs], call.machinery.order
        with _telling(call):
            outs = call.forward(
                [order.stored(x) for x in rows],
                keep=call.keeps or (call.keep and any(ctx.needs_input_grad)),
            )
        kept = [] if call.aggregate is None else [call.aggregate]
        if kept and not call.own_rows:  # the backward reads no row: let them go
            rows = tuple(x.new_empty(1).expand(x.shape) for x in rows)
        ctx.save_for_backward(*rows, *tensors[num_inputs:], *kept)
        if not call.keeps:
            call.aggregate = None  # what is saved goes after the backward, what the call has with the graph
        return tuple(ChunkedRows(out, order) for out in outs)

    @staticmethod
    @once_differentiable("Offload.layer")
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        call, n = ctx.call, ctx.num_inputs
        with _telling(call):
            try:
                tensors = ctx.saved_tensors
            except RuntimeError as error:
                raise RuntimeError(
                    f"{call}: its rows, or its parameters, were changed in place between forward and backward, which"
                    f" computes the layer again from them; write h = h + 1 instead of h += 1 ({error})"
                ) from None
            needed = ctx.needs_input_grad[2 : 2 + n]
            end = len(ctx.needs_input_grad) - 2
            kept = tensors[end] if len(tensors) > end else None
            order = call.machinery.order
            rows = [order.stored(x) if kept is None or call.own_rows else x for x in tensors[:n]]
            parameters = list(zip(ctx.parameters, tensors[n:end], strict=True))
            of_results = [None if grad is None else order.stored(grad) for grad in grads]
            of_inputs, of_parameters = call.backward(rows, parameters, of_results, needed, kept)
        chunked = (None if grad is None else ChunkedRows(grad, order) for grad in of_inputs)
        return None, None, *chunked, *of_parameters


@contextmanager
def _telling(call: LayerCall) -> Iterator[None]:
    """Tell the other ranks at once where this one fails."""
    counted = call.machinery.allocations
    if counted is not None:
        counted.layer = call
    try:
        with counted or nullcontext():
            yield
    except BaseException as error:
        call.machinery.fail(f"{call} failed with {type(error).__name__}: {error}")
        raise


def run_layer(
    call: LayerCall, inputs: Sequence[ChunkedRows], parameters: Sequence[Tensor]
) -> Tensor | tuple[Tensor, ...]:
    """Apply a layer. Collective."""
    outs: tuple[Tensor, ...] = _Layer.apply(call, len(inputs), *inputs, *parameters)
    return outs if call.gives_tuple else outs[0]

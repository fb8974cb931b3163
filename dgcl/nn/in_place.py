"""GCN layers as one differentiable function that keeps one tensor of rows per layer: MG-GCN's memory, exact gradients.

Layers that autograd differentiates one by one each save input, product and activation. Here (MG-GCN, 2021, section 4) a
layer's rows are kept once, after activation and dropout, and overwritten by their gradients in the backward
(``stack``); all else is computed again, or shared by all layers. :mod:`dgcl.advisor` predicts time and memory.
Called by users (``dgcl.nn.InPlaceGCN``). Free to change while gradients are those of the layers one by one, a step on
constant inputs makes 2 (L - 1) sums for L layers, and memory stays within MG-GCN's formula
(`tests/dgcl/nn/test_in_place.py`).
"""

import itertools
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import LeakyReLU, Module, ModuleList, ReLU

from dgcl.aggregation.aggregator import Constant
from dgcl.communicator import Communicator
from dgcl.nn.convolutions import GCNConv, Order
from dgcl.nn.layer_arguments import current, require_integers
from dgcl.nn.stack import Call, KeptRows, StackFunction, aggregation
from dgcl.nn.vertex_dropout import check_probability, next_call
from dgcl.ranks.tensors import beside_the_graph, refuse_transforms
from dgcl.transport.row_checks import as_memory, check_rows


# MG-GCN leaves out the first layer's sum in the backward, which is wrong unless the aggregate of the inputs is kept
# instead of them: ``aggregator.constant(x)`` says so, and then the first layer neither sums nor sends a row. A
# training step of L layers on constant inputs makes 2 (L - 1) sums.
class InPlaceGCN(Module):
    """Graph convolutions with activations and dropout between them, in the memory of one tensor of rows each.

        >>> stack = dgcl.nn.InPlaceGCN([128, 208, 208, 172], dropout=0.5)
        >>> logits = stack(x)                  # (num_owned, 128) -> (num_owned, 172); collective, differentiable once

    The same as ``convs[0]``, activation, dropout, ``convs[1]``, ... of :class:`GCNConv` and :class:`Dropout`, with the
    parameters of ``convs``. A forward writes over what the one before kept: its backward comes first, or never.
    Results belong to the caller.

    Args:
        channels: Widths ``[d_0, ..., d_L]`` of L layers.
        dropout: Probability of an element of a hidden layer to be dropped in training.
        activation: "relu", "leaky_relu", or ``torch.nn.LeakyReLU(slope)``, between layers.
        add_self_loops, normalize, bias, order: Of each :class:`GCNConv`.
        seed: Of dropout; the same on every rank.

    Raises:
        ValueError, TypeError: Fewer than two widths, an activation whose derivative needs its input.
    """

    convs: Any

    def __init__(
        self,
        channels: Sequence[int],
        *,
        dropout: float = 0.0,
        activation: Literal["relu", "leaky_relu"] | Module = "relu",
        add_self_loops: bool = True,
        normalize: bool = True,
        bias: bool = True,
        order: Order = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__()
        widths = channels if isinstance(channels, Sequence) else ()
        if len(widths) < 2 or not all(isinstance(width, Integral) and width >= 0 for width in widths):
            raise ValueError(
                f"channels must be two widths or more, of inputs and of each layer (got {channels!r})"
            )
        require_integers(seed=seed)
        self.channels, self.seed = tuple(channels), seed
        self.slope, self.p = _slope_of(activation), check_probability(dropout)
        kinds: dict[str, Any] = {
            "add_self_loops": add_self_loops, "normalize": normalize, "bias": bias, "order": order
        }  # fmt: skip
        self.convs = ModuleList(GCNConv(*pair, **kinds) for pair in itertools.pairwise(channels))

    @beside_the_graph
    def forward(self, x: Tensor | Constant, comm: Communicator | None = None) -> Tensor:
        """``(num_owned, d_0)`` to ``(num_owned, d_L)``; collective.

        Args:
            x: Owned rows, of float32 or float64 as the parameters are; or what ``aggregator.constant(rows)`` made of
                them.
            comm: The communicator; None for this thread's current one.

        Raises:
            ValueError, TypeError: Rows of another shape, type or device.
            RuntimeError: In the backward, if another forward or backward has written over what was kept.
        """
        refuse_transforms("InPlaceGCN")
        comm = current(comm)
        is_constant = isinstance(x, Constant)
        rows = x.rows if isinstance(x, Constant) else x
        parameters: list[Tensor] = [conv.lin.weight for conv in self.convs]
        self._check(rows, parameters[0], comm)
        widths = (  # the widest rows that each layer sums, in the forward and the backward
            conv.lin.out_features if conv.multiply_first else max(conv.lin.in_features, conv.lin.out_features)
            for conv in self.convs[is_constant:]
        )
        kept = _kept_by(self, comm, rows, max(widths, default=0))
        if isinstance(x, Constant):
            aggregate = aggregation(self, comm)
            x = x.aggregated(aggregate.operation, aggregate.reduce, aggregate)
        x = as_memory(x)
        calls: list[int] = []
        if self.training and self.p > 0:
            calls = [next_call(comm) for _ in self.convs[1:]]
        parameters += [conv.bias for conv in self.convs if conv.bias is not None]
        call = Call(self, kept, comm, calls, is_constant, self.p, self.slope, self.seed)
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = StackFunction.apply(x, call, *parameters)
        return out

    def _check(self, x: Tensor, weight: Tensor, comm: Communicator) -> None:
        check_rows(x, comm.num_owned, "num_owned", comm.rank, comm.device)
        if x.dim() != 2 or x.shape[1] != self.channels[0]:
            raise ValueError(
                f"x must have shape ({comm.num_owned}, {self.channels[0]}) (got {tuple(x.shape)})"
            )
        if x.dtype != weight.dtype or x.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"x must be of the parameters' type, float32 or float64 (got {x.dtype} and {weight.dtype});"
                " for others use dgcl.nn.GCNConv layers"
            )

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"{list(self.channels)}"


def _slope_of(activation: str | Module) -> float:
    """The factor of negative elements."""
    if activation == "relu" or type(activation) is ReLU:
        return 0.0
    if activation == "leaky_relu":
        return 0.01
    if type(activation) is LeakyReLU and activation.negative_slope >= 0:
        return activation.negative_slope
    raise ValueError(
        "activation must be 'relu', 'leaky_relu' or torch.nn.LeakyReLU(slope >= 0), whose derivatives follow from their"
        f" outputs (got {activation!r}): the inputs of others are written over; use dgcl.nn.GCNConv layers with it"
    )


_stacks: WeakKeyDictionary[Module, WeakKeyDictionary[Any, KeptRows]] = WeakKeyDictionary()


def _kept_by(stack: InPlaceGCN, comm: Communicator, x: Tensor, widest: int) -> KeptRows:
    """What a stack keeps on a communicator, with buffers for rows like x; collective the first time."""
    of_stack = _stacks.setdefault(stack, WeakKeyDictionary())
    with torch.inference_mode(False), torch.no_grad():
        if comm not in of_stack:
            of_stack[comm] = KeptRows(stack, comm)
        kept = of_stack[comm]
        kept.take(x, stack.channels[1:-1], widest, comm)
    return kept

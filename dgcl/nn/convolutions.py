"""GCNConv, SAGEConv and GINConv with PyG's parameters, which exchange rows between ranks where they sum over edges.

    >>> y = dgcl.nn.GCNConv(128, 64)(x)              # (num_owned, 128) -> (num_owned, 64), of PyG's GCNConv

A checkpoint of PyG's layer loads. ``order="auto"`` aggregates on the narrower side of the product. Instead of x a layer
takes ``comm.aggregator().constant(x)``: rows that never change are summed once; later forwards and backwards send none.
Called by users (``dgcl.nn``), `in_place`, `stack` and `dgcl/distributed/degrees`. Free to change while training, for
each placement of edges and both orders, is that of PyG's layers on one device (`tests/dgcl/nn/test_convolutions.py`).
"""

from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Linear, Module, Parameter

from dgcl.aggregation.aggregator import Aggregator, Constant
from dgcl.communicator import Communicator
from dgcl.nn.layer_arguments import current, require_module, require_numbers
from dgcl.program.exchange import PARTIAL
from dgcl.ranks.tensors import require_tensors, untransformed
from dgcl.ranks.whole_rows import require_same
from dgcl.topology.checks import check_choice, check_flag, check_index

Order = Literal["auto", "aggregate", "multiply"]
"""What comes first: the aggregation, the product, or ("auto") what makes the aggregated rows narrower."""


class GCNConv(Module):
    """Graph convolution with symmetric normalisation: PyG's ``GCNConv`` (Kipf and Welling, 2017).

    Parameters ``lin.weight`` (out_channels, in_channels) and ``bias`` (out_channels,).

    Args:
        in_channels, out_channels: Widths of rows.
        add_self_loops: Every vertex has one self loop, in place of those that the graph has.
        normalize: Divide by the square roots of the in-degrees of both ends; False: a plain sum, no loops added.
        bias: Add a bias after the aggregation.
        order: What comes first.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        add_self_loops: bool = True,
        normalize: bool = True,
        bias: bool = True,
        order: Order = "auto",
    ) -> None:
        super().__init__()
        self.add_self_loops, self.normalize, self.out_channels = add_self_loops, normalize, out_channels
        self.multiply_first = _multiply_first(order, in_channels, out_channels)
        self.lin = Linear(in_channels, out_channels, bias=False)
        self.bias = Parameter(torch.zeros(out_channels)) if bias else None
        torch.nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Tensor | Constant, comm: Communicator | None = None) -> Tensor:
        """``(num_owned, in_channels)`` to ``(num_owned, out_channels)``; collective.

        Args:
            x: Owned rows, or what ``aggregator.constant(rows)`` made of them.
            comm: The communicator; None for this thread's current one.
        """
        comm = current(comm)
        aggregate = Normalised(comm, self.add_self_loops) if self.normalize else Aggregator(comm)
        out = _aggregate_and_multiply(aggregate, x, self.lin.weight, self.multiply_first)
        return out if self.bias is None else out + self.bias


class SAGEConv(Module):
    """The mean of the neighbours and the vertex itself, each with a product: PyG's ``SAGEConv`` (Hamilton, 2017).

    Parameters ``lin_l.weight``, ``lin_l.bias`` for neighbours and ``lin_r.weight`` for the vertex.

    Args:
        in_channels, out_channels: Widths of rows.
        aggr: "mean", "sum" or "max" (then aggregated first).
        root_weight: Add the vertex's own row.
        bias: Add a bias.
        order: What comes first.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: Literal["mean", "sum", "max"] = "mean",
        *,
        root_weight: bool = True,
        bias: bool = True,
        order: Order = "auto",
    ) -> None:
        super().__init__()
        check_choice(aggr, "aggr", ("mean", "sum", "max"))
        if aggr == "max" and order == "multiply":
            raise ValueError(
                "order must be 'auto' or 'aggregate' with aggr='max', which no product may precede"
            )
        self.aggr: Literal["mean", "sum", "max"] = aggr
        self.out_channels = out_channels
        self.multiply_first = _multiply_first(order, in_channels, out_channels) and aggr != "max"
        self.lin_l = Linear(in_channels, out_channels, bias=bias)
        self.lin_r = Linear(in_channels, out_channels, bias=False) if root_weight else None

    def forward(self, x: Tensor | Constant, comm: Communicator | None = None) -> Tensor:
        """``(num_owned, in_channels)`` to ``(num_owned, out_channels)``; as :meth:`GCNConv.forward`."""
        comm = current(comm)
        aggregate = Aggregator(comm, self.aggr)
        out = _aggregate_and_multiply(aggregate, x, self.lin_l.weight, self.multiply_first)
        if self.lin_l.bias is not None:
            out = out + self.lin_l.bias
        if self.lin_r is not None:
            out = out + self.lin_r(x.rows if isinstance(x, Constant) else x)
        return out


class GINConv(Module):
    """A network of the sum of the neighbours and the vertex: PyG's ``GINConv`` (Xu et al., 2019).

    Parameters of ``nn``, and ``eps`` (1,), a buffer where it is not trained.

    Args:
        nn: Takes rows to rows, each for itself.
        eps: The vertex's own row counts ``1 + eps`` times.
        train_eps: Learn it.
    """

    eps: Tensor

    def __init__(self, nn: Module, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        require_module(nn, "nn")
        require_numbers(eps=eps)
        check_flag(train_eps, "train_eps")
        self.nn = nn
        value = torch.full((1,), float(eps))
        if train_eps:
            self.eps = Parameter(value)
        else:
            self.register_buffer("eps", value)

    def forward(self, x: Tensor | Constant, comm: Communicator | None = None) -> Tensor:
        """``(num_owned, *F)`` to what ``nn`` makes of such rows; as :meth:`GCNConv.forward`."""
        comm = current(comm)
        total = _aggregated(Aggregator(comm), x)
        rows = x.rows if isinstance(x, Constant) else x
        return self.nn(total + (1 + self.eps.to(rows.dtype)) * rows)


class Normalised:
    """Sums with 1 / sqrt(in-degree of tail * in-degree of head) as weights, with one self loop for each vertex."""

    reduce = "normalised"

    def __init__(self, comm: Communicator, add_self_loops: bool) -> None:
        of_comm = _normalisations.setdefault(comm, {})
        if add_self_loops not in of_comm:
            with torch.inference_mode(False), torch.no_grad():  # kept, and may be saved for a backward
                of_comm[add_self_loops] = _normalise(comm, add_self_loops)
        self.operation, self.loops = of_comm[add_self_loops]
        self._aggregator = Aggregator(comm, operation=self.operation)

    def __call__(self, x: Tensor) -> Tensor:
        """``(num_owned, *F)`` to the sums; collective."""
        total = self._aggregator(x)
        if self.loops is None:
            return total
        loops = self.loops.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        return torch.addcmul(total, x, loops)


_normalisations: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


@untransformed
def _normalise(comm: Communicator, add_self_loops: bool) -> tuple[Any, Tensor | None]:
    """The weighted operation, and what rows themselves count, ``(num_owned, 1)``. Collective.

    A vertex with k self loops has one instead of them: its own row counts 1 - k times more.

    Raises:
        ValueError: Only some of the ranks add self loops; on every rank.
    """
    with comm.collective("gcn_norm"):
        require_same(add_self_loops=comm.control.exchange(add_self_loops))
    local, n, slices = comm.local, comm.num_owned, comm.grid.slices
    num_items = n * slices
    degrees = local.in_degrees[:num_items:slices].astype(np.float64)
    more: NDArray[np.float64] = np.zeros(n)
    if add_self_loops:
        loops = local.heads[
            (local.heads == local.indices) & (local.heads < num_items)
        ]  # in this rank's slice
        more = 1.0 - np.bincount(loops // slices, minlength=n).astype(np.float64)
        degrees = degrees + more
    scale = np.divide(1, np.sqrt(degrees), out=np.zeros(n), where=degrees > 0)
    mine = torch.from_numpy(scale)[:, None].to(comm.device)
    of_items = mine.repeat_interleave(slices, 0).view(torch.int64)  # a wire type rounds no integers
    at_tails = comm.expand(of_items)[:, 0].cpu().numpy().view(np.float64)
    at_heads = at_tails[:num_items]
    if PARTIAL in comm.exchanges:
        at_heads = comm.expand(of_items, PARTIAL)[:, 0].cpu().numpy().view(np.float64)
    own = torch.from_numpy(more)[:, None].to(comm.device) * mine**2 if add_self_loops else None
    weight = torch.from_numpy(at_heads[local.heads] * at_tails[local.indices]).to(comm.device)
    return Aggregator(comm, edge_weight=weight).operation, own


def _multiply_first(order: Order, in_channels: int, out_channels: int) -> bool:
    check_index(in_channels, "in_channels")
    check_index(out_channels, "out_channels")
    check_choice(order, "order", ("auto", "aggregate", "multiply"))
    return order == "multiply" or (order == "auto" and out_channels < in_channels)


def _aggregated(aggregate: Aggregator | Normalised, x: Tensor | Constant) -> Tensor:
    call: Callable[[Tensor], Tensor] = aggregate
    return x.aggregated(aggregate.operation, aggregate.reduce, call) if isinstance(x, Constant) else call(x)


def _aggregate_and_multiply(
    aggregate: Aggregator | Normalised, x: Tensor | Constant, weight: Tensor, multiply_first: bool
) -> Tensor:
    """``A x W^T``, in the order that is asked for; aggregates of constant rows are kept, so they come first."""
    _check_columns(x.rows if isinstance(x, Constant) else x, weight)
    if isinstance(x, Constant) or not multiply_first:
        return torch.nn.functional.linear(_aggregated(aggregate, x), weight)
    return aggregate(torch.nn.functional.linear(x, weight))


def _check_columns(x: Tensor, weight: Tensor) -> None:
    """Refuse rows that cannot be multiplied by a layer's weight.

    Raises:
        ValueError, TypeError: Another number of columns, or another type.
    """
    require_tensors(x=x)
    if x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"x must have in_channels = {weight.shape[1]} columns, (num_owned, {weight.shape[1]}) (got shape"
            f" {tuple(x.shape)})"
        )
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"x must be of the parameters' type, {weight.dtype} (got {x.dtype}); convert the rows or the layer"
        )

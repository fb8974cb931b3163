"""Guards: what gives other numbers than on one device without an error is seen while it runs, and said once.

Two marks on the control plane are enough: what the last sum over ranks was, and which reduction over this rank's rows
none has completed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.nn.drift import parameters_of, watch_of
from dgcl.nn.own_rows import counts
from dgcl.ranks.context import context
from dgcl.ranks.warned import warn_of_own_sums, warn_once

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


#: Functions that reduce rows to what a sum over ranks may complete.
_REDUCTIONS = re.compile(
    "amax|amin|bincount|bmm|count_nonzero|dot|einsum|index_add_?|matmul|max|mean|min|mm|mode|scatter_(add|reduce)_"
    "|std|sum|tensordot|var"
)
#: Those that give a row for each, and look at all: which of their arguments names the dimension, and that without it.
_ALONG = {
    **dict.fromkeys(("softmax", "log_softmax", "sort", "argsort"), (1, -1)),
    **dict.fromkeys(("batch_norm", "linalg_qr", "linalg_svd", "multi_head_attention_forward"), (99, 0)),
    **dict.fromkeys(("conv1d", "instance_norm"), (99, -1)),
    **dict.fromkeys(("gru", "lstm", "rnn_relu", "rnn_tanh"), (-1, 0)),  # batch_first, which comes last
    "normalize": (2, 1),
    **dict.fromkeys(("cummax", "cumprod", "cumsum", "flip", "flipud"), (1, 0)),
    "roll": (2, 0),
    "scaled_dot_product_attention": (99, -2),
}
#: How functions begin that take, turn or join rows and add none up.
_TAKING = re.compile(
    "__|chunk|embedding|flatten|gather|index_select|masked_select|narrow|new_|pad|repeat|reshape|select|split|take"
    "|tensor_split|unbind|unflatten|unfold|view"
)
#: Those that sum rows of edges by their heads, or sort them for that.
_BY_HEADS = re.compile("argsort|index_|scatter|segment|sort")
_RANDOM = re.compile(
    "alpha_dropout|bernoulli|dropout[123]d|feature_|gumbel_softmax|multinomial|normal$|rand(?!om)|rrelu"
)
_SYNC = "sync_gradients"

#: Rows that a mask or a slice took.
_some = WeakTensorKeyDictionary()


def see_rows(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """See a call that takes this rank's rows for all, inside a distributed model; never under a compiler.

    What it is shows in shapes: the number of this rank's vertices or edges is gone, or is there twice. Reductions are
    marked, as a sum over ranks may complete them; the rest is warned of.
    """
    name, comm = getattr(func, "__name__", ""), context.communicator
    if comm is None or comm.world_size == 1:
        return
    if _RANDOM.match(name) and kwargs.get("generator") is None and kwargs.get("training", True):
        warn_once(
            comm,
            f"the model draws random numbers by {name}, others on each rank, and not those of one device: take"
            " torch.nn.functional.dropout, or dispatch what was drawn for the whole graph",
        )
    if name in ("div", "div_") and args and type(args[-1]) is int:
        see_count(
            args[-1],
            "divides by {}, how many rows this rank has: those of all are comm.num_nodes or comm.num_edges of comm ="
            " dgcl.current_communicator()",
        )
    values = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor) and not is_lazy(each)]
    sums = _REDUCTIONS.fullmatch(name)
    if not sums and name not in _ALONG and values and getattr(out, "shape", 0) == values[0].shape:
        return  # an element of each
    results = [each.shape for each in (out if isinstance(out, tuple) else (out,)) if isinstance(each, Tensor)]
    vertices, edges = counts(comm)
    for rows in values if results else ():
        sizes = rows.shape[: 1 if rows.dim() < 3 else 3]
        dim = next((at for at, size in enumerate(sizes) if size in vertices or size in edges), None)
        dim = 0 if rows in _some else dim
        if name == "__getitem__":
            return _see_taken(rows, dim if rows.is_floating_point() else None, args[1], out, comm)
        count = -1 if dim is None else sizes[dim]
        if dim is None or any(isinstance(each, Parameter) and count in each.shape for each in values):
            continue
        integers = not rows.is_floating_point()
        if integers and not sums:
            continue
        if (count in edges or comm.message_edges) and (integers or _BY_HEADS.match(name)):
            continue
        if name in _ALONG:
            place, default = _ALONG[name]
            along = kwargs.get("dim", args[place] if len(args) > place else default)
            if along in (dim, dim - rows.dim()) and (name != "batch_norm" or kwargs.get("training")):
                _warn_of_own_rows(name, comm)
        elif (times := max(shape.count(count) for shape in results)) > max(
            each.shape.count(count) for each in values
        ) and (len(values) > 1 or not _TAKING.match(name)):  # heads of a width may be as many as rows
            _warn_of_own_rows("products with all rows", comm)
        elif not times and not _TAKING.match(name):
            if sums:
                token, node = set[int](), getattr(out, "grad_fn", None)
                if node is not None:
                    node.metadata["dgcl"] = token  # lives as long as the graph has the node
                mark = f"{name} over", ref(token), token if node is None else None, id(comm)
                comm.control.pooled = [*comm.control.pooled[-15:], mark]
            else:
                _warn_of_own_rows(name, comm)
        return


def forget_unused(comm: Communicator) -> None:
    """At the end of a forward: reductions that nothing of its outputs depends on, as energies for forces, are none."""
    comm.control.pooled = [each for each in comm.control.pooled if each[1]() is not None]


def see_count(rows: Any, what: str) -> None:
    """Warn of what is done with so many rows, or with that number, if this rank has as many."""
    number = len(rows) if isinstance(rows, Tensor) and rows.dim() else rows
    if type(number) is int and any(number in each for each in counts(context.communicator)):
        warn_once(context.communicator, f"the model {what.format(number)}")


def _see_taken(rows: Tensor, dim: int | None, index: Any, out: Tensor, comm: Communicator) -> None:
    """See rows that are taken by number, or by a mask."""
    wholes = (comm.num_owned, comm.num_nodes), (comm.local.num_edges, comm.num_edges)
    if isinstance(index, slice) and (index.stop, len(rows)) in wholes:
        warn_once(
            comm,
            f"the model takes the first {index.stop} of {len(rows)} rows of the whole graph for this rank's: hand"
            " them out with dgcl.dispatch, comm.dispatch_edges or dgcl.dispatch_features",
        )
    if dim == 0 and (isinstance(index, slice) or getattr(index, "dtype", None) is torch.bool):
        _some[out] = True
    elif dim == 0 and type(index) is int:
        _warn_of_own_rows(f"rows {index}", comm)


def _warn_of_own_rows(name: str, comm: Communicator) -> None:
    warn_once(
        comm,
        f"the model takes {name} along this rank's rows, which are not all: compute it with"
        " dgcl.nn.global_sum (docs/frameworks.md, Losses), or along another dimension",
    )


def warn_of_partial_losses(parameters: Sequence[Parameter], comm: Communicator) -> None:
    """Before gradients are summed: warn, once on rank 0, where they are not shares of one loss of the whole graph."""
    warn_of_own_sums(comm)
    held = [(each.grad, each._version) for each in parameters if each.grad is not None]
    if comm.world_size == 1 or not held:
        return
    # Where there are other ranks, DDP may change gradients along another axis.
    alone = not dist.is_initialized() or dist.get_world_size() == comm.world_size
    for grad, version in held:
        if getattr(grad, "dgcl_version", None) == version:
            warn_once(
                comm,
                "sync_gradients of gradients that are sums over ranks already, and no step between: these count once a"
                " rank; call it once for each step, after the last backward",
            )
        elif alone and getattr(grad, "dgcl_added", grad._version) != grad._version and grad.any():
            warn_once(
                comm,
                "gradients were changed after the backward, when they were each rank's share: clip them, unscale them"
                " or add to them after sync_gradients",
            )
    if comm.control.last_sum in ("", _SYNC):
        warn_once(
            comm,
            "sync_gradients after a backward in which no loss of dgcl.nn took part: a mean over this rank's rows has"
            " another divisor on each rank; take dgcl.nn.loss(fn)(outputs, targets, mask)",
        )


def warn_of_terms(comm: Communicator, gradient: Tensor | None = None) -> None:
    """In the backward of a loss: warn where what it is of has other terms, which no rank shares with others.

    Or in that of a sum over ranks, with the ``gradient`` of the sum: mark what ``torch.autograd.grad`` is of, for the
    next loss to compare. Where all ranks compute it alike it counts once a rank.
    """
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":  # of torch.autograd
        frame = frame.f_back
    roots: Sequence[Tensor] = () if frame is None else frame.f_locals.get("t_outputs", ())
    if not any(parameters_of(root, "_WithValue") for root in roots):
        return
    if gradient is None:
        warn_once(
            comm,
            "a term beside the loss of dgcl.nn counts once a rank: take dgcl.nn.loss for what is of rows, too, and"
            " dgcl.nn.count_once(term) for what is the same on every rank, as a norm of parameters",
        )
    elif not frame.f_locals["kwargs"]["accumulate_grad"]:
        watch_of(comm).differentiated = roots[0].detach()

"""Guards: what gives other numbers than on one device without an error is seen while it runs, and said once.

Two marks on the control plane are enough: what the last sum over ranks was, and which reduction over this rank's rows
none has completed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.nn import Parameter

from dgcl.errors import InexactWarning
from dgcl.nn.drift import parameters_of
from dgcl.ranks.context import context

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


#: Functions that reduce rows to what a sum over ranks may complete.
_REDUCTIONS = ("mean", "sum", "amax", "amin", "max", "min", "std", "var")
_SCATTERS = ("scatter_add_", "scatter_reduce_", "index_add_", "index_add")
#: Those that nothing completes: which of their arguments names the dimension, and that without it.
_ALONG = {
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp", "cumsum", "sort", "argsort", "median"), (1, -1)),
    **dict.fromkeys(("norm", "topk"), (2, -1)),
    "normalize": (2, 1),
    "multi_head_attention_forward": (99, 0),
}
_SEEN = {
    *_REDUCTIONS, *_SCATTERS, *_ALONG, "__getitem__", "batch_norm", "matmul", "mm", "scaled_dot_product_attention"
}  # fmt: skip
_SYNC = "sync_gradients"

_warned: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def see_rows(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """See a call that takes this rank's rows for all, inside a distributed model; never under a compiler.

    Reductions are marked, as a sum over ranks may complete them; the rest is warned of.
    """
    name, comm = getattr(func, "__name__", ""), context.communicator
    if name not in _SEEN or comm is None or comm.world_size == 1:
        return
    rows, other = (*args, *kwargs.values(), None, None)[:2]
    if name in _SCATTERS:
        rows = args[-1] if args and isinstance(args[-1], Tensor) else kwargs.get("src", rows)
        if _counts_rows(rows, comm):
            _mark(comm, f"{name} of")
    elif name in ("matmul", "mm") and min(rows.dim(), other.dim()) > 1:
        if _counts_rows(other, comm) and len(rows) != len(other):
            _mark(comm, "product over")
        elif _counts_rows(rows, comm) and other.shape[-1] == len(rows):
            _warn_of_own_rows("products with all rows", comm)
    elif name == "__getitem__" and isinstance(other, slice):
        whole = {comm.local.num_edges: comm.num_edges, comm.num_owned: comm.num_nodes}
        if isinstance(rows, Tensor) and not other.start and whole.get(other.stop) == len(rows) > other.stop:
            _warn(
                comm,
                f"the model takes the first {other.stop} of {len(rows)} rows of the whole graph for this rank's: hand"
                " them out with dgcl.dispatch, comm.dispatch_edges or dgcl.dispatch_features",
            )
    elif name == "scaled_dot_product_attention":
        if rows.shape[-2] == comm.num_owned not in rows.shape[:-2]:
            _warn_of_own_rows(name, comm)
    elif name in _REDUCTIONS and _counts_rows(rows, comm):
        if 0 in _dims(rows, args, kwargs, 1, None):
            _mark(comm, f"{name} over")
    elif name in _ALONG and _counts_rows(rows, comm):
        if 0 in _dims(rows, args, kwargs, *_ALONG[name]):
            _warn_of_own_rows(name, comm)
    elif name == "batch_norm" and kwargs.get("training") and _counts_rows(rows, comm):
        _warn_of_own_rows(name, comm)


def _mark(comm: Communicator, reduction: str) -> None:
    comm.control.pooled = [*comm.control.pooled[-15:], reduction]


def _counts_rows(rows: Any, comm: Communicator) -> bool:
    """Whether there is a row for each vertex, and not for each edge."""
    counts = isinstance(rows, Tensor) and rows.is_floating_point() and rows.dim() > 0
    return counts and len(rows) == comm.num_owned != comm.local.num_edges


def _dims(
    rows: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], place: int, default: int | None
) -> set[int]:
    """The dimensions that arguments name."""
    dim = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else default))
    dims = dim if isinstance(dim, (tuple, list)) else range(rows.dim()) if dim is None else (dim,)
    return {each % rows.dim() for each in dims if isinstance(each, int)}


def _warn_of_own_rows(name: str, comm: Communicator) -> None:
    _warn(
        comm,
        f"the model takes {name} along this rank's rows, which are not those of all vertices: compute it with"
        " dgcl.nn.global_sum (docs/frameworks.md, Losses), or along another dimension",
    )


def warn_of_partial_losses(parameters: Sequence[Parameter], comm: Communicator) -> None:
    """Before gradients are summed: warn, once on rank 0, where they are not shares of one loss of the whole graph."""
    control = comm.control
    pooled, control.pooled = control.pooled, ()
    if comm.world_size == 1 or all(parameter.grad is None for parameter in parameters):
        return
    if pooled:
        _warn(
            comm,
            f"the model took the {pooled[0]} this rank's rows, which is not that of all vertices: take"
            " dgcl.nn.global_mean_pool and its kin, or complete a sum with dgcl.nn.global_sum",
        )
    if control.last_sum in ("", _SYNC):
        _warn(
            comm,
            "sync_gradients after a backward in which no loss of dgcl.nn took part: a mean over this rank's rows has"
            " another divisor on each rank; take dgcl.nn.loss(fn)(outputs, targets, mask)",
        )


def warn_of_terms(comm: Communicator) -> None:
    """In the backward of a loss: warn where what it is of has other terms, which no rank shares with others."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":  # of torch.autograd
        frame = frame.f_back
    roots = () if frame is None else frame.f_locals.get("t_outputs", ())
    if any(parameters_of(root, "_WithValue") for root in roots):
        _warn(
            comm,
            "a term beside the loss of dgcl.nn counts once a rank: take dgcl.nn.loss for what is of rows, too, and"
            " dgcl.nn.count_once(term) for what is the same on every rank, as a norm of parameters",
        )


def _warn(comm: Communicator, text: str) -> None:
    warned = _warned.setdefault(comm, set())
    if text not in warned and comm.rank == 0:
        warnings.warn(text, InexactWarning, stacklevel=4)
    warned.add(text)

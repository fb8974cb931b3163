"""Guards: what gives other numbers than on one device without an error is seen while it runs, and said once.

Two marks on the control plane are enough: what the last sum over ranks was, and which reduction over this rank's rows
none has completed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Parameter

from dgcl.errors import InexactWarning
from dgcl.ranks.context import context

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

__all__ = ["see_reduction", "warn_of_partial_losses"]

_NAMES = ("mean", "sum", "amax", "amin", "max", "min", "std", "var")
_REDUCTIONS: dict[Any, str] = {
    getattr(where, name): f"{name} over" for where in (torch, Tensor) for name in _NAMES
}
_SCATTERS: dict[Any, str] = {
    getattr(Tensor, name): f"{name} of"
    for name in ("scatter_add_", "scatter_reduce_", "index_add_", "index_add")
}
_SYNC = "sync_gradients"

_warned: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def see_reduction(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Mark a reduction over this rank's rows, of a call inside a distributed model; never under a compiler."""
    name = _REDUCTIONS.get(func) or _SCATTERS.get(func)
    comm = context.communicator
    if name is None or comm is None or torch.compiler.is_compiling():
        return
    rows = args[0] if args else kwargs.get("input")
    dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    if func in _SCATTERS:
        rows = args[-1] if args and isinstance(args[-1], Tensor) else kwargs.get("src", rows)
    if not isinstance(rows, Tensor):
        return
    dims = dim if isinstance(dim, (tuple, list)) else range(rows.dim()) if dim is None else (dim,)
    is_rows = rows.dim() > 0 and len(rows) == comm.num_owned != comm.local.num_edges
    if is_rows and any(isinstance(each, int) and each % rows.dim() == 0 for each in dims):
        comm.control.pooled = [*comm.control.pooled[-15:], name]


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


def _warn(comm: Communicator, text: str) -> None:
    warned = _warned.setdefault(comm, set())
    if text not in warned and comm.rank == 0:
        warnings.warn(text, InexactWarning, stacklevel=4)
    warned.add(text)

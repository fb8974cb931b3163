"""The mode in which a distributed model runs: calls of torch that would look at one rank alone are seen."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dgcl.autograd.operators import transparent
from dgcl.distributed.edge_ends import call, name_of
from dgcl.distributed.functional_dropout import DROPOUTS, dropout_of_rows
from dgcl.nn.guards import see_rows
from dgcl.ranks.context import context
from dgcl.ranks.torch_private import OperatorBase, at_trace_time, num_function_modes, skip_frame


class AsOneDevice(TorchFunctionMode):
    """While it is entered, dropout depends on the vertex or the edge, and ends of edges on no rank."""

    def __enter__(self) -> Any:
        if not torch.compiler.is_compiling():
            transparent.count += 1
        super().__enter__()
        self._depth = num_function_modes()
        return self

    def is_innermost(self) -> bool:
        """Whether no other mode was entered inside it."""
        return num_function_modes() == self._depth

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not torch.compiler.is_compiling():
            transparent.count -= 1
            _explain(error)
        super().__exit__(kind, error, trace)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call ``func``, or what replaces it."""
        kwargs = kwargs or {}
        func = dropout_of_rows if func in DROPOUTS else func
        if torch.compiler.is_compiling() or isinstance(func, OperatorBase) or not name_of(func):
            return func(*args, **kwargs)
        out = call(func, args, kwargs)
        see_rows(func, args, kwargs, out)
        return out


@at_trace_time
def skip_frames() -> None:
    """Called before the mode is entered: compiled by themselves for one function, these would be taken for others."""
    for function in (AsOneDevice.__torch_function__, call, see_rows):
        skip_frame(function)


def _explain(error: Any) -> None:
    """Add to an error of torch or DGL in a distributed model what a rank has."""
    comm = context.communicator
    named = type(error).__name__ in ("IndexError", "RuntimeError", "DGLError")
    if comm is not None and named and not hasattr(error, "__notes__"):
        error.add_note(
            f"in a distributed model: rank {comm.rank} has {comm.num_owned} of {comm.num_nodes} vertices and"
            f" {comm.local.num_edges} of {comm.num_edges} edges. What has a row for each goes through"
            " dgcl.dispatch, and so do other graphs; rows of any vertices, by ids of the whole graph, come from"
            " dgcl.fetch"
        )

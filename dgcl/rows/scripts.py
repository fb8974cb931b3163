"""Runs scripted functions, ScriptModules and ``torch.autograd.Function`` on tensors whose rows are divided over ranks.

Torch's ``__torch_function__`` does not see them; a wrapper around the three classes' own call does, which
:func:`dgcl.distribute` installs for the whole process; calls without rows go through it. A call with rows is tried,
with its gradients; if row by row it runs on this rank's rows. Else the Python of a scripted function is run; an
autograd function of whole numbers gets all rows, untried, since compiled code may take numbers for places in memory;
all else is refused by name.
Called by `dgcl/distributed/distribute`. Free to change while each is exact or refused
(`tests/dgcl/rows/test_bypasses.py`), and autograd functions of whole numbers get all rows
(`tests/dgcl/rows/test_edge_names.py`).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from dgcl.rows.gathering import of_library
from dgcl.rows.row_call import Call
from dgcl.rows.rowwise import tried
from dgcl.rows.tensor import rows_in, tensors_in, unseen


def see_scripts() -> None:
    """Let calls of scripted functions, ScriptModules and autograd functions with rows be seen. Idempotent."""
    script_function: Any = torch.jit.ScriptFunction
    script_module: Any = torch.jit.RecursiveScriptModule
    for kind in (script_function, script_module):
        if not hasattr(kind.__call__, "dgcl_seen"):
            kind.__call__ = _seen(
                kind.__call__, lambda self: getattr(self, "original_name", getattr(self, "name", ""))
            )
    function: Any = torch.autograd.Function
    if not hasattr(function.apply, "dgcl_seen"):
        apply = function.__dict__["apply"].__func__
        function.apply = classmethod(_seen(apply, lambda self: self.__name__))


def _seen(call: Callable[..., Any], name_of: Callable[[Any], str]) -> Callable[..., Any]:
    @functools.wraps(call)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = next(rows_in(args, kwargs), None)
        if first is None:
            return call(self, *args, **kwargs)
        buffers = [*self.buffers()] if isinstance(self, torch.nn.Module) else []
        before = [(buffer, buffer._version, buffer.clone()) for buffer in buffers]
        with unseen():
            this = Call(_Bound(call, self), name_of(self), args, kwargs, first)
            out = of_library(this) if _addresses(self, args) else tried(this, gradients=True)
            for buffer, version, value in before:
                if buffer._version != version:  # statistics of some rows
                    buffer.copy_(value)
                    out = NotImplemented
        if out is NotImplemented and (written := getattr(self, "_torchdynamo_inline", None)):
            return written(*args, **kwargs)  # the function of Python that torch.jit.script was given
        if out is NotImplemented:
            raise RuntimeError(
                f"{this.name} was given rows that are divided over ranks: dgcl cannot see what it does, and its results"
                " are not row by row. Write it with torch's own functions, call it with dgcl.local(x), or say"
                " that it works row by row: dgcl.rowwise(f)"
            )
        return out

    run.dgcl_seen = True  # type: ignore[attr-defined]
    return run


def _addresses(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether an autograd function is given whole numbers, which compiled code may take for places in memory."""
    return (
        isinstance(function, type)
        and any(each.dtype in (torch.int32, torch.int64) for each in tensors_in(args))
        and not any(map(callable, args))
    )


class _Bound:
    """A function of an object, equal to another of the same object."""

    def __init__(self, call: Callable[..., Any], owner: Any) -> None:
        self.call, self.owner = call, owner
        self._key = id(owner), getattr(owner, "training", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.owner, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bound) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

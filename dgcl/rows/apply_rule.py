"""Runs a function of torch whose arguments include ``Rows`` or ``Replicated`` tensors, with the result of one device.

It takes the first that applies: the rule of the function's name (``rule_table``), the function on this rank's rows if a
trial finds it row by row (``rowwise``), the function on all rows (``gathering``)::

    h = x @ w                      # __torch_function__ -> call(Tensor.matmul, (x, w)) -> products.matmul

Called by `tensor`, whose ``OneDevice._call`` this module sets when `dgcl/rows/__init__` imports it. Free to change
while every call of torch gives what it gives on one device, or is refused (`tests/dgcl/rows/test_sweep.py`), and
refusals say what to do (`tests/dgcl/rows/test_bypasses.py`).
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from dgcl.communicator import given_or_current
from dgcl.ranks.torch_private import torch_function_on, tracing_state
from dgcl.rows import rule_table
from dgcl.rows.differentiate import differentiate
from dgcl.rows.gathering import gathered, of_library
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import as_ids, total, write
from dgcl.rows.rowwise import tried
from dgcl.rows.tensor import OneDevice, Replicated, Rows, mapped, plain, replicated, tensors_in

#: Of a replicated value they are those of a plain tensor.
_AS_PLAIN = {"__format__", "__repr__", "__str__", "__reduce_ex__", "__deepcopy__"}


@functools.cache
def _rule_of(func: Any) -> tuple[str, Callable[[Call], Any] | None, bool]:
    """A function's name, its rule, and whether it takes numbers of ends as they are."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        name = getattr(func.__self__, "__name__", "") + "=" * (name == "__set__")
    elif name == "grad":
        return name, differentiate, True
    elif type(func).__name__.startswith("OpOverload") and not str(func).startswith("aten."):
        return name, of_library, False  # another library's, whatever its name
    return name, rule_table.rule(name), name in rule_table.KEEPS_ENDS


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function of torch, as on one device; runs where torch does not ask again."""
    name, rule, keeps_ends = _rule_of(func)
    first, ends = _rows_among(args, kwargs)
    this = Call(func, name, args, kwargs, first)
    if rule is differentiate:
        return differentiate(this)
    if first is None:
        return _of_replicated(this)
    if tracing_state() is not None:
        raise RuntimeError(
            "torch.jit.trace cannot record what ranks do: trace the model of one device (dgcl)"
        )
    if this.writes and hasattr(args[0], "dgcl_copied"):
        _refuse_copy(name)
    if ends and not keeps_ends:
        if this.writes and type(args[0]) is Rows and args[0]._ends:
            args[0]._local, args[0]._ends = as_ids(args[0])._local, None
        return call(func, mapped(as_ids, args), mapped(as_ids, kwargs))
    if kwargs.get("out") is not None:
        rest = {**kwargs}
        return write(rest.pop("out"), call(func, args, rest))
    if rule is not None:
        return rule(this)
    if this.writes and hasattr(Tensor, name[:-1]):
        # Of a copy: a backward may need what the function was given.
        copied = call(Tensor.clone, (args[0],), {})
        result = call(getattr(Tensor, name[:-1]), (copied, *args[1:]), kwargs)
        if type(args[0]) is Rows and result.shape != args[0].shape:
            torch.utils.swap_tensors(args[0], result)
            return args[0]
        return write(args[0], result)
    matches = NotImplemented if this.writes or name in rule_table.OF_ALL_ROWS else tried(this)
    return gathered(this) if matches is NotImplemented else matches


def _rows_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """The first rows among arguments, or None; and whether any are numbers of ends.

    Raises:
        RuntimeError: Some have a history of their own.
    """
    first: Any = None
    ends = False
    for value in (*args, *kwargs.values()):
        if type(value) is Rows or type(value) in (list, tuple):
            for each in tensors_in(value) if type(value) is not Rows else (value,):
                if type(each) is Rows:
                    first = each if first is None else first
                    ends = ends or each._ends is not None
                    if each.grad_fn is not None:
                        _refuse_function(each.grad_fn.name().removesuffix("Backward"))
    return first, ends


def _refuse_function(name: str) -> NoReturn:
    """Rows have no history of their own; the wrapper got one from C++.

    Raises:
        RuntimeError: Naming the function.
    """
    if "BackwardHook" in name:
        raise RuntimeError(
            "full backward hooks of modules would see rows without their ranks: hook tensors (dgcl)"
        )
    if name == "CheckpointFunction":
        raise RuntimeError("torch.utils.checkpoint of rows takes use_reentrant=False (dgcl)")
    raise RuntimeError(
        f"{name}, a torch.autograd.Function, was given rows that are divided over ranks: if it works row by row"
        f" say so once, dgcl.rowwise({name}); else write it with torch's own functions (dgcl)"
    )


def _of_whole(hook: Callable[[Any], Any]) -> Callable[[Tensor], Any]:
    """A hook of a replicated value, which gets its gradient where autograd has a share."""
    comm = given_or_current(None)

    def run(share: Tensor) -> Any:
        with torch_function_on():
            out = hook(replicated(total(share, comm, "gradient in a hook")))
        return None if out is None else plain(out) / comm.world_size

    return run


def _refuse_copy(name: str) -> NoReturn:
    raise RuntimeError(
        f"{name} would change a copy of rows, which is a view of them on one device: write x[i] = ... (dgcl)"
    )


def _of_replicated(this: Call) -> Any:
    func, args, kwargs = this.func, this.args, this.kwargs
    if this.name == "register_hook":
        return func(args[0], _of_whole(args[1]))
    if this.name == "retain_grad":
        raise RuntimeError("retain_grad of a value that all ranks have would keep this rank's share (dgcl)")
    if this.writes and hasattr(args[0], "dgcl_copied"):
        _refuse_copy(this.name)
    if this.name in _AS_PLAIN:
        out = func(plain(args[0]), *args[1:], **kwargs)
        return replicated(out) if this.name == "__deepcopy__" else out
    out = func(*args, **kwargs)
    if type(out) is Tensor and out.layout == torch.strided:  # what most functions give
        for each in args:
            if out is each:
                return out
        out.__class__ = Replicated
        return out
    return replicated(out, tensors_in((*args, *kwargs.values()))) if isinstance(out, (tuple, list)) else out


OneDevice._call = staticmethod(call)

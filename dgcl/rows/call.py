"""One function of torch meets rows or replicated values: the rule of its kind, a trial, or all rows.

>>> h = x @ w                      # __torch_function__ -> call(Tensor.matmul, (x, w)) -> products.matmul
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, strided
from torch.utils import swap_tensors

from dgcl.rows import table
from dgcl.rows.differentiate import differentiate
from dgcl.rows.gathering import gathered, writes
from dgcl.rows.rowwise import tried
from dgcl.rows.sums import as_ids, write
from dgcl.rows.tensor import OneDevice, Replicated, Rows, mapped, plain, replicated, tensors_in


tracing = torch._C._get_tracing_state


def name_of(func: Any) -> str:
    """The name of a function of torch; of a property that it reads or sets, the property's."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        owner = getattr(func.__self__, "__name__", "")
        return f"{owner}=" if name == "__set__" else owner
    return name


@functools.cache
def rule_of(func: Any) -> tuple[str, Callable[..., Any] | None, bool]:
    """A function's name, its rule, and whether it takes numbers of ends as they are."""
    name = name_of(func)
    rule = differentiate if name == "grad" and func.__name__ == name else table.rule(name)
    return name, rule, name in table.KEEPS_ENDS


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function of torch, as on one device; runs where torch does not ask again."""
    name, rule, keeps_ends = rule_of(func)
    if tracing() is not None:
        raise RuntimeError(
            "torch.jit.trace cannot record what ranks do with rows: take the model of one device (dgcl)"
        )
    first: Rows | None = None
    ends = False
    for value in args if not kwargs else (*args, *kwargs.values()):
        if type(value) is Rows:
            if value.grad_fn is not None:
                _refuse_function(value)
            first = value if first is None else first
            ends = ends or value._ends is not None
        elif type(value) in (list, tuple):
            for each in tensors_in(value):
                if type(each) is Rows:
                    first = each if first is None else first
                    ends = ends or each._ends is not None
    if rule is differentiate:
        return differentiate(func, name, args, kwargs, first)
    if first is None:
        return _of_replicated(func, name, args, kwargs)
    if ends and not keeps_ends:
        if writes(name) and type(args[0]) is Rows and args[0]._ends:
            args[0]._local, args[0]._ends = as_ids(args[0])._local, None
        args, kwargs = mapped(_values, args), mapped(_values, kwargs)
        first = next(each for each in tensors_in((*args, *kwargs.values())) if type(each) is Rows)
    if kwargs.get("out") is not None:
        kwargs = {**kwargs}
        return write(kwargs.pop("out"), call(func, args, kwargs))
    if rule is not None:
        return rule(func, name, args, kwargs, first)
    if name[-1] == "_" and name[-2] != "_":
        return _in_place(func, name, args, kwargs)
    found = NotImplemented if name in table.OF_ALL_ROWS else tried(func, name, args, kwargs, first)
    return gathered(func, name, args, kwargs) if found is NotImplemented else found


def _refuse_function(value: Tensor) -> NoReturn:
    """Rows have no history of their own; the wrapper got one from C++.

    Raises:
        RuntimeError: Naming the function.
    """
    name = value.grad_fn.name().removesuffix("Backward")  # type: ignore[union-attr]
    if name == "CheckpointFunction":
        raise RuntimeError("torch.utils.checkpoint of rows takes use_reentrant=False (dgcl)")
    raise RuntimeError(
        f"{name}, a torch.autograd.Function, was given rows that are shared out over ranks: if it works row by row say so"
        f" once, dgcl.rowwise({name}); else write it with torch's own functions (dgcl)"
    )


def _values(value: Tensor) -> Tensor:
    return as_ids(value) if type(value) is Rows and value._ends is not None else value


def _in_place(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function would give, written into its first argument, which stays the same object."""
    own, function = args[0], getattr(Tensor, name[:-1], None)
    if function is None:
        return gathered(func, name, args, kwargs)
    # Of a copy: a backward may need what the function was given.
    result = call(function, (call(Tensor.clone, (own,), {}), *args[1:]), kwargs)
    if type(own) is Rows and result.shape != own.shape:
        swap_tensors(own, result)
        return own
    return write(own, result)


#: Of a replicated value they are those of a plain tensor.
_AS_PLAIN = {"__format__", "__repr__", "__str__", "__reduce_ex__", "__deepcopy__"}


def _of_replicated(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name in _AS_PLAIN:
        out = func(plain(args[0]), *args[1:], **kwargs)
        return replicated(out) if name == "__deepcopy__" else out
    out = func(*args, **kwargs)
    if type(out) is Tensor and out.layout == strided:  # what most functions give
        for each in args:
            if out is each:
                return out
        out.__class__ = Replicated
        return out
    return replicated(out, tensors_in((*args, *kwargs.values()))) if isinstance(out, (tuple, list)) else out


OneDevice._call = staticmethod(call)

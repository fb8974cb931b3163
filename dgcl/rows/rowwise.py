"""Whether a function works row by row: tried once for each way that it is called, on rows drawn at random.

The trial compares the function of seven rows with that of permuted, repeated and single ones of them; a function that
depends on other rows, on their number or on their order gives something else. Values are drawn so that orders differ.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dgcl.rows.sums import fitting
from dgcl.rows.tensor import Rows, mapped, plain, rows, tensors_in

_ROWS = 7
_PARTS = torch.tensor([5, 0, 3]), torch.tensor([2]), torch.tensor([6, 1, 4, 2, 2])

#: By a way of calling the dimensions at which results have rows; None: not row by row. Ranks that are threads learn alike.
_learnt: OrderedDict[Any, Any] = OrderedDict()
_MOST = 4096


def tried(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """The result of a function that works row by row; ``NotImplemented`` of any other."""
    found = [each for each in tensors_in((*args, *kwargs.values())) if type(each) is Rows]
    space = first._space
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or not all(each._space.same(space) for each in found):
        return NotImplemented
    key = func, *_signature(args), *_signature(kwargs.items())
    try:
        known = key in _learnt
    except TypeError:  # arguments without a hash
        return NotImplemented
    if not known:
        axes = _try(func, args, kwargs)
        _learnt[key] = axes
        while len(_learnt) > _MOST:
            _learnt.popitem(last=False)
    axes = _learnt[key]
    if axes is None:
        return NotImplemented
    out = func(*mapped(_local, args), **mapped(_local, kwargs))
    return _marked(out, axes, space)


def _local(value: Tensor) -> Tensor:
    return value._local if type(value) is Rows else plain(value)


def _marked(out: Any, axes: Any, space: Any) -> Any:
    if isinstance(axes, int):
        return rows(out, space, axes)
    return type(out)([_marked(each, axis, space) for each, axis in zip(out, axes, strict=True)])


def _signature(values: Any) -> tuple[Any, ...]:
    """What a call depends on besides the values of its tensors."""
    out: list[Any] = []
    for value in values:
        if type(value) is Rows:
            shape = list(value._local.shape)
            shape[value._axis] = -1
            out.append((value.dtype, value._axis, *shape))
        elif isinstance(value, Tensor):
            out.append((value.dtype, "plain", *value.shape))
        elif isinstance(value, (tuple, list)):
            out.append((type(value), *_signature(value)))
        elif isinstance(value, slice):
            out.append((slice, value.start, value.stop, value.step))
        else:
            out.append((type(value), value))
    return tuple(out)


def _try(func: Any, args: Any, kwargs: Any) -> Any:
    def run(part: Tensor | None) -> Any:
        place = iter(range(1000))
        fake = functools.partial(_drawn, part=part, place=place)
        return func(*mapped(fake, args), **mapped(fake, kwargs))

    try:
        with torch.no_grad():
            one = run(None)
            several = [run(part) for part in _PARTS]
            return _axes(one, several)
    except Exception:
        return None


def _axes(one: Any, several: list[Any]) -> Any:
    """At which dimension each result has rows; None where one has none."""
    if isinstance(one, (tuple, list)) and one:
        axes = [_axes(each, [other[at] for other in several]) for at, each in enumerate(one)]
        return None if None in axes or any(len(other) != len(one) for other in several) else tuple(axes)
    if not isinstance(one, Tensor) or one.layout != torch.strided:
        return None
    for axis in range(one.dim()):
        if one.shape[axis] == _ROWS and all(
            each.dim() == one.dim()
            and each.shape[axis] == len(part)
            and each.shape == (expected := one.index_select(axis, part.to(one.device))).shape
            and torch.allclose(each, expected, equal_nan=True)
            for each, part in zip(several, _PARTS, strict=True)
        ):
            return axis
    return None


def _drawn(value: Tensor, part: Tensor | None, place: Any) -> Tensor:
    """Random rows of the shape of a rank's, the same on every rank; of other tensors a copy."""
    if type(value) is not Rows:
        return plain(value).detach().clone()
    shape = list(value._local.shape)
    shape[value._axis] = _ROWS
    generator = torch.Generator().manual_seed(next(place) + len(shape))
    if value.dtype == torch.bool:
        out = torch.rand(shape, generator=generator) > 0.5
    elif value.is_floating_point() or value.is_complex():
        out = (torch.rand(shape, generator=generator, dtype=torch.float64) * 4 - 2).to(value.dtype)
    else:
        out = torch.randint(0, 5, shape, generator=generator).to(value.dtype)
    out = out.to(value.device)
    return out if part is None else out.index_select(value._axis, part.to(out.device))


def rowwise(function: Any) -> Any:
    """Say that a function works row by row, so that dgcl runs it on this rank's rows.

        >>> scale = dgcl.rowwise(scripted_scale)         # a function of torch.jit, of C++, a kernel of a library
        >>> dgcl.rowwise(Cube)                           # a torch.autograd.Function: its apply, in place

    Row k of each result with as many rows depends on row k of the arguments alone. All rows that it is given are of
    one space, along one dimension; tensors without rows are given as they are.

    Args:
        function: What is called with rows, or a subclass of ``torch.autograd.Function``.

    Returns:
        A function; of an autograd function the class itself.
    """
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        if "_dgcl_rowwise" not in vars(function):
            function.apply = staticmethod(_on_local(function.apply))  # type: ignore[method-assign, assignment]
            function._dgcl_rowwise = True  # type: ignore[attr-defined]
        return function
    if not callable(function):
        raise TypeError(
            f"function must be callable, or a torch.autograd.Function (got {type(function).__name__})"
        )
    return _on_local(function)


def _on_local(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        found = [each for each in tensors_in((*args, *kwargs.values())) if type(each) is Rows]
        if not found:
            return function(*args, **kwargs)
        space, place = found[0]._space, found[0]._axis
        fit = functools.partial(_row_of, space=space, place=place)
        out = function(*mapped(fit, args), **mapped(fit, kwargs))
        return mapped(lambda each: rows(each, space, place), out)

    return run


def _row_of(value: Tensor, space: Any, place: int) -> Tensor:
    if value.dim() > place and value.shape[place] == space.size:
        return fitting(value, space, place - value.dim())
    return plain(value)

"""Finds out by a trial on random rows whether a function works row by row.

For each way of calling it, once, the trial compares the function of seven rows with that of permuted, repeated and
single ones of them; a function that depends on other rows, on their number or on their order gives something else.
Values are drawn so that orders differ. ``dgcl.rowwise(f)`` says it without a trial.
Called by users (``dgcl.rowwise``), `apply_rule`, `indexing`, `scripts`, `shapes` and `dgcl/distributed/rank_graph`.
Free to change while no function passes that is wrong on ranks (`tests/dgcl/rows/test_sweep.py`), nor a scripted or
autograd function that reduces over rows (`tests/dgcl/rows/test_bypasses.py`).
"""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dgcl.ranks.torch_private import torch_function_on
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import fitting, state_of
from dgcl.rows.space import Space
from dgcl.rows.tensor import Rows, mapped, plain, rows, rows_in, stored

_ROWS = 7
_PARTS = torch.tensor([5, 0, 3]), torch.tensor([2]), torch.tensor([6, 1, 4, 2, 2])

#: Ways of calling that are remembered; and numbers of a tensor beside rows that decide over a way.
_MOST = 4096
_turn = threading.Lock()  # a trial may draw from the generator that ranks as threads share


def tried(call: Call, *, gradients: bool = False) -> Any:
    """The result of a function that works row by row; ``NotImplemented`` of any other.

    Args:
        call: The function and its arguments.
        gradients: Try its gradients, too: it has some of its own.
    """
    space = call.first._space
    if not all(each._space.same(space) for each in rows_in(call.args, call.kwargs)):
        return NotImplemented
    learnt = state_of(space.comm).learnt
    try:
        key = call.func, *_signature(call.args), *_signature(call.kwargs.items())
        if key not in learnt:
            learnt[key] = _learn(call, gradients)
    except TypeError:  # arguments without a hash
        return NotImplemented
    axes = learnt[key]
    while len(learnt) > _MOST:
        learnt.popitem(last=False)
    if axes is None:
        return NotImplemented
    return _marked(call.mapped(stored), axes, space)


def _marked(out: Any, axes: Any, space: Space) -> Any:
    if isinstance(axes, int):
        return rows(out, space, axes)
    return type(out)([_marked(each, axis, space) for each, axis in zip(out, axes, strict=True)])


def _signature(values: Any) -> tuple[Any, ...]:
    """What a call depends on besides the values of its tensors."""
    out: list[Any] = []
    for value in values:
        if type(value) is Rows:
            shape: list[Any] = list(value.shape)
            shape[value._axis] = "rows"
            out.append((value.dtype, *shape))
        elif isinstance(value, Tensor):
            counts = not (value.is_floating_point() or value.is_complex())
            if counts and value.numel() > _MOST:
                raise TypeError("numbers decide, and are many")
            out.append((value.dtype, *value.shape, str(value.tolist()) if counts else ""))
        elif isinstance(value, (tuple, list)):
            out.append((type(value), *_signature(value)))
        else:
            out.append(
                (type(value), (value.start, value.stop, value.step) if isinstance(value, slice) else value)
            )
    return tuple(out)


def _learn(call: Call, gradients: bool) -> Any:
    """At which dimensions the results of a call have rows; None: it does not work row by row."""
    plain_ones: list[Tensor] = []

    def run(part: Tensor | None) -> Any:
        fake = functools.partial(_drawn, part=part, place=itertools.count(), plain_ones=plain_ones)
        return call.mapped(fake)

    with _turn, torch.random.fork_rng([]), warnings.catch_warnings(action="ignore"):
        try:
            with torch.no_grad():
                axes = _axes(run(None), [run(part) for part in _PARTS])
            if gradients and axes is not None:
                slopes = [_slopes(call, axes, part) for part in (None, *_PARTS)]
                axes = axes if _axes(slopes[0], slopes[1:]) is not None else None
        except Exception:
            return None
    return None if any(each._version for each in plain_ones) else axes  # it writes into what is beside rows


def _slopes(call: Call, axes: Any, part: Tensor | None) -> tuple[Tensor, ...]:
    """Gradients of a sum of results, each row with a weight of its own, by all rows that have some."""
    place, leaves = itertools.count(), list[Tensor]()

    def fake(value: Tensor) -> Tensor:
        out = _drawn(value, part, place, [])
        if type(value) is Rows and out.is_floating_point():
            leaves.append(out.requires_grad_())
        return out

    with torch.enable_grad(), torch_function_on():
        results = call.mapped(fake)
        results, axes = (results, axes) if isinstance(axes, tuple) else ((results,), (axes,))
        loss = torch.zeros(())
        for each, axis in zip(results, axes, strict=True):
            if each.requires_grad:
                weight = torch.arange(1.0, _ROWS + 1) if part is None else part + 1.0
                shape = [1] * each.dim()
                shape[axis] = -1
                loss = loss + (each * weight.view(shape)).sum()
        slopes = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else ()
    return tuple(
        torch.zeros_like(leaf) if slope is None else slope
        for leaf, slope in zip(leaves, slopes or leaves, strict=True)
    )


def _axes(one: Any, several: list[Any]) -> Any:
    """At which dimension each result has rows; None where one has none."""
    if isinstance(one, (tuple, list)) and one:
        axes = [_axes(each, [other[at] for other in several]) for at, each in enumerate(one)]
        return None if None in axes or any(len(other) != len(one) for other in several) else tuple(axes)
    if not isinstance(one, Tensor) or one.layout != torch.strided:
        return None
    for axis in range(one.dim()):
        if one.shape[axis] == _ROWS and all(
            each.shape == (expected := one.index_select(axis, part.to(one.device))).shape
            and _close(each, expected, axis)
            for each, part in zip(several, _PARTS, strict=True)
        ):
            return axis
    return None


def _close(result: Tensor, expected: Tensor, axis: int) -> bool:
    """Whether rows are equal, but for what rounding leaves of sums of large terms in them."""
    if result.dtype != expected.dtype or not expected.is_floating_point():
        return torch.allclose(result, expected, equal_nan=True)
    others = [at for at in range(expected.dim()) if at != axis]
    largest = expected.detach().abs().nan_to_num(0, 0, 0)
    largest = largest.amax(others, keepdim=True) if others and largest.numel() else largest
    bound = 1e-8 + max(1e-5, 1000 * torch.finfo(expected.dtype).eps) * largest
    same = (result - expected).abs() <= bound
    return bool((same | (result == expected) | (result.isnan() & expected.isnan())).all())


def _drawn(value: Tensor, part: Tensor | None, place: Any, plain_ones: list[Tensor]) -> Tensor:
    """Random rows of the shape of a rank's, the same on every rank, small and large ones; of other tensors others."""
    generator = torch.Generator().manual_seed(next(place))
    if type(value) is not Rows:
        out = plain(value).detach().clone()
        if out.is_floating_point():
            out = out + torch.rand(out.shape, generator=generator).to(out.device, out.dtype)
        plain_ones.append(out)
        return out
    shape = list(value._local.shape)
    shape[value._axis] = _ROWS
    numbers = torch.rand(shape, generator=generator, dtype=torch.float64)
    if value.dtype == torch.bool:
        numbers = numbers > 0.5
    elif value.is_floating_point() or value.is_complex():
        scale = torch.tensor([1.0, 30.0, 0.01, 3.0, 1e3, 1.0, 0.1], dtype=torch.float64)
        numbers = (numbers * 4 - 2) * scale.view([-1 if at == value._axis else 1 for at in range(len(shape))])
    else:
        numbers = numbers * 5
    out = numbers.to(value.device, value.dtype)
    return out if part is None else out.index_select(value._axis, part.to(out.device))


def rowwise(function: Any) -> Any:
    """Declare that a function works row by row, so that dgcl runs it on this rank's rows.

        >>> scale = dgcl.rowwise(scripted_scale)         # a function of torch.jit, of C++, a kernel of a library
        >>> dgcl.rowwise(Cube)                           # a torch.autograd.Function: its apply, in place

    Row k of each result depends on row k of the arguments alone. All rows that it is given are of the same vertices or
    edges, along one dimension; tensors without rows are given as they are.

    Args:
        function: What is called with rows, or a subclass of ``torch.autograd.Function``.

    Returns:
        A function; of an autograd function the class itself.

    Raises:
        TypeError: It cannot be called.
    """
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        if "apply" not in vars(function):
            function.apply = staticmethod(_on_local(function.apply))  # type: ignore[method-assign, assignment]
        return function
    if not callable(function):
        raise TypeError(
            f"function must be callable, or a torch.autograd.Function (got {type(function).__name__})"
        )
    return _on_local(function)


def _on_local(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        first = next(rows_in(args, kwargs), None)
        if first is None:
            return function(*args, **kwargs)
        space, axis = first._space, first._axis

        def fit(value: Tensor) -> Any:
            return fitting(value, space, axis - value.dim()) if type(value) is Rows else plain(value)

        return mapped(
            lambda each: rows(each, space, axis), function(*mapped(fit, args), **mapped(fit, kwargs))
        )

    return run

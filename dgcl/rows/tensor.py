"""The two tensor classes of one device's view: ``Rows``, divided over ranks, and ``Replicated``, equal on all.

``Rows`` has the shape of one device and no storage: what reads its memory past Python, as scripted functions and
``torch.tensor`` do, gets an error and never a rank's rows. Its autograd graph is that of the local tensor. Plain
tensors count as equal on all ranks.
Called by `apply_rule`, `row_sums`, `view`, `dgcl/distributed/dispatch`, `dgcl/api` and others. Free to change while
what goes past torch's functions is exact or raises with a way out (`tests/dgcl/rows/test_bypasses.py`), and all of
torch gives the results of one device (`tests/dgcl/rows/test_sweep.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.ranks.torch_private import make_wrapper, torch_function_off
from dgcl.rows.space import Space

#: Within it functions of torch see tensors as they are.
unseen = torch_function_off


#: What rows 0 and 1 of an ``edge_index`` are.
PAIRS = {"both": ("source", "target"), "swapped": ("target", "source")}


class OneDevice(Tensor):
    """What both kinds have: each function of torch is called by :mod:`dgcl.rows.apply_rule`."""

    dgcl_one_device = True  # verbs for local tensors refuse it

    _call: Callable[..., Any]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with unseen():
            try:
                return OneDevice._call(func, args, kwargs or {})
            except CommError as error:
                if not hasattr(error, "__notes__"):
                    error.add_note(
                        "every rank must run each line that computes with rows: move it out of if dgcl.rank() == 0"
                    )
                raise


class Replicated(OneDevice):
    """A tensor with the same values on every rank, which was computed of rows; its gradient is a share."""


class Rows(OneDevice):
    """Rows of a tensor of one device, which has this shape; this rank stores those of its space.

    Attributes:
        _local: ``(rows, *F)`` with the rows at ``_axis``: what this rank stores.
        _space: Which rows they are.
        _axis: Along which dimension.
        _ends: Its values are this rank's numbers of the ends of edges: "source", "target", or both along the first
            dimension (``PAIRS``); None: they are values as on one device.
    """

    _local: Tensor
    _space: Space
    _axis: int
    _ends: str | None

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        raise RuntimeError(  # a TypeError in an operator of Python's would become another one
            f"{func} would read the memory of rows, which are divided over ranks, as torch.tensor, torch.jit,"
            " torch.func, torch.compile and functions of C++ do: write it with torch's own functions, mark a function"
            " that works row by row with dgcl.rowwise(f), or take this rank's rows by dgcl.local(x)"
        )


def rows(local: Tensor, space: Space, axis: int = 0, ends: str | None = None) -> Rows:
    """This rank's rows as what one device has."""
    size = list(local.shape)
    size[axis] = space.size
    out: Any = make_wrapper(
        Rows, size, dtype=local.dtype, device=local.device, requires_grad=local.requires_grad
    )
    out._local, out._space, out._axis, out._ends = local, space, axis, ends
    if local.requires_grad and local.is_leaf:
        local.dgcl_rows = True  # type: ignore[attr-defined]  # its gradient is complete
    return out  # type: ignore[no-any-return]


def replicated(value: Any, besides: Iterable[Any] = ()) -> Any:
    """Fresh plain tensors, also in tuples and lists, as replicated ones; an object that the script has stays.

    Args:
        value: What a function gave.
        besides: Its arguments, of which it may give one.
    """
    if type(value) is Tensor:
        if value.layout == torch.strided and not any(value is each for each in besides):
            value.__class__ = Replicated
    elif isinstance(value, (tuple, list)) and any(isinstance(each, (Tensor, tuple, list)) for each in value):
        return mapped(lambda each: replicated(each, besides), value)
    return value


def plain(value: Any) -> Any:
    """A replicated tensor as a plain one, which verbs and kernels want; all else as it is."""
    return value.as_subclass(Tensor) if type(value) is Replicated else value


def stored(value: Any) -> Any:
    """What this rank has of a tensor, plain: its rows, or a replicated value."""
    return value._local if type(value) is Rows else plain(value)


def follow(own: Rows) -> Rows:
    """Let rows that were changed in place show whether they require a gradient."""
    local, base = own._local, Tensor.requires_grad.__get__  # type: ignore[attr-defined]
    if base(own) != local.requires_grad:
        Tensor.requires_grad_(own, local.requires_grad)
    return own


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, in lists, tuples and dicts, too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in([value[key] for key in sorted(value, key=str)])


def rows_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Rows]:
    """The rows among arguments, in the order of :func:`tensors_in`."""
    return (each for each in tensors_in((*args, *kwargs.values())) if type(each) is Rows)


def mapped(function: Callable[[Tensor], Any], value: Any) -> Any:
    """A value with each tensor in it replaced, in lists, tuples and dicts, too."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(mapped(function, each) for each in value)
    if isinstance(value, tuple):  # a named tuple, or one of torch.return_types
        items = [mapped(function, each) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)  # type: ignore[arg-type]
    if type(value) is dict:
        # Called in one order on all ranks: a library may make a dict of a set, whose order each process draws.
        made = {key: mapped(function, value[key]) for key in sorted(value, key=str)}
        return {key: made[key] for key in value}  # in its own order, which a layer may read
    return value

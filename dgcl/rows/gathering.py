"""What has no rule of its own is computed of all rows on every rank, up to a limit: exact, at a price that is logged."""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch

from dgcl.rows.sums import State, state_of, whole, write
from dgcl.rows.tensor import Rows, mapped, replicated, tensors_in

_log = logging.getLogger("dgcl")

#: Elements of all calls at one place from which they are warned of.
_WARN = 10**7


def gathered(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function on all rows, replicated. Collective.

    What changes its first argument in place does so to a copy, which is written back.

    Raises:
        ValueError: It takes more elements than the limit.
    """
    every, named = all_rows(name, args, kwargs)
    if not writes(name):
        return replicated(func(*every, **named))
    changed = every[0].clone()
    func(changed, *every[1:], **named)
    return write(args[0], changed)


def writes(name: str) -> bool:
    """Whether a function of this name changes its first argument in place: ``add_``, ``__iadd__``, ``__setitem__``."""
    if name.startswith("__"):
        return name == "__setitem__" or (
            name[2] == "i" and name not in ("__invert__", "__int__", "__iter__", "__index__")
        )
    return name.endswith("_")


def all_rows(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments with all rows, plain. Collective.

    Raises:
        ValueError: They have more elements than the limit.
    """
    found = [each for each in tensors_in((*args, *kwargs.values())) if type(each) is Rows]
    allow(name, found[0], sum(each.numel() for each in found))
    return mapped(whole, args), mapped(whole, kwargs)


def allow(name: str, rows: Rows, elements: int) -> None:
    """Let a call gather so many elements, or refuse it; report its place.

    Raises:
        ValueError: They are more than the limit.
    """
    comm = rows._space.comm
    state = state_of(comm)
    if elements > state.gather_limit:
        raise ValueError(
            f"{name} needs all rows on every rank, {elements:,} elements, and gather_limit is {state.gather_limit:,}:"
            " write it with sums, means, maxima or products over rows, which are not gathered; or raise"
            " dgcl.dispatch(data, gather_limit=...)"
        )
    if comm.world_size > 1 and comm.rank == 0:
        _report(state, name, elements)


def _report(state: State, name: str, elements: int) -> None:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("dgcl.", "torch.")):
        frame = frame.f_back
    site = (name, frame.f_code.co_filename, frame.f_lineno)
    before = state.sites.get(site, 0)
    state.sites[site] = before + elements
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if not before:
        _log.info("%s: %s gathers %s elements on every rank", where, name, f"{elements:,}")
    if before < _WARN <= before + elements:
        _log.warning(
            "%s: %s has gathered %s elements on every rank so far", where, name, f"{before + elements:,}"
        )


def result_fits(rows: Rows, name: str, shape: torch.Size | list[int]) -> None:
    """Refuse a result that has more elements than the limit.

    Raises:
        ValueError: It has.
    """
    elements, limit = torch.Size(shape).numel(), state_of(rows._space.comm).gather_limit
    if elements > limit:
        raise ValueError(
            f"{name} would make {elements:,} elements on every rank, and gather_limit is {limit:,}"
        )

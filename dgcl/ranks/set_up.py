"""Frames of collective calls of set-up, and of their steps.

Ctrl-C is reported to the other ranks, and a rank that dies is noticed at once.

Called by `dgcl/`, `dgcl/aggregation/` and 6 more folders. Free to change while all ranks agree, and one
that fails is named by the others in time (`tests/dgcl/ranks/`).
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from dgcl.errors import CommError
from dgcl.ranks.context import context
from dgcl.ranks.control import Control

P = ParamSpec("P")
R = TypeVar("R")


def set_up_call(function: Callable[P, R], name: str = "") -> Callable[P, R]:
    """Report Ctrl-C in a call of set-up to the other ranks, and interrupt the call where another rank dies.

    ``name`` is what the others report as the call; "": the function's own.
    """

    @functools.wraps(function)
    def run(*args: P.args, **keywords: P.kwargs) -> R:
        control = context.control
        if control is None:
            return function(*args, **keywords)
        try:
            with control.watched():
                return function(*args, **keywords)
        except Exception:
            raise
        except BaseException as error:
            control.leave(
                f"was stopped by {type(error).__name__} in {name or function.__qualname__.removesuffix('.__init__')}"
            )
            raise

    return run


@contextmanager
def leaving(control: Control) -> Iterator[None]:
    """Around steps of set-up: a rank that cannot go on says so, where the others would wait for it."""
    try:
        yield
    except (CommError, ValueError):  # all ranks raise it
        raise
    except BaseException as error:
        control.leave(f"was stopped by {type(error).__name__}: {error}")
        raise

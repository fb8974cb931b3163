"""The frame of every collective call of set-up.

Ctrl-C is reported to the other ranks, and a rank that dies is noticed at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from dgcl.ranks.context import context

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
            control.leave(f"was stopped by {type(error).__name__} in {name or function.__name__}")
            raise

    return run

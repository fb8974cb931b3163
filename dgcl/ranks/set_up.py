"""Wraps collective calls of set-up, and steps of them, so that a rank that stops is reported to the others.

``set_up_call`` decorates a call: Ctrl-C is told to the other ranks, and the call is interrupted where another rank
dies. ``leaving`` is put around steps: errors that not all ranks raise are told. ValueError and CommError are not: all
raise them.

Called by `dgcl/build`, `dgcl/local_build`, `dgcl/transport/connect`, `dgcl/prepare/neighbor_lists` and others. Free to
change while an interrupt in set-up is told to all (`tests/dgcl/ranks/test_set_up_faults.py`), and a death is noticed
while rank 0 partitions (`tests/dgcl/ranks/test_watch.py`).
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

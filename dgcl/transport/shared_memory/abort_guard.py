"""Tells the peers at once when a call that they count on fails on this rank."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Caller(Protocol):
    """Makes calls: what a guard needs of the runtime."""

    @property
    def next_call(self) -> int:
        """The number of the call that will be begun next."""

    def give_up(self, error: BaseException, number: int) -> None:
        """Tell the peers that this rank goes on without call ``number``, or without its result."""


class AbortGuard:
    """Around a call, or a part of one: an error raised inside fails the communicator and is told to the peers.

    It is entered before any peer is told of the call, because Ctrl-C may come between any two steps of Python, also
    between the return of a function and the next step of its caller. An error fails the communicator even if this
    rank's part of the call was done: the program has no result, and would begin its next call where the peers go on
    with another. Code between the end of the guarded block and the caller must not fail.

    Args:
        runtime: Of this rank.
        number: Of the call; None for the one that is about to begin.
    """

    __slots__ = ("_number", "_runtime")

    def __init__(self, runtime: Caller, number: int | None = None) -> None:
        self._runtime = runtime
        self._number = runtime.next_call if number is None else number

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._runtime.give_up(error, self._number)

"""Tells the peers at once when a call that they rely on fails on this rank."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Caller(Protocol):
    """The part of the runtime that a guard needs."""

    @property
    def next_call(self) -> int:
        """The number of the call that will be begun next."""

    def give_up(self, error: BaseException, number: int) -> None:
        """Tell the peers that this rank goes on without call ``number``, or without its result."""


class AbortGuard:
    """Guards a call: an error raised inside fails the communicator, and peers are told.

    Enter it before any peer is told of the call. Ctrl-C may come between any two steps of Python, also
    between the return of a function and the next step of its caller. An error fails the communicator even if
    this rank's part of the call was done: the program has no result, and its next call would not match the
    peers' next call. Code between the end of the guarded block and the caller must not fail.

    Args:
        runtime: This rank's.
        number: The call's number; None for the next call.
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

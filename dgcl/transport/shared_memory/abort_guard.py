"""From the moment at which peers are told of a call they count on this rank, whatever happens to it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dgcl.transport.shared_memory.executor import Runtime


class AbortGuard:
    """Around a call, or a part of one: whatever is raised inside, the peers hear of it at once.

    Entered before anybody is told, because Ctrl-C may come between any two steps of Python, also between the return
    of a function and whatever its caller does next. Left behind with an error, the communicator has failed, even if
    this rank's part of the call was done: who catches the error has no result, and would begin the next call where
    peers go on with another. The way back from here to the caller is not covered: nothing may fail there.

    Args:
        runtime: Of this rank.
        number: Of the call; None for the one that is about to begin.
    """

    __slots__ = ("_number", "_runtime")

    def __init__(self, runtime: Runtime, number: int | None = None) -> None:
        self._runtime = runtime
        self._number = runtime.next_call if number is None else number

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._runtime.give_up(error, self._number)

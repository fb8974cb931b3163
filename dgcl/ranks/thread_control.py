"""The control plane of ranks that are threads of one process; values are passed by reference.

A receiver must not change what it gets: the sender and other ranks have the same object. Threads meet under one lock; a
round is complete when all have given a value for the same call.

Called by `launcher` and `dgcl/transport/cuda/__init__`. Free to change while rounds keep their values apart, however
hurried or slow a thread is, and a thread that left or is late is named by the others
(`tests/dgcl/ranks/test_control.py`).
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dgcl.errors import CommError, CommTimeoutError, PeerLostError
from dgcl.ranks.control import Call, Control, different_calls

_LOOK = 0.1  # seconds in which a rank that left a communicator is not noticed


class ThreadRendezvous:
    """Where the threads of one world meet; give each a :class:`ThreadControl` on it.

    Args:
        world_size: How many threads.
        timeout: Seconds that they wait for each other.
    """

    def __init__(self, world_size: int, timeout: float) -> None:
        self.world_size, self.timeout = world_size, timeout
        self._changed = threading.Condition()
        self._round = 0
        self._given: dict[int, tuple[Call, Any]] = {}
        self._values: list[Any] = []  # of the last round that was complete
        self._left: dict[int, tuple[type[CommError], str]] = {}
        self._disagreement: CommError | None = None
        self.in_set_up: list[int] = []

    def exchange(
        self, rank: int, call: Call, value: Any, timeout: float, lost: Callable[[], Any] = lambda: None
    ) -> list[Any]:
        """Every thread's value, once all have given theirs for the same call.

        Args:
            rank, call, value: Of this thread.
            timeout: Seconds that it waits, if the world's are more, for ranks that are not in a call of set-up.
            lost: As :meth:`dgcl.ranks.control.Listener.lost`.
        """
        latest = time.monotonic() + self.timeout
        timeout = min(timeout, self.timeout)
        deadline = time.monotonic() + timeout
        with self._changed:
            mine = self._round
            if not self._left and self._disagreement is None:
                self._given[rank] = call, value
            if len(self._given) == self.world_size:
                self._complete()
            while self._round == mine and not self._is_over():
                if (gone := lost()) is not None:
                    self._left[gone[0]] = gone[1:]
                elif (left := deadline - time.monotonic()) > 0:
                    self._changed.wait(min(left, _LOOK))
                    continue
                elif deadline < latest and not set(self.in_set_up) <= self._given.keys():
                    deadline = min(deadline + timeout, latest)  # a rank works
                    continue
                else:
                    self._left[rank] = PeerLostError, f"rank {rank} has given up waiting"
                self._changed.notify_all()
                if gone is not None:
                    break
                missing = [other for other in range(self.world_size) if other not in self._given]
                raise CommTimeoutError(
                    f"rank {rank}: ranks {missing} have not come to {call} within {timeout:g} s"
                )
            if self._round == mine:
                raise self._failure(rank, call)
            # Nobody can complete the next round before this thread takes part in it, so these values stay.
            return list(self._values)

    def leave(self, rank: int, why: str, kind: type[CommError] = PeerLostError) -> None:
        """Thread ``rank`` will not come again; ``why`` completes a sentence about it."""
        with self._changed:
            self._left.setdefault(rank, (kind, f"rank {rank} {why}"))
            self._changed.notify_all()

    def _complete(self) -> None:
        """All have come: hand out the values, or say that they have come for different calls."""
        calls = [self._given[rank][0] for rank in range(self.world_size)]
        odd = next((rank for rank, call in enumerate(calls) if call != calls[0]), None)
        if odd is None:
            self._values = [self._given[rank][1] for rank in range(self.world_size)]
            self._round += 1
        else:
            self._disagreement = different_calls(calls[0], 0, calls[odd], odd)
        self._given = {}
        self._changed.notify_all()

    def _is_over(self) -> bool:
        return bool(self._left) or self._disagreement is not None

    def _failure(self, rank: int, call: Call) -> CommError:
        if self._disagreement is not None:
            return type(self._disagreement)(f"rank {rank}: {self._disagreement}")
        kind, why = next(iter(self._left.values()))
        return kind(f"rank {rank}: the ranks cannot meet{f' in {call}' if call.name else ''}: {why}")


class ThreadControl(Control):
    """A rank that is a thread.

    Args:
        rendezvous: Shared by all ranks.
        rank: This one.
    """

    def __init__(self, rendezvous: ThreadRendezvous, rank: int) -> None:
        super().__init__(rank, rendezvous.world_size)
        self._rendezvous = rendezvous
        self.threads_of_ranks = rendezvous.world_size + 1  # the ranks, and who started them

    def leave(self, why: str, kind: type[CommError] = PeerLostError) -> None:
        """Take part no more."""
        self._rendezvous.leave(self.rank, why, kind)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """As :meth:`Control.watched`: others know that this rank works."""
        self._rendezvous.in_set_up.append(self.rank)
        try:
            yield
        finally:
            self._rendezvous.in_set_up.remove(self.rank)

    def _swap(self, call: Call, outgoing: dict[int, Any], sources: list[int]) -> dict[int, Any]:
        of, number = self._of, self.num_calls
        lost = (lambda: None) if of is None else lambda: of.lost(number)
        incoming = self._rendezvous.exchange(self.rank, call, outgoing, self._seconds, lost)
        return {peer: incoming[peer][self.rank] for peer in sources}

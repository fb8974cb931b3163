"""The control plane of ranks that are threads of one process; values are passed by reference."""

from __future__ import annotations

import threading
from typing import Any

from dgcl.errors import CommError, CommTimeoutError, PeerLostError
from dgcl.ranks.control import Call, Control, different_calls


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

    def exchange(self, rank: int, call: Call, value: Any) -> list[Any]:
        """Every thread's value, once all have given theirs for the same call."""
        with self._changed:
            mine = self._round
            if not self._left and self._disagreement is None:
                self._given[rank] = call, value
            if len(self._given) == self.world_size:
                self._complete()
            elif not self._changed.wait_for(lambda: self._round > mine or self._is_over(), self.timeout):
                missing = [other for other in range(self.world_size) if other not in self._given]
                self._left[rank] = PeerLostError, "has given up waiting"
                self._changed.notify_all()
                raise CommTimeoutError(
                    f"rank {rank}: ranks {missing} have not come to {call} within {self.timeout:g} s"
                )
            if self._round == mine:
                raise self._failure(rank, call)
            # Nobody can complete the next round before this thread takes part in it, so these values stay.
            return list(self._values)

    def leave(self, rank: int, why: str, kind: type[CommError] = PeerLostError) -> None:
        """Thread ``rank`` will not come again; ``why`` completes a sentence about it."""
        with self._changed:
            self._left.setdefault(rank, (kind, why))
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
        other, (kind, why) = next(iter(self._left.items()))
        return kind(
            f"rank {rank}: the ranks cannot meet{f' in {call}' if call.name else ''}: rank {other} {why}"
        )


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

    def _swap(self, call: Call, outgoing: dict[int, Any], sources: list[int]) -> dict[int, Any]:
        incoming = self._rendezvous.exchange(self.rank, call, outgoing)
        return {peer: incoming[peer][self.rank] for peer in sources}

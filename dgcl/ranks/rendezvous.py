"""How ranks meet in their store before they connect: all of them, in an attempt that each of them still makes.

A rank that comes takes a ticket, a number that none of its attempts had before, and lays it out. Place 0 waits until
every rank has laid out one that it has not called yet, and calls them: it writes all tickets down, at once, under a new
number. Who finds its own ticket called has met the others, and has that number in common with them and with nobody
else. A rank that gives up takes its ticket back, and its next attempt is another ticket. So ranks meet that retry at
different times, none is called twice, and what a dead attempt has left behind is called once at most. Who is called
joins, and goes on when all have joined: so a rank that is gone when it is called is missed here, by its name.

There is one call in the store at a time. The next one needs a new ticket of every rank, so nobody can miss its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dgcl.errors import CommError, CommTimeoutError, DisagreementError

if TYPE_CHECKING:
    from torch.distributed import Store

T = TypeVar("T")

_LONGEST_PAUSE: Final = 0.05  # seconds
_JOINING: Final = 1.0  # seconds beyond the deadline, for those who were called just before it


class Attempt:
    """One rank's attempt to meet the others, which begins here.

    Args:
        store: What these ranks have of their store for themselves.
        place: Of this rank among them.
        size: How many they are.
        purpose: What they meet for, in words; the same for all.
    """

    def __init__(self, store: Store, place: int, size: int, purpose: str) -> None:
        self._store, self._place, self._size, self._purpose = store, place, size, purpose
        self._ticket = store.add(f"attempts of {place}", 1)
        self._laid_out = json.dumps([self._ticket, purpose])
        store.set(f"ticket of {place}", self._laid_out)

    def step(self) -> int | None:
        """The number of the meeting, once there is one.

        Raises:
            CommError: This rank has begun another attempt, elsewhere.
            DisagreementError: Ranks have come for different purposes; raised on all of them.
        """
        called = self._read("call")
        if self._place == 0 and (called is None or called[1][0] != self._ticket):
            called = self._call(called)
        if called is None or called[1][self._place] != self._ticket:
            self._keep_place()
            return None
        number, _, problem = called
        if problem:
            raise DisagreementError(problem)
        return int(number)

    def _keep_place(self) -> None:
        """See that this ticket still lies where it was laid."""
        ticket, _ = self._read(f"ticket of {self._place}")
        if ticket > self._ticket:
            raise CommError(
                f"rank {self._place} meets these ranks twice at once, in two threads or two processes; let one go"
                " after the other"
            )
        if ticket < self._ticket:  # laid out late, by an attempt that was given up while the store was slow
            self._store.set(f"ticket of {self._place}", self._laid_out)

    def _call(self, before: Any) -> Any:
        """Call all tickets, if all are there."""
        tickets, purposes = [], []
        for place in range(self._size):
            laid_out = self._read(f"ticket of {place}")
            if laid_out is None or not laid_out[1] or (before and before[1][place] >= laid_out[0]):
                return None
            tickets.append(laid_out[0])
            purposes.append(laid_out[1])
        odd = next((place for place, purpose in enumerate(purposes) if purpose != purposes[0]), None)
        problem = "" if odd is None else f"rank 0 is at {purposes[0]} and rank {odd} at {purposes[odd]}"
        call = [self._ticket, tickets, problem]
        self._store.set("call", json.dumps(call))
        return call

    def give_up(self) -> None:
        """Take the ticket back, unless a later attempt has laid out another; it may have been called before."""
        self._store.compare_set(f"ticket of {self._place}", self._laid_out, json.dumps([self._ticket, ""]))

    def join(self, number: int) -> None:
        """Tell those who were called with this rank that it goes with them."""
        self._store.set(self._joined(number, self._place), "")

    def all_joined(self, number: int) -> bool | None:
        """True as soon as all have joined."""
        return self._store.check([self._joined(number, place) for place in range(self._size)]) or None

    def absent(self) -> str:
        """Who is missing before a call, in words."""
        called = self._read("call")
        unseen, gone, waiting = [], [], []
        for place in range(self._size):
            laid_out = self._read(f"ticket of {place}")
            if laid_out is None or (laid_out[1] and called and called[1][place] >= laid_out[0]):
                unseen.append(place)
            elif laid_out[1]:
                waiting.append(place)
            elif place != self._place:
                gone.append(place)
        clauses = {place: f"rank {place} has not come" for place in unseen}
        clauses |= {place: f"rank {place} has given up waiting" for place in gone}
        if self._place != 0 and 0 in waiting and not unseen:
            clauses[0] = "rank 0 had come, but did not call the others (has it died?)"
        return (
            ", ".join(clauses[place] for place in sorted(clauses))
            or "all ranks are here by now, but were not"
        )

    def lost(self, number: int) -> str:
        """Who was called and has not joined, in words."""
        places = [p for p in range(self._size) if not self._store.check([self._joined(number, p)])]
        clauses = [
            f"rank {place} had come, but has died or given up since, and has not joined" for place in places
        ]
        return ", ".join(clauses) or "all ranks have joined by now, but had not"

    def _joined(self, number: int, place: int) -> str:
        return f"meeting {number}/joined by {place}"

    def _read(self, key: str) -> Any:
        return json.loads(self._store.get(key)) if self._store.check([key]) else None


def meet(store: Store, place: int, size: int, purpose: str, timeout: float, given_up: threading.Event) -> int:
    """The number of a meeting of these ranks, which no other meeting in this store has. Collective.

    Args:
        store, place, size, purpose: As for :class:`Attempt`.
        timeout: Seconds that ranks wait for each other.
        given_up: Set from outside when nobody waits for this any more.

    Raises:
        CommTimeoutError: Ranks have not come in time; by their names.
        DisagreementError: Ranks have come for different purposes.
    """
    attempt, deadline = Attempt(store, place, size, purpose), time.monotonic() + timeout
    try:
        number = _poll(attempt.step, deadline, given_up)
        if number is None:
            attempt.give_up()
            number = attempt.step()  # called just before: the others count on this rank
        if number is None:
            raise CommTimeoutError(f"{attempt.absent()} within {timeout:g} s")
        met = number
        attempt.join(met)
        if _poll(lambda: attempt.all_joined(met), deadline + _JOINING, given_up) is None:
            raise CommTimeoutError(f"{attempt.lost(met)} within {timeout:g} s")
    except BaseException:
        attempt.give_up()
        raise
    return met


def _poll(step: Callable[[], T | None], deadline: float, given_up: threading.Event) -> T | None:
    """What ``step`` gives once that is not None; None at the deadline."""
    pause = 0.001
    while (value := step()) is None:
        if given_up.wait(pause):
            raise CommError("nobody waits for the meeting any more")
        if time.monotonic() > deadline:
            return None
        pause = min(2 * pause, _LONGEST_PAUSE)
    return value

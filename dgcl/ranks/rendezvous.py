"""Lets ranks meet in a key-value store before they connect, in rounds of one live attempt of each rank.

Ranks may start, fail and try again at different times. The ranks of a round wait until all have joined it. A rank that
died after publishing its token is reported here, by its number, and not by a connection that is never made.

Called by `gloo_groups`, `group_control` and `abort_reasons`. Free to change while, whatever the order of starts and
failures, all ranks of a round have met the same attempts, and who does not come is named
(`tests/dgcl/ranks/test_rendezvous.py`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.ranks.deadlines import in_time
from dgcl.ranks.processes import has_died, this_process

if TYPE_CHECKING:
    from torch.distributed import Store

T = TypeVar("T")

IN_VAIN = "a rank has waited in vain"
_LONGEST_PAUSE = 0.05  # seconds between two looks at the store
_ANSWER = 0.5  # seconds in which a store answers
_STAY = 0.5  # seconds in which all others look for what a rank has posted
_SILENCE = 1.0  # seconds in which all others notice that one has waited in vain
_JOINING = 0.5  # seconds beyond the deadline, for a round that was formed just before it


# Each attempt of a rank takes a new token, a number, and publishes its call under it. Rank 0 forms a round as soon as
# the last token of every rank is published, not withdrawn, and in no earlier round: it writes all tokens in one
# entry, under the round's number. An attempt whose token is in the round belongs to it. An attempt that fails
# withdraws its token, and the next has another; so a dead attempt is in one round at most. There is one round in the
# store at a time. The next one needs a new token of every rank, so no rank can miss its own.
class _Round(NamedTuple):
    """A round: its number, which is rank 0's token, token and process of each place, and what is wrong with it."""

    number: int = 0
    tokens: Sequence[int] = ()
    processes: Sequence[str] = ()
    problem: str = ""


def another_client(store: Store) -> Store:
    """One of the same store, where torch has such: of one client each call waits for the others, Gloo's waits too."""
    return store.clone() if hasattr(store, "clone") else store


class Waiting(threading.Event):
    """A rank that waits until ranks are connected; set when it does no more.

    Who is stopped meanwhile, by Ctrl-C for instance, or sees a connection break, or that a rank of its machine has
    died, posts it in the ranks' store: the others, who wait for it, raise that at once.

    Attributes:
        round: Of the ranks, once they have met.
    """

    def __init__(self) -> None:
        super().__init__()
        self._store: Store | None = None
        self._before: bytes | None = None
        self._place = 0
        self.round = _Round()

    def begin(self, store: Store, place: int) -> None:
        """Wait from now on, at this place, for the ranks that have this part of a store."""
        self._store, self._place = another_client(store), place
        self._before = stored(self._store, "last stop")

    def post(self, clause: str) -> None:
        """Why this rank comes no more, for the others."""
        if self._store is not None:
            store_in_time(self._store, "last stop", f"{time.time_ns()} {self.round.number} {clause}")

    def reason(self) -> str:
        """What another rank has posted since :meth:`begin`, or who has died; "" as long as all may come."""
        store, gone = self._store, ""
        if store is not None:
            try:
                last = in_time(lambda: stored(store, "last stop"), _ANSWER)
                if last is not None and last != self._before:
                    _, number, clause = last.decode().split(" ", 2)
                    if int(number) in (0, self.round.number):
                        return clause
            except TimeoutError:
                pass
            except RuntimeError as error:
                gone = f"rank 0 or torchrun, which keeps the ranks' store, cannot be reached ({error})"
        # All of them: one may have ended because of another.
        dead = [f"rank {place} has died" for place, each in enumerate(self.round.processes) if has_died(each)]
        return ", ".join(dead) or gone

    def silent(self) -> str:
        """Which ranks had met the others and do not end their wait within a second, when it is over; "": none."""
        store, places = self._store, range(len(self.round.tokens))
        if store is None or self.reason() not in ("", IN_VAIN):
            return ""
        self.post(IN_VAIN)  # who waits longer stops as well
        self.sign()
        time.sleep(_SILENCE)

        def missing() -> list[int]:
            return [place for place in places if not store.check([self._sign(place)])]

        with suppress(TimeoutError, RuntimeError):
            late = " and ".join(f"rank {place}" for place in in_time(missing, _ANSWER))
            return late and f"{late} had come, but shows no sign of life (stopped, or cut off)"
        return "rank 0 or torchrun, which keeps the ranks' store, does not answer"

    def sign(self) -> None:
        """This rank has ended its wait."""
        if self._store is not None:
            store_in_time(self._store, self._sign(self._place), "")

    def _sign(self, place: int) -> str:
        return f"round {self.round.number}/ended by {place}"

    def end(self) -> None:
        """Wait no more, and stay until the others have read why: rank 0's process may keep the store.

        This rank's own thread has ended then, too; one that comes back when Python is gone aborts the process.
        """
        self.set()
        time.sleep(_STAY)

    def check(self) -> None:
        """Raise the reason why ranks will not meet, once there is one."""
        if reason := self.reason():
            raise PeerLostError(reason)


class Attempt:
    """One rank's attempt to meet the others, which begins here.

    Args:
        store: What these ranks have of their store for themselves.
        place: Of this rank among them.
        size: How many they are.
        purpose: What they meet for, in words; the same for all.
    """

    def __init__(self, store: Store, place: int, size: int, purpose: str) -> None:
        self._store, self._place, self._size = store, place, size
        self._token = store.add(f"attempts of {place}", 1)
        self.round = _Round()
        store.set(f"token {self._token} of {place}/process", this_process())
        self._publish(purpose)

    def step(self) -> int | None:
        """The number of the round that this attempt is in, once there is one.

        Raises:
            CommError: This rank has begun another attempt, elsewhere.
            DisagreementError: Ranks have come for different purposes; raised on all of them.
        """
        last = self._last_round()
        if last is None or last.tokens[self._place] != self._token:
            if self._last_token(self._place) > self._token:
                raise CommError(
                    f"rank {self._place} meets these ranks twice at once, in two threads or two processes; let one"
                    " go after the other"
                )
            last = self._form_round(last) if self._place == 0 else None
        if last is None:
            return None
        if last.problem:
            raise DisagreementError(last.problem)
        self.round = last
        return last.number

    def give_up(self) -> None:
        """Withdraw the token; it may be in a round already."""
        self._publish("")

    def join(self, number: int) -> None:
        """Tell the others of a round that this rank goes with them."""
        self._store.set(self._joined(number, self._place), "")

    def all_joined(self, number: int) -> bool | None:
        """True as soon as all have joined."""
        return self._store.check([self._joined(number, place) for place in range(self._size)]) or None

    def describe_absent(self) -> str:
        """Why there is no round with this attempt: who has not come, or has gone."""
        last, clauses = self._last_round(), {}
        unseen, waiting = False, set()
        for place in range(self._size):
            token = self._last_token(place)
            purpose = self._purpose(place, token)
            if purpose is None or (purpose and last is not None and last.tokens[place] >= token):
                clauses[place], unseen = f"rank {place} has not come", True
            elif purpose:
                waiting.add(place)
            elif place != self._place:
                clauses[place] = f"rank {place} has given up waiting"
        if self._place != 0 and 0 in waiting and not unseen:
            clauses[0] = "rank 0 had come, but did not call the others (has it died?)"
        everybody = "all ranks are here by now, but were not"
        # Who has given up may have done so because of those that have not come.
        order = sorted(clauses, key=lambda place: (not clauses[place].endswith("has not come"), place))
        return ", ".join(clauses[place] for place in order) or everybody

    def describe_lost(self, number: int) -> str:
        """Who is in a round and has not joined it."""
        clauses = [
            f"rank {place} had come, but has died or given up since, and has not joined"
            for place in range(self._size)
            if not self._store.check([self._joined(number, place)])
        ]
        return ", ".join(clauses) or "all ranks have joined by now, but had not"

    def _form_round(self, before: _Round | None) -> _Round | None:
        """On place 0: a round of all tokens, if every place has one that was in no round before."""
        tokens = [self._last_token(place) for place in range(self._size)]
        if before is not None and any(new <= old for new, old in zip(tokens, before.tokens, strict=True)):
            return None
        purposes = [self._purpose(place, token) for place, token in enumerate(tokens)]
        if not all(purposes):
            return None
        odd = next((place for place, purpose in enumerate(purposes) if purpose != purposes[0]), None)
        problem = "" if odd is None else f"rank 0 is at {purposes[0]} and rank {odd} at {purposes[odd]}"
        processes = [
            self._store.get(f"token {token} of {place}/process").decode()
            for place, token in enumerate(tokens)
        ]
        formed = _Round(self._token, tokens, processes, problem)
        self._store.set("round", json.dumps(formed))
        return formed

    def _last_round(self) -> _Round | None:
        text = stored(self._store, "round")
        return None if text is None else _Round(*json.loads(text))

    def _last_token(self, place: int) -> int:
        """The token of a place's last attempt; 0: there was none."""
        return int(stored(self._store, f"attempts of {place}") or 0)

    def _purpose(self, place: int, token: int) -> str | None:
        """What an attempt has come for: "" where it was withdrawn, None where it has not published it yet."""
        text = stored(self._store, f"token {token} of {place}")
        return None if text is None else text.decode()

    def _publish(self, purpose: str) -> None:
        self._store.set(f"token {self._token} of {self._place}", purpose)

    def _joined(self, number: int, place: int) -> str:
        return f"round {number}/joined by {place}"


def store_in_time(store: Store, key: str, text: str) -> None:
    """Put a text under a key; others see it when this returns, if the store still answers."""

    def write() -> None:
        store.set(key, text)
        store.check([key])  # its answer comes after the write

    with suppress(TimeoutError, RuntimeError):  # the store is gone; others notice the broken connection
        in_time(write, _ANSWER)


def stored(store: Store, key: str) -> bytes | None:
    """What is under a key; ``Store.get`` alone would wait for it."""
    return store.get(key) if store.check([key]) else None


def meet(store: Store, place: int, size: int, purpose: str, timeout: float, waiting: Waiting) -> int:
    """The number of a round of these ranks, which no other round in this store has. Collective.

    Args:
        store, place, size, purpose: As for :class:`Attempt`.
        timeout: Seconds that ranks wait for each other.
        waiting: Set from outside when nobody waits for this any more.

    Raises:
        CommTimeoutError: Ranks have not come in time; by their names.
        DisagreementError: Ranks have come for different purposes.
    """
    waiting.begin(store, place)
    attempt, deadline = Attempt(store, place, size, purpose), time.monotonic() + timeout
    try:
        number = _poll(attempt.step, deadline, waiting)
        if number is None:
            attempt.give_up()
            number = attempt.step()  # a round formed just before: the others count on this rank
        if number is None:
            raise CommTimeoutError(f"{attempt.describe_absent()} within {timeout:g} s")
        formed, waiting.round = number, attempt.round
        attempt.join(formed)
        if _poll(lambda: attempt.all_joined(formed), deadline + _JOINING, waiting) is None:
            raise CommTimeoutError(f"{attempt.describe_lost(formed)} within {timeout:g} s")
    except BaseException:
        attempt.give_up()
        raise
    return formed


def _poll(step: Callable[[], T | None], deadline: float, waiting: Waiting) -> T | None:
    """What ``step`` gives once that is not None; None at the deadline."""
    pause = 0.001
    while (value := step()) is None:
        if waiting.wait(pause):
            raise CommError("nobody waits for the rendezvous any more")
        if time.monotonic() > deadline:
            return None
        pause = min(2 * pause, _LONGEST_PAUSE)
    return value

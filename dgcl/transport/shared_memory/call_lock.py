"""Whose turn it is: a communicator carries out one call at a time, from one thread at a time."""

from __future__ import annotations

import threading
import time


class Turn:
    """Held by the thread that makes a call, from its check to the call's end.

    The thread that holds it may take it again: a call that failed before it began leaves it behind. A thread that
    only lends a hand to a call that was started holds it for a moment, for which others wait. Ctrl-C may have that
    thread leave its hand behind: it takes it up again itself, and others do not wait for ever.

    Args:
        rank: For messages.
        timeout: Seconds to wait for a hand.
    """

    def __init__(self, rank: int, timeout: float) -> None:
        self._rank, self._timeout = rank, timeout
        self._holder: dict[str, int] = {}  # setdefault is one step: of two threads one sees the other

    def take(self) -> None:
        """Begin, or go on.

        Raises:
            ValueError: Another thread is in a call.
        """
        me, since = threading.get_ident(), time.monotonic()
        while True:
            holder = self._holder.setdefault("thread", me)
            if holder == -me:
                self._holder["thread"] = me
            if abs(holder) == me:
                return
            if holder > 0 or time.monotonic() - since > self._timeout:
                raise ValueError(
                    f"rank {self._rank}: another thread is in a call on this communicator; make its calls one after"
                    " the other (peers must see them in one order), or build a communicator for each thread"
                )
            time.sleep(1e-4)  # a hand is lent

    def lend_hand(self) -> bool:
        """Take it for a moment, if nobody holds it; :meth:`withdraw_hand` follows."""
        hand = -threading.get_ident()
        return self._holder.setdefault("thread", hand) == hand

    def withdraw_hand(self) -> None:
        """The hand is needed no more, if it was lent at all."""
        if self._holder.get("thread") == -threading.get_ident():
            self._holder.clear()

    def give_back(self) -> None:
        """The call is over, or waits to be taken up again."""
        self._holder.clear()

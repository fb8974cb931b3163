"""One call at a time on a communicator, from one thread at a time."""

from __future__ import annotations

import threading
import time


class CallLock:
    """Held by the thread that makes a call, from its check to the call's end.

    The thread that holds it may acquire it again: a call that failed before it began leaves it held. A thread that
    only assists a started call of another thread (:mod:`dgcl.transport.shared_memory.calls`) holds it for a moment, for
    which others wait. Ctrl-C may leave that hold behind: its own thread acquires it again, and others wait for it no
    longer than ``timeout``.

    Args:
        rank: For messages.
        timeout: Seconds to wait for a thread that assists.
    """

    def __init__(self, rank: int, timeout: float) -> None:
        self._rank, self._timeout = rank, timeout
        # The holder's thread number, negative while it assists. setdefault is atomic: of two threads one sees the
        # other.
        self._holder: dict[str, int] = {}

    def acquire(self) -> None:
        """Begin a call, or go on with it.

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
            time.sleep(1e-4)  # another thread assists

    def try_assist(self) -> bool:
        """Hold it for a moment, if nobody does; :meth:`end_assist` follows."""
        me = -threading.get_ident()
        return self._holder.setdefault("thread", me) == me

    def end_assist(self) -> None:
        """Release it if this thread holds it to assist."""
        if self._holder.get("thread") == -threading.get_ident():
            self._holder.clear()

    def release(self) -> None:
        """The call is over, or waits to be gone on with."""
        self._holder.clear()

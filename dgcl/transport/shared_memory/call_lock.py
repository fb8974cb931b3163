"""The lock that allows one call at a time on a communicator, from one thread at a time."""

import threading
import time


class CallLock:
    """A lock that a thread holds while it makes a call, from the first check to the call's end.

    The holding thread may acquire it again: a call that failed before it began leaves it held. A thread that assists
    a started call of another thread (:mod:`dgcl.transport.shared_memory.executor`) holds it briefly, and others wait
    for that. Ctrl-C may leave such a brief hold behind. Its own thread can still acquire the lock, and others wait for
    at most ``timeout``.

    Args:
        rank: For messages.
        timeout: Seconds to wait for a thread that assists.

    Attributes:
        holder: The holder's thread number at "thread", negative while it assists; empty while nobody holds the lock.
            ``setdefault`` is atomic: one of two threads sees the other.
    """

    def __init__(self, rank: int, timeout: float) -> None:
        self._rank, self._timeout = rank, timeout
        self.holder: dict[str, int] = {}

    def acquire(self) -> None:
        """Acquire the lock to begin a call or to continue it.

        Raises:
            ValueError: Another thread is in a call.
        """
        me, since = threading.get_ident(), time.monotonic()
        while True:
            holder = self.holder.setdefault("thread", me)
            if holder == -me:
                self.holder["thread"] = me
            if abs(holder) == me:
                return
            if holder > 0 or time.monotonic() - since > self._timeout:
                raise ValueError(
                    f"rank {self._rank}: another thread is in a call on this communicator; make its calls one after"
                    " the other (peers must see them in one order), or build a communicator for each thread"
                )
            time.sleep(1e-4)  # another thread assists

    def try_assist(self) -> bool:
        """Acquire the lock briefly if it is free; follow with :meth:`end_assist`."""
        me = -threading.get_ident()
        return self.holder.setdefault("thread", me) == me

    def end_assist(self) -> None:
        """Release it if this thread holds it to assist."""
        if self.holder.get("thread") == -threading.get_ident():
            self.holder.clear()

    def release(self) -> None:
        """Release the lock: the call is over, or is to be continued later."""
        self.holder.clear()

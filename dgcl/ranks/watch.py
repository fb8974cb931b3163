"""A failure detector for set-up: it notices that any rank has gone, also one that nobody is waiting for.

In set-up a rank waits on the connection to the rank that it needs something from, and would not notice the death of a
third, for instance while rank 0 partitions. So a thread watches the connections to all ranks, which the system closes
with their processes. It also writes down for whom this rank has been waiting for long, so that in a row of ranks that
wait for each other the one at its end is found.

Called by `group_control`. Free to change while a death is noticed during long work on rank 0, who is late is named and
not who waits for it, and nothing but the watched call is interrupted (`tests/dgcl/ranks/test_watch.py`).
"""

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from dgcl.ranks.connections import Connection, wait_for_break

T = TypeVar("T")

_GRACE = 0.5  # seconds in which who waits for the rank that is gone may say so, or the set-up end


class _Interrupted(BaseException):
    """Raised by the watch in the thread that it interrupts."""


class Watch:
    """Watches from its construction until :meth:`end`.

    Args:
        connections: To each peer.
        lost: Called with the peer that is gone; makes waits of this rank end.
        tick, seconds: Called so often meanwhile.
    """

    def __init__(
        self,
        connections: Mapping[int, Connection],
        lost: Callable[[int], None],
        tick: Callable[[], None],
        seconds: float,
    ) -> None:
        self._lost, self._over = lost, threading.Event()
        self._lock = threading.Lock()
        self._interrupts: int | None = None  # the thread to be interrupted
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)

        def run() -> None:
            peer = wait_for_break(connections, self._stop, tick, seconds)
            if peer is not None and not self._over.wait(_GRACE):
                self._lost(peer)
                self._interrupt()

        self._thread = threading.Thread(target=run, name="dgcl watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._over.set()
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)

    def call(self, function: Callable[[], T], instead: Callable[[], BaseException]) -> T:
        """``function()``, left between two steps of Python when a peer is lost; then ``instead()`` is raised."""
        try:
            with self._lock:
                self._interrupts = threading.get_ident()
            try:
                return function()
            finally:
                with self._lock:
                    self._interrupts = None
                for _ in range(2):  # what was raised just before arrives here
                    pass
        except _Interrupted:
            raise instead() from None

    def _interrupt(self) -> None:
        with self._lock:
            if self._interrupts is not None:
                thread = ctypes.c_ulong(self._interrupts)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Interrupted))

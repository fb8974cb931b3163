"""Bounds how far the host runs ahead of its device. Experimental, like all of :mod:`dgcl.transport.cuda`.

Calls return before the device has begun them, so a host may enqueue thousands while a peer is late. The driver has
room for about a thousand operations; then it blocks the host inside a launch, with locks held that the watchdog needs
to stop the device, and peers to open memory. So at most :data:`MOST_CALLS` calls of a communicator, with at most
:data:`MOST_OPERATIONS` operations, are under way; a host that would enqueue more waits. It does so without calling the
driver: the device writes the number of every call that it has finished into the host's page.

Ranks cannot wait for each other here in a circle: of all ranks, the one that has made the fewest calls waits for a call
that every rank has made.

Replays of captured graphs are counted by the device, but not by the host, which then bounds less: torch launches them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

#: At most so many are enqueued and not finished.
MOST_CALLS: Final = 32
MOST_OPERATIONS: Final = 768  # unless a single call has more

_POLL: Final = 50e-6


class RunAhead:
    """The calls of one communicator that may still be under way.

    Args:
        finished: Returns the number of the last call that the device has finished; the first is 1.
        check: Raises when the communicator has failed: then no call finishes any more.
    """

    def __init__(self, finished: Callable[[], int], check: Callable[[], None]) -> None:
        self._finished, self._check = finished, check
        self._calls: deque[tuple[int, int]] = deque()  # numbers, and how many operations they are

    def make_room(self) -> None:
        """Wait until another call may be enqueued."""
        while self._is_full():
            self._check()
            time.sleep(_POLL)

    def add(self, call: int, num_operations: int) -> None:
        """Note that a call has been enqueued."""
        self._calls.append((call, num_operations))

    def _is_full(self) -> bool:
        finished = self._finished()
        while self._calls and self._calls[0][0] <= finished:
            self._calls.popleft()
        operations = sum(count for _, count in self._calls)
        return len(self._calls) >= MOST_CALLS or operations >= MOST_OPERATIONS

"""Watches the deadlines of collectives on a device, which a host enqueues and does not wait for.

A thread looks at the first that has not ended; each has the timeout from the end of the one before it. Closing waits
for all of them.

Called by `device_sums` and `dgcl/transport/collective/agreement`. Free to change while one that does not end in time
fails, and a rank that died is named although no host waits (`tests/dgcl/transport/collective/test_device_backend.py`,
`tests/dgcl/ranks/test_sums.py`).
"""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable

import torch

from dgcl.errors import CommError

_LOOK = 0.01  # seconds between two looks at the device
_EXIT_SECONDS = 5.0
_GRACE = 0.5  # seconds in which the device can end what a rank took part in before it died


class Enqueued:
    """Collectives of one rank on its device, in order; a thread looks at the first that is not over.

    Args:
        timeout: As the attribute.
        check: Gets the place of one that does not end, and whether its time is over; raises why it will not end.
        fail: Gets that error, and ends what is on the device.

    Attributes:
        timeout: Seconds that each may take from the end of the one before it.
    """

    def __init__(
        self, timeout: float, check: Callable[[str, bool], None], fail: Callable[[CommError], None]
    ) -> None:
        self.timeout, self._check, self._fail = timeout, check, fail
        self._places: deque[tuple[Callable[[], bool], str]] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dgcl deadlines", daemon=True)

    def add(self, device: torch.device, place: str) -> None:
        """Watch what the current stream of a device has been given up to here; ``place`` names it in messages."""
        self._places.append((completion(device), place))
        if self._thread.ident is None:
            self._thread.start()
            # A thread that comes back when Python is gone aborts the process.
            atexit.register(self.close, _EXIT_SECONDS)

    def close(self, seconds: float | None = None) -> None:
        """Watch until all is over, or has failed, and then no more; wait no longer than so long for that."""
        if self._closing.is_set() or self._thread.ident is None:
            return
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)
        self._places.clear()  # the thread must not look at what its owner closes
        atexit.unregister(self.close)

    def _run(self) -> None:
        since = time.monotonic()
        while self._places or not self._closing.is_set():
            while self._places and self._places[0][0]():
                self._places.popleft()
                since = time.monotonic()
            elapsed = time.monotonic() - since
            if not self._places:
                since = time.monotonic()
            elif elapsed > min(_GRACE, self.timeout):
                try:
                    self._check(self._places[0][1], elapsed > self.timeout)
                except CommError as error:
                    return self._fail(error)
            time.sleep(_LOOK)


def completion(device: torch.device) -> Callable[[], bool]:
    """Says whether what the current stream of a device has been given is over."""
    if device.type == "cpu":
        return lambda: True
    module = getattr(torch, device.type)  # torch.accelerator is not in older ones
    event = module.Event()
    event.record(module.current_stream(device))
    return event.query

"""Gives a deadline to calls that have none, by running them in a thread.

A thread whose time is over goes on by itself, and must not be inside torch when the interpreter ends: `context` waits
for threads whose names begin with "dgcl".

Called by `rendezvous`, `gloo_groups`, `abort_reasons` and `device_sums`. Free to change while the caller gets the
result, the error, or a TimeoutError in time (`tests/dgcl/ranks/test_control.py`), and no process aborts at exit
(`tests/dgcl/test_exit.py`).
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


_LOOK = 0.25  # seconds between two calls of ``meanwhile``


def in_time(step: Callable[[], T], seconds: float, meanwhile: Callable[[], None] | None = None) -> T:
    """What ``step()`` returns, if it returns within this time.

    Some questions to a store have no deadline of their own: on a link that is cut, the answer would be waited for as
    long as TCP retries. The step runs in a thread, which goes on by itself where the time is over. ``meanwhile`` is
    called from time to time, and what it raises ends the wait, too.

    Raises:
        TimeoutError: The step has not ended in time.
        Exception: Whatever the step raised.
    """
    results: list[tuple[T | None, Exception | None]] = []

    def run() -> None:
        try:
            results.append((step(), None))
        except Exception as error:  # whatever it is, the caller shall see it
            results.append((None, error))

    thread = threading.Thread(target=run, name="dgcl step with a deadline", daemon=True)
    thread.start()
    until = time.monotonic() + seconds
    while meanwhile is not None and until - time.monotonic() > _LOOK:
        thread.join(_LOOK)
        if not thread.is_alive():
            break
        meanwhile()
    thread.join(max(until - time.monotonic(), 0.0))
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    value, error = results[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]

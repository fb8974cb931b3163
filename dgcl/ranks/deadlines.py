"""A deadline for calls that take none.

Called by 4 modules of this folder. Free to change while all ranks agree, and one that fails is named by the
others in time (`tests/dgcl/ranks/test_control.py`).
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

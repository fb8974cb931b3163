"""The call lock: threads that assist, and one that was interrupted while it did."""

import threading
from collections.abc import Callable

import pytest

from dgcl.transport.common.life_cycle import CallLock


def in_another_thread(function: Callable[[], object]) -> str:
    """What it raised there; "" if nothing."""
    said: list[str] = []

    def run():
        try:
            function()
            said.append("")
        except ValueError as error:
            said.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert said, "it waits for ever"
    return said[0]


def test_an_assisting_thread_is_waited_for():
    lock = CallLock(0, 20.0)
    assert lock.try_assist()
    threading.Timer(0.05, lock.release).start()
    assert in_another_thread(lock.acquire) == ""
    assert not lock.try_assist(), "the other thread has it"
    lock.end_assist()
    with pytest.raises(ValueError, match="another thread is in a call"):
        lock.acquire()


def test_an_interrupted_assist_blocks_nobody_for_ever():
    lock = CallLock(0, 0.1)
    assert lock.try_assist()
    assert "another thread is in a call" in in_another_thread(lock.acquire)
    lock.acquire()
    lock.end_assist()
    assert "another thread is in a call" in in_another_thread(lock.acquire), "it assists no more"

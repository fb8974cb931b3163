"""Lets the communicators of one rank find each other.

Two ranks that make the calls of two communicators in different orders wait for each other for ever. One communicator
sees only that a rank does not come. Together they see that the rank is in a call of the other communicator
(:class:`dgcl.transport.shared_memory.failure_detector.FailureDetector`).
"""

import functools
import threading
import weakref

from dgcl.transport.shared_memory.control_calls import ControlCalls
from dgcl.transport.shared_memory.failure_detector import OtherCommunicator
from dgcl.transport.shared_memory.life_cycle import LifeCycle


class _Built(threading.local):
    """The communicators that the calling thread has built.

    Attributes:
        runtimes: Weak references to them.
        number: How many were built in all.
    """

    def __init__(self) -> None:
        self.runtimes: weakref.WeakSet[LifeCycle] = weakref.WeakSet()
        self.number = 0


_built = _Built()


def register(runtime: LifeCycle) -> None:
    """Give a communicator its name in messages, and let it find the others of this thread."""
    _built.number += 1
    _built.runtimes.add(runtime)
    detector, reference = runtime.failure_detector, weakref.ref(runtime)
    detector.name = f"communicator {_built.number} (by the order in which they were built)"
    runtime.others = functools.partial(_others, reference)
    detector.other_communicators = functools.partial(_others_of_same_ranks, reference)
    detector.alone = runtime.control.only_ranks_run
    detector.control_calls = ControlCalls(runtime.control, runtime.peers)


def _others(reference: weakref.ref[LifeCycle]) -> list[LifeCycle]:
    """The other communicators that the calling thread has built."""
    runtime = reference()
    return [other for other in _built.runtimes if runtime is not None and other is not runtime]


def _others_of_same_ranks(reference: weakref.ref[LifeCycle]) -> list[OtherCommunicator]:
    """The other communicators with the same ranks that can still make calls.

    One that failed or was closed makes no more calls: a call of it that a peer began proves nothing about later ones.
    """
    runtime = reference()
    others = [
        other.seen_by_others()
        for other in _others(reference)
        if runtime is not None and other.control is runtime.control
    ]
    return [other for other in others if other is not None]

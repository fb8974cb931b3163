"""Communicators of one rank beside each other: what each needs to know of the others.

Two ranks that make the calls of two communicators in different orders wait for each other, each in another one. Each
communicator alone sees only a rank that does not come; together they see that it is elsewhere
(:class:`dgcl.transport.shared_memory.failure_detector.FailureDetector`).
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING

from dgcl.ranks.context import context
from dgcl.ranks.control import Control, ThreadControl

if TYPE_CHECKING:
    from dgcl.communicator import Communicator
    from dgcl.transport.shared_memory import Runtime
    from dgcl.transport.shared_memory.failure_detector import OtherCommunicator


def introduce(comm: Communicator) -> None:
    """Give a communicator its name in messages, and show it those that this rank has besides."""
    context.built += 1
    failure_detector = comm._runtime.failure_detector
    failure_detector.name = f"communicator {context.built} (by the order in which they were built)"
    comm._runtime.others = functools.partial(_others, weakref.ref(comm))
    failure_detector.other_communicators = functools.partial(_siblings, weakref.ref(comm))
    failure_detector.alone = functools.partial(_only_ranks_run, comm.control)


def _others(reference: weakref.ref[Communicator]) -> list[Runtime]:
    """Of the other communicators that this thread has built."""
    comm = reference()
    return [other._runtime for other in context.opened if comm is not None and other is not comm]


def _siblings(reference: weakref.ref[Communicator]) -> list[OtherCommunicator]:
    """Those of the same ranks that can still make calls.

    One that failed or was closed makes no more: that a peer began a call of it says nothing about later ones."""
    comm = reference()
    found = [
        other._runtime.seen_by_others()
        for other in context.opened
        if comm is not None and other is not comm and other.control is comm.control
    ]
    return [other for other in found if other is not None]


def _only_ranks_run(control: Control) -> bool:
    """Whether this process has no threads but those that are ranks, and the one that started them.

    The library's own threads, known by their names, make no calls."""
    ranks = control.world_size if isinstance(control, ThreadControl) else 0
    others = [thread for thread in threading.enumerate() if not thread.name.startswith("dgcl ")]
    return len(others) <= ranks + 1

"""Flags between ranks outside any communicator: a barrier of microseconds, and waits with a deadline.

A barrier of ``torch.distributed`` takes longer than what is to be measured, and lets the ranks go one after
the other. Flags lie on control pages of their own (:mod:`dgcl.transport.shared_memory.control_page`) in shared memory.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

import numpy as np

from dgcl.errors import CommTimeoutError, PeerLostError
from dgcl.kernels.compiled import compiled
from dgcl.kernels.futex import ASLEEP, AWAKE, announce_sleep, cancel_sleep, sleep, wake
from dgcl.kernels.memory import load_acquire, monotonic_nanoseconds, store_release
from dgcl.ranks.control import Control
from dgcl.ranks.machines import places_of_ranks, several_machines
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.engine import call_attention
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.segments import SegmentFile

_POLL_NANOSECONDS: Final = 2_000  # longer would keep ranks that share the core from coming
_SLEEP: Final = 2_000_000


@compiled
def _reached(address: int, value: int, wake_word: int, scratch: int) -> bool:
    """Wait some milliseconds at most for the word at ``address`` to reach ``value``."""
    begin = monotonic_nanoseconds(scratch)
    while load_acquire(address) < value:
        if monotonic_nanoseconds(scratch) - begin < _POLL_NANOSECONDS:
            continue
        announce_sleep(wake_word)
        if load_acquire(address) >= value:
            cancel_sleep(wake_word)
            break
        if sleep(wake_word, _SLEEP, scratch) == ASLEEP:
            return load_acquire(address) >= value
    return True


@compiled
def _post(address: int, value: int, wake_words: np.ndarray) -> None:
    """Raise a flag and wake all who may wait for it."""
    store_release(address, value)
    for i in range(len(wake_words)):
        wake(wake_words[i], AWAKE)


class Barrier(Protocol):
    """How the ranks of a measurement come together between samples.

    Attributes:
        shared_clock: Whether the ranks are on one machine, so that their clocks are one.
    """

    shared_clock: bool

    def barrier(self) -> None:
        """Wait until every rank has called."""

    def close(self) -> None:
        """Release what it holds. Idempotent, not collective."""


class NetworkBarrier:
    """The barrier of ranks on several machines, which share no memory: that of the control plane."""

    shared_clock = False

    def __init__(self, control: Control) -> None:
        self.barrier = control.barrier

    def close(self) -> None:
        """Nothing."""


def open_barrier(control: Control, timeout: float) -> Barrier:
    """:class:`Flags` where all ranks share memory, else a :class:`NetworkBarrier`. Collective."""
    if several_machines(places_of_ranks(control)):
        return NetworkBarrier(control)
    return Flags(control, timeout)


class Flags:
    """A rank's control page and those of the others. Construction is collective."""

    shared_clock = True

    def __init__(self, control: Control, timeout: float) -> None:
        self.rank, self.world_size, self._timeout = control.rank, control.world_size, timeout
        self.file = SegmentFile()
        self.control_page = ControlPage.create(self.file, control.world_size)
        self.peers = Peers(control, self.file, self.control_page)
        self._barriers = 0
        others = [peer for peer in range(self.world_size) if peer != self.rank]
        self.wake_words = np.array([self.peers.control_pages[peer].wake_address for peer in others], np.int64)
        self._scratch = np.zeros(2, np.int64)

    def wait(self, address: int, value: int, peer: int, what: str) -> None:
        """Return when the word at ``address`` has reached ``value``.

        Raises:
            PeerLostError: ``peer``, who was to write it, is gone.
            CommTimeoutError: It took longer than the timeout.
        """
        deadline = time.monotonic() + self._timeout
        wait = (address, value, self.control_page.wake_address, self._scratch.ctypes.data)
        while not _reached(*wait):
            why = self.peers.gone(peer)
            if why is not None and not _reached(*wait):
                raise PeerLostError(f"rank {self.rank}: rank {peer} {why}, and {what}")
            if time.monotonic() > deadline:
                raise CommTimeoutError(
                    f"rank {self.rank}: waited {self._timeout:g} s in vain for rank {peer}: {what}"
                )

    def post(self, peer: int, value: int) -> None:
        """Post for ``peer``, visible to all ranks, that this rank has reached ``value`` with it."""
        _post(self.control_page.done_address(peer), value, self.wake_words)

    def wait_posted(self, peer: int, about: int, value: int, what: str) -> None:
        """Wait until ``peer`` has posted ``value`` for rank ``about``."""
        self.wait(self.peers.control_pages[peer].done_address(about), value, peer, what)

    def barrier(self) -> None:
        """Wait until every rank has called; all return within a few microseconds if each has a core.

        Uses the posts, so barriers and other posts do not mix.
        """
        self._barriers += 1
        others = [peer for peer in range(self.world_size) if peer != self.rank]
        for peer in others:
            self.post(peer, self._barriers)
        for peer in others:
            self.wait_posted(peer, self.rank, self._barriers, "it has not come to the barrier")

    def close(self) -> None:
        """Release the pages. Idempotent, not collective."""
        self.control_page.post_closed()
        call_attention(self.wake_words)
        self.peers.close()
        self.file.close()

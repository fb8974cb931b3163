"""Flags between ranks outside any communicator: a barrier of microseconds, and waits with a deadline.

A barrier of ``torch.distributed`` takes longer than what is to be measured, and lets the ranks go one after
the other. Flags lie on boards of their own (:mod:`dgcl.runtime.board`) in shared memory.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
from numba import njit

from dgcl.control import Control
from dgcl.errors import CommTimeoutError, PeerLostError
from dgcl.kernels.memory import load_acquire, sleep_microseconds, yield_cpu
from dgcl.runtime.board import Board
from dgcl.runtime.engine import write_word
from dgcl.runtime.peers import Peers
from dgcl.runtime.segments import SegmentFile

#: Hash of the kernels compiled into the cached functions here, which numba does not look at; held by a test.
COMPILED_FROM: Final = "b70bf7792895253f"

_SPINS: Final = 200
_YIELDS: Final = 2000
_SLEEPS: Final = 200


@njit(nogil=True, cache=True)
def _reached(address: int, value: int) -> bool:
    """Wait some milliseconds at most for the word at ``address`` to reach ``value``."""
    for _ in range(_SPINS):
        if load_acquire(address) >= value:
            return True
    for _ in range(_YIELDS):
        yield_cpu()
        if load_acquire(address) >= value:
            return True
    for _ in range(_SLEEPS):
        sleep_microseconds(np.uint32(20))
        if load_acquire(address) >= value:
            return True
    return False


class Flags:
    """A rank's board and those of the others. Construction is collective."""

    def __init__(self, control: Control, timeout: float) -> None:
        self.rank, self.world_size, self._timeout = control.rank, control.world_size, timeout
        self.file = SegmentFile()
        self.board = Board.create(self.file, control.world_size)
        self.peers = Peers(control, self.file, self.board)
        self._meetings = 0

    def wait(self, address: int, value: int, peer: int, what: str) -> None:
        """Return when the word at ``address`` has reached ``value``.

        Raises:
            PeerLostError: ``peer``, who was to write it, is gone.
            CommTimeoutError: It took longer than the timeout.
        """
        deadline = time.monotonic() + self._timeout
        while not _reached(address, value):
            why = self.peers.gone(peer)
            if why is not None and not _reached(address, value):
                raise PeerLostError(f"rank {self.rank}: rank {peer} {why}, and {what}")
            if time.monotonic() > deadline:
                raise CommTimeoutError(
                    f"rank {self.rank}: waited {self._timeout:g} s in vain for rank {peer}: {what}"
                )

    def post(self, peer: int, value: int) -> None:
        """Tell ``peer``, and whoever looks, that this rank has reached ``value`` with it."""
        write_word(self.board.done_address(peer), value)

    def wait_posted(self, peer: int, about: int, value: int, what: str) -> None:
        """Wait until ``peer`` has posted ``value`` for rank ``about``."""
        self.wait(self.peers.boards[peer].done_address(about), value, peer, what)

    def barrier(self) -> None:
        """Return when every rank has called; all within a few microseconds where there is a core for each.

        Uses the posts, so barriers and other posts do not mix.
        """
        self._meetings += 1
        others = [peer for peer in range(self.world_size) if peer != self.rank]
        for peer in others:
            self.post(peer, self._meetings)
        for peer in others:
            self.wait_posted(peer, self.rank, self._meetings, "it has not come to the barrier")

    def close(self) -> None:
        """Leave. Idempotent, not collective."""
        self.board.post_closed()
        self.peers.close()
        self.file.close()

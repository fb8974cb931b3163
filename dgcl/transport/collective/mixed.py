"""The wire of a job over several hosts: memory between ranks that share it, messages between the others."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgcl.kernels.futex import ATTEND, AWAKE, announce_sleep, cancel_sleep, sleep, wake
from dgcl.transport.collective.wires import GlooWire
from dgcl.transport.shared_memory.control_page import READY_BUFFER
from dgcl.transport.shared_memory.engine import read_word, write_word
from dgcl.transport.shared_memory.peers import Peers


class _Near(NamedTuple):
    """What a stage, of this number, still has to move through memory: places by sender; who has to fetch rows here."""

    number: int
    receives: dict[int, Tensor]
    sends: list[int]


class MixedWire(GlooWire):
    """A sender's ready line has a stage's number and where its rows lie, the receiver's done line that it has them.

    Rows lie in the communicator's pool, which peers can map. Every rank counts all stages.
    """

    def __init__(self, peers: Peers, *group: Any) -> None:
        super().__init__(*group)
        self._peers, self._number, self.near = peers, 0, peers.near
        self._clock = np.zeros(2, np.int64)  # for sleeping
        self._memory: dict[tuple[int, int], Tensor] = {}  # of segments, by peer and place in its file

    def post(self, arrived: Tensor, packed: Tensor, receives: list[int], sends: list[int]) -> Any:
        """As of every wire."""
        self._number += 1
        messages = super().post(arrived, packed, receives, sends)
        rows, places = packed.split(sends), arrived.split(receives)
        for peer in self.near:
            if sends[peer]:
                self._offer(peer, rows[peer])
        near = _Near(
            self._number,
            {peer: places[peer] for peer in self.near if receives[peer]},
            [peer for peer in self.near if sends[peer]],
        )
        self._advance(near)
        return near, messages

    def _offer(self, peer: int, rows: Tensor) -> None:
        """Let a peer fetch rows."""
        address, line = rows.data_ptr(), self._peers.page.ready_address(peer)
        segment = next(one for one in self._peers.pool.segments if 0 <= address - one.address < one.size)
        for word, value in enumerate((segment.base, segment.size, address - segment.address), READY_BUFFER):
            write_word(line + 8 * word, value)
        self._raise(peer, line)

    def _raise(self, peer: int, flag: int) -> None:
        write_word(flag, self._number)
        wake(self._peers.control_pages[peer].wake_address, AWAKE)

    def _advance(self, near: _Near) -> bool:
        """Fetch what is ready; whether nothing is left to be fetched, here or there."""
        rank, pages = self._peers.rank, self._peers.control_pages
        for peer in [*near.receives]:
            if read_word(pages[peer].ready_address(rank)) == near.number:
                self._fetch(peer, near.receives.pop(peer))
                self._raise(peer, pages[rank].done_address(peer))
        near.sends[:] = [
            peer for peer in near.sends if read_word(pages[peer].done_address(rank)) < near.number
        ]
        return not near.sends and not near.receives

    def _fetch(self, peer: int, place: Tensor) -> None:
        line = self._peers.buffer_line(peer, relay=False)
        base, offset = int(read_word(line)), int(read_word(line + 16))
        if (peer, base) not in self._memory:
            self._memory[peer, base] = torch.from_numpy(self._peers.map_segment(peer, line).memory)
        place.copy_(self._memory[peer, base][offset : offset + place.numel()].view(place.shape))

    def wait(self, work: Any, seconds: float) -> bool:
        """As of every wire."""
        near, messages = work
        deadline = time.monotonic() + seconds
        word, clock = self._peers.page.wake_address, self._clock.ctypes.data
        while not self._advance(near):
            announce_sleep(word)
            if self._advance(near):
                cancel_sleep(word)
            elif sleep(word, int(seconds * 1e9), clock) == ATTEND or time.monotonic() > deadline:
                super().wait(messages, 0)
                return False
        return super().wait(messages, max(deadline - time.monotonic(), 0))

    def pending(self, work: Any) -> list[int]:
        """As of every wire."""
        near, messages = work
        self._advance(near)
        return [*near.receives, *near.sends, *super().pending(messages)]

"""Plain copies between shared memory by the same ranks, as a speed limit for exchanges of that many bytes.

A rank copies from the memory of the next rank into its own, in one piece, as many bytes as an exchange
writes there. No rows, no waiting, no numbering: what is left is the machine.
"""

from __future__ import annotations

import numpy as np

from dgcl.bench.flags import Flags
from dgcl.kernels.compiled import compiled
from dgcl.kernels.memory import copy_bytes
from dgcl.ranks.control import Control
from dgcl.transport.shared_memory.engine import publish_ready


@compiled
def _copy(destination: int, source: int, num_bytes: int) -> None:
    copy_bytes(destination, source, num_bytes)


class Copies:
    """Room for ``slots`` copies of ``num_bytes`` each, read and written once so that none is new memory.

    Construction is collective; every rank copies the same number of bytes.
    """

    def __init__(self, control: Control, num_bytes: int, slots: int, timeout: float) -> None:
        self._num_bytes, self._slots = num_bytes, slots
        self._flags = flags = Flags(control, timeout)
        self._peer = (flags.rank + 1) % flags.world_size
        self._source = flags.file.grow(max(num_bytes * slots, 1))
        self._target = flags.file.grow(max(num_bytes * slots, 1))
        self._source.memory[:] = flags.rank + 1
        self._target.memory[:] = 0
        # Where the source lies is told on the ready lines, by which peers map it.
        lines = np.array(
            [flags.control_page.ready_address(peer) for peer in range(flags.world_size)], np.int64
        )
        words = np.array([0, self._source.base, self._source.size, 0, 0, 0, 0], np.int64)
        publish_ready(lines, flags.control_page.call_address, 1, words)
        flags.barrier()
        if self._peer == flags.rank:
            self._from = self._source.address
        else:
            flags.peers.map_segment(self._peer, flags.peers.buffer_line(self._peer, False))
            self._from = int(flags.peers.maps[2][self._peer, 0])

    def run(self, slot: int) -> None:
        """One copy."""
        offset = slot * self._num_bytes
        _copy(self._target.address + offset, self._from + offset, self._num_bytes)

    def poison(self) -> None:
        """Overwrite the copied data."""
        self._target.memory[:] = 0

    def wrong(self) -> int:
        """Count the bytes that have not arrived, over all slots."""
        found = self._target.memory[: self._num_bytes * self._slots]
        return len(found) - int(np.count_nonzero(found == self._peer + 1))

    def close(self) -> None:
        """Give the memory back."""
        self._flags.close()

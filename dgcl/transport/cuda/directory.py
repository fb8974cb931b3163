"""Where a rank's device memory is, for its peers: a page of shared memory on the host.

::

    byte 0       entries     how many there are
         8       let go      the rank uses nobody's memory any more
       128       entry[N]    base, size, address in the owner's process, handle (64 bytes)

An entry is written before the first call that uses its allocation is enqueued; peers look and open it. That is
how memory grows without a collective and without anyone waiting on the host: a kernel that meets an allocation
which is not mapped yet waits for its record (:func:`dgcl.kernels.cuda_flags.resolve`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from dgcl.kernels.cuda_driver import IPC_HANDLE_BYTES
from dgcl.kernels.cuda_tables import MAP
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.shared_memory.engine import read_word, write_word
from dgcl.transport.shared_memory.segments import PeerFile, Segment, SegmentFile

#: Allocations that a rank may have in its life. Each is at least an eighth of all before it.
MOST_ENTRIES = 128
_FIRST = 128
_ENTRY = 128
_BYTES = _FIRST + MOST_ENTRIES * _ENTRY


@dataclass(frozen=True)
class Card:
    """What a rank tells the others of itself.

    Attributes:
        process, descriptor: Where its directory is.
        uuid: Its device.
        context: Of its device, in its own process.
        unreachable: Why its device memory cannot be opened by other processes; "" if it can.
    """

    process: int
    descriptor: int
    uuid: str
    context: int
    unreachable: str = ""


class Directory:
    """This rank's own entries.

    Attributes:
        closed_to_others: The driver does not export memory; nobody is to open it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._file = SegmentFile()
        self._segment = self._file.grow(_BYTES)
        self._count = 0
        self.closed_to_others = False

    def card(self, unreachable: str = "") -> Card:
        """What the others must know."""
        return Card(*self._file.handle, self._device.uuid, self._device.context, unreachable)

    def add(self, segment: Segment) -> None:
        """Publish an allocation.

        Raises:
            MemoryError: The directory is full.
            CudaError: It cannot be exported.
        """
        if self._count == MOST_ENTRIES:
            raise MemoryError(f"this rank's communicator has grown {MOST_ENTRIES} times; build it anew")
        handle = bytes(IPC_HANDLE_BYTES)
        if not self.closed_to_others:
            handle = self._device.driver.export_memory(segment.address)
        place = _FIRST + self._count * _ENTRY
        entry = self._segment.memory[place : place + _ENTRY]
        entry[:24].view(np.int64)[:] = (segment.base, segment.size, segment.address)
        entry[24 : 24 + IPC_HANDLE_BYTES] = np.frombuffer(handle, np.uint8)
        self._count += 1
        write_word(self._segment.address, self._count)

    def let_go(self) -> None:
        """Say that this rank uses no peer's memory any more."""
        write_word(self._segment.address + 8, 1)

    def close(self) -> None:
        """Close the file; who has mapped it keeps it."""
        self._file.close()


class PeerMemory:
    """A peer's allocations, opened here as they appear.

    Args:
        device: Of this rank.
        card: The peer's.

    Attributes:
        broken: Why an allocation could not be opened; "" as long as all could.
    """

    def __init__(self, device: Device, card: Card) -> None:
        self._device = device
        self._mine = card.process == os.getpid()
        self._file = PeerFile((card.process, card.descriptor))
        self._segment = self._file.map(0, -(-_BYTES // 4096) * 4096)
        self._opened: list[int] = []
        self._records: list[tuple[int, int, int]] = []
        self.broken = ""
        if self._mine and card.context != device.context:
            with device.current():
                device.driver.enable_peer_access(card.context)

    def look(self) -> np.ndarray:
        """Open what is new; ``MAP`` records of it, in order."""
        first = len(self._records)
        for entry in range(first, int(read_word(self._segment.address))):
            place = _FIRST + entry * _ENTRY
            memory = self._segment.memory[place : place + _ENTRY]
            base, size, address = memory[:24].view(np.int64).tolist()
            if not self._mine:
                handle = memory[24 : 24 + IPC_HANDLE_BYTES].tobytes()
                try:
                    address = self._device.driver.open_memory(handle)
                except CudaError as error:
                    self.broken = str(error)
                    break
                self._opened.append(address)
            self._records.append((base, size, address))
        return np.array(self._records[first:], MAP)

    @property
    def num_known(self) -> int:
        """Allocations that :meth:`look` has told of."""
        return len(self._records)

    @property
    def has_let_go(self) -> bool:
        """Whether the peer uses nobody's memory any more."""
        return int(read_word(self._segment.address + 8)) != 0

    def close(self) -> None:
        """Close what was opened, when no kernel of this rank uses it any more. Whether the peer has let go can still
        be seen."""
        while self._opened:
            self._device.driver.close_memory(self._opened.pop())
        self._file.close()  # what is mapped of it stays

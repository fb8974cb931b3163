"""Opens device memory of peers by CUDA IPC when a call first names it, and reports when it is closed.

Exported memory must not be freed while another process has it open. So each rank has a page in shared memory with a
word for every peer: not 0 says that this rank uses none of that peer's memory any more. A rank that leaves waits for
these words, or for the deaths of those that will not write them, before it frees anything or ends its process.
Called by `connect_devices` and `device_exchange`. Free to change while no rank frees memory, or ends its process,
before its peers have closed that memory, and deaths are noticed (`tests/dgcl/transport/cuda/test_faults.py`).
"""

import os
import select
from dataclasses import dataclass

import numpy as np

from dgcl.kernels.cuda_driver import IPC_HANDLE_BYTES
from dgcl.transport.common.segments import PeerFile, Segment, SegmentFile
from dgcl.transport.common.words import read_word, write_word
from dgcl.transport.cuda.gpu import Device

#: Words that name a piece of device memory: its allocation's address in the process of its owner, the offset, and the
#: allocation's handle.
PLACE_WORDS = 2 + IPC_HANDLE_BYTES // 8


@dataclass(frozen=True)
class Descriptor:
    """What the others must know of a rank to open its device memory.

    Attributes:
        process: Number of its process.
        page: Handle of its page in shared memory.
        uuid: UUID of its device, hexadecimal.
        control_block: Place of its control block.
    """

    process: int
    page: tuple[int, int]
    uuid: str
    control_block: tuple[int, ...]


class OwnMemory:
    """This rank's exported allocations, and its page."""

    def __init__(self, device: Device, world_size: int) -> None:
        self._device = device
        self._file = SegmentFile()
        self._page = self._file.grow(8 * world_size)
        self._handles: dict[int, tuple[int, ...]] = {}

    def export(self, address: int) -> None:
        """Let others open an allocation.

        Raises:
            CudaError: The driver cannot export it.
        """
        handle = self._device.driver.export_memory(address)
        self._handles[address] = tuple(np.frombuffer(handle, np.int64).tolist())

    def place(self, allocation: int, offset: int = 0) -> tuple[int, ...]:
        """The :data:`PLACE_WORDS` words by which peers find a byte of an exported allocation."""
        return allocation, offset, *self._handles[allocation]

    def descriptor(self, control_block: int) -> Descriptor:
        """Describe this rank to the others."""
        return Descriptor(os.getpid(), self._file.handle, self._device.uuid, self.place(control_block))

    def release(self, peer: int) -> None:
        """Publish that this rank uses none of a peer's memory any more."""
        write_word(self._page.address + 8 * peer, 1)

    def close(self) -> None:
        """Close the file; peers that have mapped it keep their mapping."""
        self._file.close()


class PeerMemory:
    """A peer's allocations, opened in this process as they are named.

    Args:
        device: Of this rank.
        descriptor: The peer's.

    Raises:
        OSError: Its process cannot be reached.
    """

    def __init__(self, device: Device, descriptor: Descriptor) -> None:
        self._device = device
        self._file = PeerFile(descriptor.page)
        self._page: Segment = self._file.map(0, os.sysconf("SC_PAGE_SIZE"))
        self._watch = os.pidfd_open(descriptor.process)
        self._opened: dict[int, int] = {}
        self.is_closed = False

    def address(self, place: tuple[int, ...] | list[int]) -> int:
        """Where a place is in this process; 0 for none, and once this is closed.

        Raises:
            CudaError: The driver cannot open the allocation.
        """
        allocation, offset, *handle = place
        if allocation == 0 or self.is_closed:
            return 0
        if allocation not in self._opened:
            words = np.array(handle, np.int64).tobytes()
            self._opened[allocation] = self._device.driver.open_memory(words)
        return self._opened[allocation] + offset

    def has_left(self, rank: int) -> bool:
        """Whether the peer will use no memory of ``rank`` any more, or has died."""
        return int(read_word(self._page.address + 8 * rank)) != 0 or self.has_died()

    def has_died(self) -> bool:
        """Whether the peer's process has ended."""
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Unmap what was opened, when no kernel of this rank uses it; :meth:`has_left` still answers."""
        self.is_closed = True
        while self._opened:
            self._device.driver.close_memory(self._opened.popitem()[1])

    def forget(self) -> None:
        """Stop watching the peer."""
        self._file.close()
        os.close(self._watch)

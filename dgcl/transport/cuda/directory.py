"""The list of a rank's device allocations, in shared memory of the host, and how peers open them.

::

    byte 0       entries     number of entries
         8       released    not 0: the rank uses no peer's memory any more
       128       entry[N]    base, size, address in the owner's process, IPC handle (64 bytes)

An entry is written before the first call that uses its allocation is enqueued; peers poll the count and open new
entries. So memory grows without a collective and without a host that waits: a kernel that meets an allocation which
is not mapped yet waits for its MAP record (:func:`dgcl.kernels.cuda_flags.signal_wait`).
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
_NOTHING_NEW = np.zeros(0, MAP)


@dataclass(frozen=True)
class Descriptor:
    """What a rank tells the others so that they can open its device memory.

    Attributes:
        process: Its process id.
        file_descriptor: Of the directory's file in that process.
        uuid: UUID of its device, hexadecimal.
        context: Handle of its device's context, valid in its own process.
        unreachable: Why other processes cannot open its device memory; "" if they can.
    """

    process: int
    file_descriptor: int
    uuid: str
    context: int
    unreachable: str = ""


class Directory:
    """This rank's own allocations.

    Attributes:
        closed_to_others: Whether memory is not exported, because the driver cannot; peers must not open it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._file = SegmentFile()
        self._segment = self._file.grow(_BYTES)
        self._count = 0
        self.closed_to_others = False

    def descriptor(self, unreachable: str = "") -> Descriptor:
        """What the other ranks must know."""
        return Descriptor(*self._file.handle, self._device.uuid, self._device.context, unreachable)

    def add(self, segment: Segment) -> None:
        """Publish an allocation.

        Raises:
            MemoryError: The directory is full.
            CudaError: The driver cannot export it.
        """
        if self._count == MOST_ENTRIES:
            raise MemoryError(f"this rank's communicator has grown {MOST_ENTRIES} times; build it anew")
        handle = bytes(IPC_HANDLE_BYTES)
        if not self.closed_to_others:
            handle = self._device.driver.export_memory(segment.address)
        offset = _FIRST + self._count * _ENTRY
        entry = self._segment.memory[offset : offset + _ENTRY]
        entry[:24].view(np.int64)[:] = (segment.base, segment.size, segment.address)
        entry[24 : 24 + IPC_HANDLE_BYTES] = np.frombuffer(handle, np.uint8)
        self._count += 1
        write_word(self._segment.address, self._count)

    def release_peers(self) -> None:
        """Say that this rank uses no peer's memory any more."""
        write_word(self._segment.address + 8, 1)

    def close(self) -> None:
        """Close the file; peers that have mapped it keep their mapping."""
        self._file.close()


class PeerMemory:
    """A peer's allocations, opened in this process as they appear.

    Args:
        device: Of this rank.
        descriptor: The peer's.

    Attributes:
        broken: Why an allocation could not be opened; "" as long as all could.
    """

    def __init__(self, device: Device, descriptor: Descriptor) -> None:
        self._device = device
        self._same_process = descriptor.process == os.getpid()
        self._file = PeerFile((descriptor.process, descriptor.file_descriptor))
        self._segment = self._file.map(0, -(-_BYTES // 4096) * 4096)
        self._opened: list[int] = []
        self._records: list[tuple[int, int, int]] = []
        self.broken = ""
        if self._same_process and descriptor.context != device.context:
            with device.current():
                device.driver.enable_peer_access(descriptor.context)

    def open_new(self) -> np.ndarray:
        """Open the allocations that are new; ``(n,)`` MAP records of them, in order."""
        first, count = len(self._records), int(read_word(self._segment.address))
        if count == first:  # as nearly always, some hundred times a second
            return _NOTHING_NEW
        for entry in range(first, count):
            offset = _FIRST + entry * _ENTRY
            memory = self._segment.memory[offset : offset + _ENTRY]
            base, size, address = memory[:24].view(np.int64).tolist()
            if not self._same_process:
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
        """Number of allocations that :meth:`open_new` has opened."""
        return len(self._records)

    @property
    def has_released(self) -> bool:
        """Whether the peer uses nobody's memory any more."""
        return int(read_word(self._segment.address + 8)) != 0

    def close(self) -> None:
        """Unmap what was opened, when no kernel of this rank uses it; :attr:`has_released` can still be read."""
        while self._opened:
            self._device.driver.close_memory(self._opened.pop())
        self._file.close()  # its mapping stays

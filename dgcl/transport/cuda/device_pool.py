"""Allocates device buffers that peers can write to, and reuses them in the order of streams.

A block becomes free when the *storage* behind its tensor dies, as on the CPU (:mod:`dgcl.transport.common.pool` cuts
the blocks). The host runs ahead of the device, so work that reads the storage may still be queued then. Allocations are
freed only after the communicator is closed and every peer has unmapped them.
Called by `device_exchange` and `watchdog`. Free to change while no block is given out that work still uses which was
queued on a stream of calls, on the stream where its storage died, or on one named to `DevicePool.use_on` (a reader
elsewhere is not seen), steps reuse their memory, and all is given back (`tests/dgcl/transport/cuda/test_exchange.py`).
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from torch import Tensor

from dgcl.transport.common.pool import Block, BufferPool
from dgcl.transport.common.segments import Segment, SegmentFile
from dgcl.transport.cuda.gpu import CudaError, Device

_GRANULE = 2 << 20
_GROWTH = 8  # a new segment is at least this fraction of the total, so that segments stay few

_NO_MEMORY = np.zeros(0, np.uint8)


class DeviceFile:
    """A growing list of device allocations, used like the segments of a file; addresses are device addresses.

    Args:
        device: The device to allocate on.
        grown: Called with the address of every new allocation, before anything in it is used.
    """

    def __init__(self, device: Device, grown: Callable[[int], None]) -> None:
        self._device, self._grown = device, grown
        self.segments: list[Segment] = []
        self.size = 0

    def grow(self, num_bytes: int) -> Segment:
        """Make a new allocation.

        Raises:
            MemoryError: The device has too little free memory; the message gives the sizes.
        """
        size = -(-max(num_bytes, self.size // _GROWTH) // _GRANULE) * _GRANULE
        segment = Segment(self.size, size, _NO_MEMORY, self._allocate(size))
        self.segments.append(segment)
        self.size += size
        self._grown(segment.address)
        return segment

    def _allocate(self, size: int) -> int:
        try:
            return self._device.driver.allocate(size)
        except CudaError as error:
            raise MemoryError(
                f"cannot allocate {size / 1e6:.1f} MB of device memory for rows: {error} (this rank's "
                f"communicator holds {self.size / 1e6:.1f} MB already); use narrower layers, keep fewer results "
                "alive, or call torch.cuda.empty_cache()"
            ) from None

    def free(self) -> None:
        """Free all allocations. No rank may be using them any more."""
        while self.segments:
            self._device.driver.free(self.segments.pop().address)


@dataclass(eq=False)
class _InUse:
    """A block in use by a tensor; it returns to its pool when the tensor's storage dies."""

    pool: DevicePool
    block: Block
    streams: set[int] = field(default_factory=set)

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not exiting():
            self.pool.give_back(self.block, self.streams)


@dataclass(frozen=True, eq=False)
class _Returned:
    """A returned block and the events that must complete before its reuse; None: never reuse it."""

    block: Block
    marks: list[int] | None


# Three rules keep that work safe without making the host wait:
#
# 1. Calls of a communicator are totally ordered. A call on a different stream than the previous call waits, on the
#    device, for everything queued on the earlier stream (device_exchange.py). So
#    work on those streams that reads a result has finished before a later call, of this rank or of a peer that was
#    notified, overwrites its block.
# 2. Other streams are marked with events: one on the stream that is current when the storage dies, and one on each
#    stream named to :meth:`DevicePool.use_on`, except the stream of the last call. A block is not handed out while
#    one of its events is pending. If memory is short, the next call waits for these events on the device instead.
# 3. A block whose storage dies while a CUDA graph is captured on one of these streams is never handed out again: the
#    graph may read it whenever it is replayed.
class DevicePool:
    """Hands out blocks of one rank's device memory. One thread at a time uses it; storages may die in any thread.

    Args:
        device: The device to allocate on.
        grown: As in :class:`DeviceFile`.

    Attributes:
        last_stream: The stream of the last call; None before the first.
    """

    def __init__(self, device: Device, grown: Callable[[int], None]) -> None:
        self._device = device
        self.file = DeviceFile(device, grown)
        self.last_stream: int | None = None
        self._blocks = BufferPool(cast(SegmentFile, self.file))
        self._in_use: weakref.WeakValueDictionary[int, _InUse] = weakref.WeakValueDictionary()
        self._num_in_use = 0
        self._returned: deque[_Returned] = deque()  # appended by finalisers, in any thread
        self._marked: list[_Returned] = []
        self._events: deque[int] = deque()

    @property
    def num_in_use(self) -> int:
        """Number of blocks that tensors still use."""
        return self._num_in_use - len(self._returned)

    def allocate(self, num_bytes: int, stream: int) -> Block:
        """Return a block for a call on ``stream``.

        Raises:
            MemoryError: No block is free and no more memory can be allocated.
        """
        self._collect()
        try:
            return self._blocks.allocate(num_bytes)
        except MemoryError:
            if not self._marked:
                raise
            self._wait_for_marks(stream)
            return self._blocks.allocate(num_bytes)

    def release(self, block: Block) -> None:
        """Return a block that only calls have used."""
        self._blocks.release(block)

    def tensor_over(self, block: Block, num_bytes: int) -> Tensor:
        """Return a uint8 tensor over the first ``num_bytes`` (at least one) of a block.

        The block is released when the tensor's storage dies."""
        in_use = self._in_use[block.address] = _InUse(self, block)
        self._num_in_use += 1
        return self._device.tensors.over(in_use, block.address, num_bytes)

    def use_on(self, address: int, stream: int) -> bool:
        """Also mark ``stream`` when the tensor that starts at ``address`` dies; return False if there is none."""
        in_use = self._in_use.get(address)
        if in_use is not None:
            in_use.streams.add(stream)
        return in_use is not None

    def give_back(self, block: Block, streams: set[int]) -> None:
        """Record that a storage has died; called in any thread, at any time."""
        marks: list[int] | None = []
        try:
            with self._device.current():
                streams.add(self._device.tensors.current_stream())
                if any(stream and self._device.driver.is_capturing(stream) for stream in streams):
                    marks = None  # a graph may read it whenever it is replayed
                else:
                    marks = [self._mark(stream) for stream in streams if stream != self.last_stream]
        except CudaError:  # the driver is shutting down; nobody may write here any more
            marks = None
        self._returned.append(_Returned(block, marks))

    def _mark(self, stream: int) -> int:
        try:
            event = self._events.popleft()
        except IndexError:
            event = self._device.driver.create_event()
        self._device.driver.record_event(event, stream)
        return event

    def _collect(self) -> None:
        """Free returned blocks whose events are done; those of graphs are kept."""
        while self._returned:
            returned = self._returned.popleft()
            self._num_in_use -= 1
            if returned.marks is not None:
                self._marked.append(returned)
        waiting, self._marked = self._marked, []
        for returned in waiting:
            if all(map(self._device.driver.has_happened, returned.marks or [])):
                self._free(returned)
            else:
                self._marked.append(returned)

    def _wait_for_marks(self, stream: int) -> None:
        for returned in self._marked:
            for event in returned.marks or []:
                self._device.driver.wait_event(stream, event)
            self._free(returned)
        self._marked = []

    def _free(self, returned: _Returned) -> None:
        self._blocks.release(returned.block)
        self._events.extend(returned.marks or [])

"""Buffers on a device that peers can write to: plain allocations, cut into blocks, used in stream order.

A block is free when the *storage* behind the tensor over it dies, as on the CPU
(:mod:`dgcl.transport.shared_memory.pool`, which does the cutting). But the host is ahead of the device: when a storage
dies, work that reads it may still be queued. Three rules keep that work safe, without the host ever waiting:

1. Calls of a communicator are in one order. One on another stream than the call before it waits, on the device,
   for all that the earlier stream was given (:class:`dgcl.transport.cuda.exchange.DeviceExchange`). So whoever consumes
   results on the streams that make calls is done before a later call, here or by a peer that was told of it,
   writes a block again.
2. Other streams are marked: an event on the stream that is current where a storage dies, and on each that was
   named by :meth:`DevicePool.use_on`, unless it is that of the last call. A block with a mark that has not been
   passed is not packed out; where memory is short the next call waits for the marks instead, on the device.
3. What a capture into a CUDA graph was given stays the graphs'. Within a capture it is reused in order; outside
   it is never packed out again, because a graph may be replayed at any time.

Allocations are never given back before the communicator is closed and every peer has let go of them.
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

from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.shared_memory.pool import Block, BufferPool
from dgcl.transport.shared_memory.segments import Segment, SegmentFile

_GRANULE = 2 << 20
_GROWTH = 8  # a new segment is at least this fraction of what there is, so that segments stay few

_NO_MEMORY = np.zeros(0, np.uint8)


class DeviceFile:
    """Allocations one behind the other, like the segments of a file; addresses are where they really lie.

    Args:
        device: Where.
        grown: Told of every new allocation, before anything in it is used.
    """

    def __init__(self, device: Device, grown: Callable[[Segment], None]) -> None:
        self._device, self._grown = device, grown
        self.segments: list[Segment] = []
        self.size = 0

    def grow(self, num_bytes: int) -> Segment:
        """A new allocation.

        Raises:
            MemoryError: The device has not enough; with sizes.
        """
        size = -(-max(num_bytes, self.size // _GROWTH) // _GRANULE) * _GRANULE
        driver = self._device.driver
        # Memory that is made while a graph is captured is no part of the graph.
        mode = driver.allow_during_captures()
        try:
            segment = Segment(self.size, size, _NO_MEMORY, self._allocate(size))
            self.segments.append(segment)
            self.size += size
            self._grown(segment)
        finally:
            driver.allow_during_captures(mode)
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
        """Give everything back to the device. Nobody may use it any more."""
        while self.segments:
            self._device.driver.free(self.segments.pop().address)


@dataclass(eq=False)
class _InUse:
    """A block that a tensor lies over; goes back to its pool with the tensor's storage."""

    pool: DevicePool
    block: Block
    streams: set[int] = field(default_factory=set)

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not exiting():
            self.pool.give_back(self.block, self.streams)


@dataclass(frozen=True, eq=False)
class _Returned:
    """A block that came back, and events that must have happened before it is used; None: never use it."""

    block: Block
    marks: list[int] | None


class DevicePool:
    """Blocks of one rank's device memory. Used by one thread at a time; storages may die in any.

    Args:
        device: Where.
        grown: As in :class:`DeviceFile`.

    Attributes:
        last_stream: The stream of the last call; None before the first.
        capturing: Whether the call under way goes into a graph.
    """

    def __init__(self, device: Device, grown: Callable[[Segment], None]) -> None:
        self._device = device
        self.file = DeviceFile(device, grown)
        self.last_stream: int | None = None
        self.capturing = False
        self._blocks = BufferPool(cast(SegmentFile, self.file))
        self._in_use: weakref.WeakValueDictionary[int, _InUse] = weakref.WeakValueDictionary()
        self._num_in_use = 0
        self._returned: deque[_Returned] = deque()  # by finalisers, in whatever thread they run
        self._marked: list[_Returned] = []
        self._of_graphs: set[int] = set()  # addresses of blocks
        self._in_graphs: list[Block] = []  # free, for captures only
        self._events: deque[int] = deque()

    @property
    def bytes_allocated(self) -> int:
        """Bytes of device memory that the pool holds, in use or free."""
        return self.file.size

    @property
    def num_in_use(self) -> int:
        """Blocks that tensors still lie over."""
        return self._num_in_use - len(self._returned)

    def allocate(self, num_bytes: int, stream: int) -> Block:
        """A block for a call on ``stream``.

        Raises:
            MemoryError: No block is free, and no more memory can be had.
        """
        self._collect()
        if self.capturing:
            return self._for_graph(num_bytes)
        try:
            return self._blocks.allocate(num_bytes)
        except MemoryError:
            if not self._marked:
                raise
            self._wait_for_marks(stream)
            return self._blocks.allocate(num_bytes)

    def release(self, block: Block) -> None:
        """Take back a block that only calls have used."""
        if block.address not in self._of_graphs:
            self._blocks.release(block)
        elif self.capturing:
            self._in_graphs.append(block)

    def tensor_over(self, block: Block, num_bytes: int) -> Tensor:
        """A uint8 tensor over the first ``num_bytes`` (at least one) of a block, which is released when its
        storage dies."""
        in_use = self._in_use[block.address] = _InUse(self, block)
        self._num_in_use += 1
        return self._device.tensors.over(in_use, block.address, num_bytes)

    def use_on(self, address: int, stream: int) -> bool:
        """Mark ``stream``, too, when the tensor that begins at ``address`` dies; False if there is none."""
        in_use = self._in_use.get(address)
        if in_use is not None:
            in_use.streams.add(stream)
        return in_use is not None

    def give_back(self, block: Block, streams: set[int]) -> None:
        """A storage has died; called in any thread, at any time."""
        marks: list[int] | None = []
        try:
            with self._device.current():
                streams.add(self._device.tensors.current_stream())
                if any(stream and self._device.driver.is_capturing(stream) for stream in streams):
                    marks = None  # a graph may read it whenever it is replayed
                else:
                    marks = [self._mark(stream) for stream in streams if stream != self.last_stream]
        except CudaError:  # the driver is going down; nobody may write here any more
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
        """Sort what has come back: free, still marked, or the graphs'."""
        while self._returned:
            returned = self._returned.popleft()
            self._num_in_use -= 1
            if returned.block.address in self._of_graphs:
                if self.capturing:
                    self._in_graphs.append(returned.block)
            elif returned.marks is not None:
                self._marked.append(returned)
        waiting, self._marked = self._marked, []
        for returned in waiting:
            events = returned.marks or []
            # Events cannot be asked about while a capture is under way, in some of its modes.
            if events and (self.capturing or not all(map(self._device.driver.has_happened, events))):
                self._marked.append(returned)
            else:
                self._free(returned)

    def _wait_for_marks(self, stream: int) -> None:
        for returned in self._marked:
            for event in returned.marks or []:
                self._device.driver.wait_event(stream, event)
            self._free(returned)
        self._marked = []

    def _free(self, returned: _Returned) -> None:
        self._blocks.release(returned.block)
        self._events.extend(returned.marks or [])

    def _for_graph(self, num_bytes: int) -> Block:
        fitting = [block for block in self._in_graphs if block.size >= num_bytes]
        if fitting:
            best = min(fitting, key=lambda block: block.size)
            self._in_graphs.remove(best)
            return best
        block = self._blocks.allocate(num_bytes)
        self._of_graphs.add(block.address)
        return block

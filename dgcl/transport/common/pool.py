"""Allocates buffers from a rank's shared memory, and reuses them when nothing refers to them any more.

The result of a call is a block of shared memory that peers wrote into. The block becomes free when the result's
*storage* dies. Views, ``detach()`` and tensors saved by autograd all share that storage, so nothing that can still be
read is overwritten. The first touch of new memory is several times slower than the second. Blocks are therefore reused,
best fit first, and the pool keeps all its memory until the communicator is closed, which gives it back.
Called by `peers`, `dtypes`, `dgcl/transport/buffer_memory`, `dgcl/transport/shared_memory/step_list`,
`dgcl/transport/cuda/device_pool` and others. Free to change while no block is given out that an array still shows, and
free ones are reused before memory grows (`tests/dgcl/transport/common/test_pool.py`).
"""

import bisect
import itertools
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from dgcl.transport.common.segments import Segment, SegmentFile

_ALIGNMENT = 256
_SMALLEST_SEGMENT = 1 << 20


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment: ``size`` bytes at ``offset`` (both multiples of the alignment).

    Attributes:
        prepared: For who uses blocks again and again (:mod:`dgcl.transport.shared_memory.step_list`).
        place: Address of four words: base and size of the segment, offset and address of the block.
    """

    segment: Segment
    offset: int
    size: int
    prepared: tuple[object, np.ndarray] | None = field(default=None, init=False)
    place: int = field(init=False)
    _words: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        segment = self.segment
        self._words = np.array([segment.base, segment.size, self.offset, self.address], np.int64)
        self.place = self._words.ctypes.data

    @property
    def address(self) -> int:
        """Address of the block in this process."""
        return self.segment.address + self.offset


def size_of_block(num_bytes: int) -> int:
    """Bytes of a block that has room for so many; at least one alignment unit."""
    return max(-(-num_bytes // _ALIGNMENT), 1) * _ALIGNMENT


class _ArrayReference(weakref.ref[np.ndarray]):
    """Refers to an array over a block. It comes back by itself when the array dies, without a step of Python."""

    __slots__ = ("block",)
    block: Block | None


class BufferPool:
    """Allocates blocks of one rank's segment file.

    One thread uses it; only ``release`` may be called from others.

    Attributes:
        release: Takes a block back; the next :meth:`allocate` may return it again.
        bytes_in_use: Of blocks that were allocated and have not come back.
    """

    def __init__(self, file: SegmentFile) -> None:
        self._file = file
        self._segments: dict[int, Segment] = {}
        # (absolute offset in the file, size), sorted; neighbours within a segment are merged
        self._free: list[tuple[int, int]] = []
        self._returned: deque[Block | _ArrayReference] = deque()  # appended to by finalisers, in any thread
        self.release: Callable[[Block | _ArrayReference], None] = self._returned.append
        self._waiting: dict[int, list[Block]] = {}  # returned blocks by size, not merged yet
        self._arrays: dict[int, _ArrayReference] = {}
        self.bytes_in_use = 0

    @property
    def bytes_allocated(self) -> int:
        """Bytes of shared memory that the pool holds, used or free."""
        return sum(segment.size for segment in self._segments.values())

    def allocate(self, num_bytes: int) -> Block:
        """Return a block of at least ``num_bytes`` (at least one alignment unit).

        Raises:
            MemoryError: No free block fits, and no more memory is available.
        """
        return self.take(size_of_block(num_bytes))

    def take(self, size: int) -> Block:
        """As :meth:`allocate`, a block of a :func:`size_of_block`."""
        if self._returned:
            self._collect()
        same = self._waiting.get(size)
        if same:  # training steps repeat their sizes; the block returned last is most likely cached
            self.bytes_in_use += size
            return same.pop()
        self._join()
        best = min(
            (place for place in range(len(self._free)) if self._free[place][1] >= size),
            key=lambda place: self._free[place][1],
            default=None,
        )
        if best is None:
            segment = self._file.grow(max(size, _SMALLEST_SEGMENT))
            self._segments[segment.base] = segment
            bisect.insort(self._free, (segment.base, segment.size))
            best = bisect.bisect_left(self._free, (segment.base, 0))
        start, available = self._free.pop(best)
        if available > size:
            self._free.insert(best, (start + size, available - size))
        segment = self.segment_at(start)
        self.bytes_in_use += size
        return Block(segment, start - segment.base, size)

    def array(self, block: Block, num_bytes: int, dtype: DTypeLike = np.uint8) -> np.ndarray:
        """The first ``num_bytes`` of a block as a flat array; the block is released when the array dies."""
        element = np.dtype(dtype)
        # From a buffer, not a slice: views of a slice would refer to the segment's whole array, not to this one.
        array = np.frombuffer(block.segment.memory.data, element, num_bytes // element.itemsize, block.offset)
        self.release_with(array, block)
        return array

    def release_with(self, array: np.ndarray, block: Block) -> None:
        """Release a block when an array dies."""
        reference = _ArrayReference(array, self.release)
        reference.block = block
        self._arrays[block.segment.base + block.offset] = reference

    def close(self) -> None:
        """Give the memory back, but for what live arrays are made of; nothing is allocated any more."""
        for reference in self._arrays.values():
            reference.block = None
        self._returned.clear()
        self._waiting.clear()
        self._segments.clear()

    def fill_free(self, byte: int) -> None:
        """Set every free byte, so that a benchmark or test notices a read of memory that was never written."""
        self._collect()
        waiting = itertools.chain.from_iterable(self._waiting.values())
        places = [(block.segment.base + block.offset, block.size) for block in waiting]
        for start, size in self._free + places:
            segment = self.segment_at(start)
            segment.memory[start - segment.base : start - segment.base + size] = byte

    def segment_at(self, offset: int) -> Segment:
        """The segment with this byte of the file."""
        bases = list(self._segments)  # in ascending order: a file only grows
        return self._segments[bases[bisect.bisect_right(bases, offset) - 1]]

    def _collect(self) -> None:
        """Sort the returned blocks into lists by size."""
        while self._returned:
            back = self._returned.popleft()
            block = back.block if isinstance(back, _ArrayReference) else back
            assert block is not None
            self.bytes_in_use -= block.size
            self._waiting.setdefault(block.size, []).append(block)

    def _join(self) -> None:
        """Move returned blocks to the free list, merging neighbours within a segment."""
        waiting, self._waiting = self._waiting, {}
        for block in itertools.chain.from_iterable(waiting.values()):
            start, size = block.segment.base + block.offset, block.size
            place = bisect.bisect_left(self._free, (start, 0))
            if place < len(self._free):
                after, after_size = self._free[place]
                if start + size == after and after not in self._segments:
                    size += after_size
                    del self._free[place]
            if place > 0 and start not in self._segments:
                before, before_size = self._free[place - 1]
                if before + before_size == start:
                    start, size = before, before_size + size
                    place -= 1
                    del self._free[place]
            self._free.insert(place, (start, size))

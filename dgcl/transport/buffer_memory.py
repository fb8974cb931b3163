"""Computes how many bytes a pool of buffers holds after some calls, without allocating them.

The pool that allocates buffers (:mod:`dgcl.transport.common.pool`) is deterministic. So a pool over memory that does
not exist goes through the calls, and ends with the size that a real one would have.
Called by `dgcl/advisor/rank_bytes`. Free to change while the result is what the pool of a communicator holds after the
same calls (`tests/dgcl/transport/test_memory.py`).
"""

import mmap
from collections.abc import Iterable
from typing import cast

import numpy as np

from dgcl.transport.common.pool import BufferPool
from dgcl.transport.common.segments import Segment, SegmentFile


class _NoMemory:
    """A :class:`~dgcl.transport.common.segments.SegmentFile` without memory, which only grows in size."""

    _size = 0

    def grow(self, num_bytes: int) -> Segment:
        size = max(-(-num_bytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        segment = Segment(self._size, size, np.empty(0, np.uint8), 0)
        self._size += size
        return segment


def pool_bytes(calls: Iterable[Iterable[int]]) -> int:
    """Bytes of a pool after calls that take buffers of so many bytes each, and give them back."""
    pool = BufferPool(cast(SegmentFile, _NoMemory()))
    for sizes in calls:
        for block in [pool.allocate(size) for size in sizes if size]:
            pool.release(block)
    return pool.bytes_allocated

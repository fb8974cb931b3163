"""Shared memory between the ranks of one host, in anonymous files (memfd) that need no clean-up.

Each rank owns one :class:`SegmentFile`, which grows by *segments*. Peers open it through the owner's process entry
(``/proc/PID/fd/N``) and map segments when they first need them. The memory of a segment is allocated when it is
created: lack of memory is an error at that point, with the sizes, and not a crash later. File offsets are never reused,
so a mapping stays valid.
Called by `pool`, `peers`, `control_page`, `dgcl/transport/buffer_memory`, `dgcl/transport/cuda/peer_memory` and others.
Free to change while memory is backed, private to the user, cannot be shrunk by a peer, and no file stays open
(`tests/dgcl/transport/common/test_segments.py`).
"""

import fcntl
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dgcl.topology.free_memory import available_memory

# Why not POSIX shared memory: a memfd has no name, so killing every rank at any moment leaves nothing behind, and
# nobody can guess it; it does not count against /dev/shm, which many containers limit to 64 MB; only processes of the
# same user may open it, and it is sealed against shrinking, so a mapping never raises SIGBUS.
_PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Segment:
    """A mapped piece of a segment file; the mapping lives as long as any array made from ``memory``.

    Attributes:
        base: Offset in the file, in bytes.
        size: Bytes, a multiple of the page size.
        memory: The mapping as a ``(size,)`` uint8 array.
        address: Address of the mapping in this process.
    """

    base: int
    size: int
    memory: np.ndarray
    address: int


def _map(descriptor: int, base: int, size: int) -> Segment:
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, offset=base)
    memory = np.frombuffer(mapping, dtype=np.uint8)
    return Segment(base, size, memory, memory.ctypes.data)


class _OpenFile:
    """A file descriptor that is closed once."""

    _descriptor = -1

    def close(self) -> None:
        """Close the file; segments stay mapped until the last array that refers to them dies."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not exiting():  # at exit the process gives up its files, and modules may be torn down
            self.close()  # of a set-up that failed halfway


class SegmentFile(_OpenFile):
    """The owner's side: one anonymous file of this process that grows by segments."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("dgcl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(self._descriptor, 0o600)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._size = 0

    @property
    def handle(self) -> tuple[int, int]:
        """(process id, file descriptor): what a peer needs to open the file."""
        return os.getpid(), self._descriptor

    def grow(self, num_bytes: int) -> Segment:
        """Append a segment of at least ``num_bytes``, zero-filled and backed by real memory.

        Raises:
            MemoryError: Not enough memory; the file is unchanged.
        """
        size = max(-(-num_bytes // _PAGE), 1) * _PAGE
        problem = None
        available = available_memory()
        if size > available:
            problem = f"{available / 1e6:.1f} MB are available"
        else:
            try:
                os.posix_fallocate(self._descriptor, self._size, size)
                segment = _map(self._descriptor, self._size, size)
            except OSError as error:
                problem = error.strerror
        if problem is not None:
            raise MemoryError(
                f"cannot allocate {size / 1e6:.1f} MB of shared memory for rows: {problem} (this rank holds"
                f" {self._size / 1e6:.1f} MB already); use narrower layers or fewer results that are kept"
                " alive, or more machines"
            )
        self._size += size
        return segment


class PeerFile(_OpenFile):
    """A peer's side: the file of another rank, opened by its handle.

    Raises:
        OSError: The file cannot be opened: another host, another PID namespace, or another user.
    """

    def __init__(self, handle: tuple[int, int]) -> None:
        process, descriptor = handle
        self._descriptor = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)

    def map(self, base: int, size: int) -> Segment:
        """Map the segment at ``base``; its size must be what the owner published."""
        if base < 0 or size <= 0 or base % _PAGE or os.fstat(self._descriptor).st_size < base + size:
            raise ValueError(f"no segment of {size} bytes at offset {base} in the peer's file")
        return _map(self._descriptor, base, size)

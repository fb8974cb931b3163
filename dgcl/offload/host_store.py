"""Keeps rows in host memory or in files, as ordinary CPU tensors, and counts the bytes read and written.

Without a folder, rows are in the process's memory. With one, each tensor is a file of its own, made exclusively with
mode 0600, allocated in full and unlinked at once: a full disk is an error when it is made, and a process that is killed
leaves nothing. The tensor is a shared mapping of the file: user code may read it like any other, and the kernel takes
its pages back when memory is short. The library itself names the rows that it reads and writes.
Called by `offload`, `layer`, `chunked_rows` and `keeping`. Free to change while rows read back as written, bytes are
counted, files are private and leave nothing, and no room is an error with sizes (`tests/dgcl/offload/test_store.py`).
"""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
from collections import Counter, deque
from math import prod
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from dgcl.offload.placing import add_rows, bytes_of_row, move_rows
from dgcl.planner.reading.render import size as size_in_words
from dgcl.topology.checks import check_path
from dgcl.topology.free_memory import available_memory

_BRIDGED = 16 << 10  # bytes between stretches that are asked for together


# To make a file costs more than to write it: the file of rows that are gone is used again for others of the same
# size. Files that live and files that wait never take more than those that lived at one time have taken.


class HostStore:
    """Makes, reads and writes tensors of rows.

    Args:
        folder: Where files are made; None: no files, rows are in the process's memory.
        cached: Whether the kernel may keep the pages of files that were read or written. False: they are given up after
            each read, and written to the disk before that after each write.

    Attributes:
        bytes_read, bytes_written: So far, of rows that were named.
        peak: Bytes of rows by kind, as they were when all together were the most so far.

    Raises:
        TypeError: No path.
        ValueError: There is no such folder, or files in it can be read by other users.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, cached: bool = True) -> None:
        if folder is not None:
            check_path(folder, "store")
        self.folder, self.cached = None if folder is None else Path(folder), cached
        self.bytes_read = self.bytes_written = 0
        self._files: dict[int, _MappedFile] = {}  # of tensors that live, by address
        self._waiting: list[_MappedFile] = []  # of tensors that are gone, the oldest first
        self._gone: deque[tuple[str, int, int]] = deque()  # reports of finalizers, at any time in any thread
        self._held: Counter[str] = Counter()
        self.peak: dict[str, int] = {}
        if self.folder is not None:
            if not self.folder.is_dir():
                raise ValueError(f"store must be a folder (got {os.fspath(self.folder)!r}, which is none)")
            _MappedFile.make(self.folder, mmap.PAGESIZE).close()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, kind: str = "results") -> Tensor:
        """A tensor for rows that are yet to be written.

        Args:
            shape: ``(n, *F)``.
            dtype: Of the rows.
            kind: "inputs", "results", "aggregates" or "gradients", for :attr:`peak`.

        Raises:
            OSError: The file system has no room, with sizes.
        """
        num_bytes = prod(shape) * dtype.itemsize
        if num_bytes == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        self._settle()
        if self.folder is None:
            memory: np.ndarray[Any, Any] = np.empty(num_bytes, np.uint8)  # of which allocations know nothing
        else:
            file = self._file(num_bytes)
            memory = np.frombuffer(file, np.uint8, num_bytes)
            self._files[memory.ctypes.data] = file
        release = finalize(memory, self._gone.append, (kind, num_bytes, memory.ctypes.data))
        release.atexit = False
        self._held[kind] += num_bytes
        if self._held.total() > sum(self.peak.values()):
            self.peak = dict(+self._held)
        return torch.from_numpy(memory).view(dtype).view(shape)

    @property
    def held(self) -> dict[str, int]:
        """Bytes of rows that live, by kind."""
        self._settle()
        return dict(+self._held)

    def free_bytes(self) -> int:
        """Bytes of rows that may still be made, as far as the system reports."""
        if self.folder is None:
            return available_memory()
        self._settle()
        there = os.statvfs(self.folder)
        return there.f_bavail * there.f_frsize + sum(map(len, self._waiting))

    def close(self) -> None:
        """Give up the files of rows that are gone; those of others go with their rows."""
        self._files.clear()
        self._waiting.clear()

    def _settle(self) -> None:
        """Take back the files of tensors that are gone since the last time."""
        while self._gone:
            kind, num_bytes, address = self._gone.popleft()
            self._held[kind] -= num_bytes
            if (file := self._files.pop(address, None)) is not None:
                self._waiting.append(file)

    def _file(self, num_bytes: int) -> _MappedFile:
        """One that waits, or else a new one, for which others go that no longer fit into the most that was held."""
        for place, file in enumerate(self._waiting):
            if len(file) == num_bytes:
                return self._waiting.pop(place)
        needed = self._held.total() + num_bytes
        most = max(sum(self.peak.values()), needed)
        while needed + sum(map(len, self._waiting)) > most:
            del self._waiting[0]
        assert self.folder is not None
        return _MappedFile.make(self.folder, num_bytes)

    def read(self, rows: Tensor, which: slice) -> Tensor:
        """A copy of some rows in the process's memory.

        Args:
            rows: ``(n, *F)``; of this store, or any other CPU tensor.
            which: A stretch.
        """
        copied = rows[which].clone()
        self.bytes_read += copied.nbytes
        self._forget(rows)
        return copied

    def look_at(self, rows: Tensor, which: slice) -> Tensor:
        """As :meth:`read`, for who changes nothing: the rows themselves where the kernel may keep them."""
        if not self.cached:
            return self.read(rows, which)
        self.bytes_read += rows[which].nbytes
        return rows[which]

    def load(self, rows: Tensor, which: Tensor, target: Tensor, places: Tensor) -> None:
        """``target[places] = rows[which]``, as :meth:`read`."""
        self.bytes_read += len(which) * bytes_of_row(rows)
        move_rows(target, places, rows.detach(), which)
        self._forget(rows)

    def unload(self, rows: Tensor, which: Tensor, source: Tensor, places: Tensor) -> None:
        """``rows[which] = source[places]``, as :meth:`write`."""
        self.bytes_written += len(which) * bytes_of_row(rows)
        move_rows(rows, which, source, places)
        self._forget(rows, written=True)

    def will_need(self, rows: Tensor, which: Tensor) -> None:
        """Let the kernel begin to read some rows of a file."""
        file, at, row_bytes = self._file_of(rows), self._offset(rows), bytes_of_row(rows)
        if file is not None and len(which):
            places, gap = which.numpy(), max(1, _BRIDGED // max(1, row_bytes))
            ends = np.flatnonzero(np.diff(places, append=np.iinfo(np.int64).max) > gap + 1)
            begins = places[np.append(0, ends[:-1] + 1)]
            for first, last in zip(begins.tolist(), places[ends].tolist(), strict=True):
                length = (last + 1 - first) * row_bytes
                os.posix_fadvise(file.descriptor, at + first * row_bytes, length, os.POSIX_FADV_WILLNEED)

    def write(self, rows: Tensor, which: slice, values: Tensor) -> None:
        """Write some rows; arguments as for :meth:`read`, ``values`` in their order."""
        self.bytes_written += values.numel() * rows.element_size()
        file = self._file_of(rows)
        if file is None:
            rows[which] = values
        else:  # not through the mapping, which would read pages from the disk before it writes to them
            data = values.to("cpu", rows.dtype).contiguous().view(-1).view(torch.uint8).numpy()
            _write(file.descriptor, data, self._offset(rows) + which.start * bytes_of_row(rows))
        self._forget(rows, written=True)

    def add(self, rows: Tensor, which: Tensor, source: Tensor, places: Tensor) -> None:
        """``rows[which] += source[places]``: they are read, and written again."""
        self.bytes_read += len(which) * bytes_of_row(rows)
        self.bytes_written += len(which) * bytes_of_row(rows)
        add_rows(rows, which, source, places)
        self._forget(rows, written=True)

    def _forget(self, rows: Tensor, written: bool = False) -> None:
        """Give up the pages of a file of rows, if the kernel may not keep them."""
        file = None if self.cached else self._file_of(rows)
        if file is not None:
            file.forget(written)

    def _file_of(self, rows: Tensor) -> _MappedFile | None:
        file = self._files.get(rows.untyped_storage().data_ptr())
        return file if file is not None and rows.is_contiguous() else None

    @staticmethod
    def _offset(rows: Tensor) -> int:
        return int(rows.storage_offset()) * rows.element_size()


class _MappedFile(mmap.mmap):
    """A shared mapping of an unlinked file, with its descriptor; the tensors made of it keep it alive."""

    descriptor: int

    @classmethod
    def make(cls, folder: Path, num_bytes: int) -> _MappedFile:
        """Make the file.

        Raises:
            OSError: There is no room.
            ValueError: Other users could read it.
        """
        descriptor, path = tempfile.mkstemp(prefix="dgcl-rows-", dir=folder)  # exclusively, mode 0600
        try:
            os.unlink(path)
            mode = os.fstat(descriptor).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ValueError(
                    f"store: files in {os.fspath(folder)} can be read by other users (mode {mode & 0o777:o} in spite of"
                    " 600); take a file system that keeps permissions"
                )
            _allocate(descriptor, num_bytes, folder)
            mapping = cls(descriptor, num_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        mapping.descriptor = descriptor
        return mapping

    def forget(self, written: bool = False) -> None:
        """Give up mapped and cached pages."""
        self.madvise(mmap.MADV_DONTNEED)
        if written:
            os.fdatasync(self.descriptor)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def __del__(self) -> None:
        descriptor, self.descriptor = getattr(self, "descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)


def _allocate(descriptor: int, num_bytes: int, folder: Path) -> None:
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        free = os.statvfs(folder)
        raise OSError(
            error.errno,
            f"store: {size_in_words(num_bytes)} of rows do not fit into {os.fspath(folder)}, where"
            f" {size_in_words(free.f_bavail * free.f_frsize)} are free ({error.strerror}); give another folder",
        ) from None


def _write(descriptor: int, piece: np.ndarray, offset: int) -> None:
    """Write all of it; the kernel may do less in one call."""
    done = 0
    while done < len(piece):
        done += os.pwrite(descriptor, piece[done:].data, offset + done)

import errno
import mmap
import os
import stat

import numpy as np
import pytest

from dgcl.transport.common.segments import PeerFile, SegmentFile
from tests.samples import named


def test_a_peer_sees_what_the_owner_writes_and_the_other_way_round():
    file = SegmentFile()
    first, second = file.grow(1), file.grow(3 * mmap.PAGESIZE)
    peer = PeerFile(file.handle)
    theirs = peer.map(second.base, second.size)
    assert theirs.address != second.address
    second.memory[5] = 17
    theirs.memory[-1] = 23
    assert theirs.memory[5] == 17
    assert second.memory[-1] == 23
    assert not first.memory.any()


def test_segments_are_whole_pages_of_zeros_one_behind_the_other():
    file = SegmentFile()
    sizes = [1, mmap.PAGESIZE, mmap.PAGESIZE + 1, 0]
    segments = [file.grow(size) for size in sizes]
    assert [segment.size // mmap.PAGESIZE for segment in segments] == [1, 1, 2, 1]
    assert [segment.base // mmap.PAGESIZE for segment in segments] == [0, 1, 2, 4]
    assert file.size == sum(segment.size for segment in segments)
    assert not any(segment.memory.any() for segment in segments)


def test_mappings_outlive_both_files():
    file = SegmentFile()
    mine = file.grow(100)
    peer = PeerFile(file.handle)
    theirs = peer.map(mine.base, mine.size)
    file.close()
    peer.close()
    theirs.memory[:] = 3
    assert (mine.memory == 3).all()


def test_closing_twice_closes_nobody_elses_file():
    file = SegmentFile()
    peer = PeerFile(file.handle)
    file.close()
    peer.close()
    reused = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
    file.close()
    peer.close()
    for descriptor in reused:
        os.close(descriptor)  # raises if it had been closed


def test_files_of_a_set_up_that_failed_are_closed_with_their_objects():
    file = SegmentFile()
    peer = PeerFile(file.handle)
    descriptors = [file.handle[1], peer._descriptor]
    del file, peer
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_memory_is_backed_and_private():
    file = SegmentFile()
    segment = file.grow(1 << 20)
    status = os.stat(f"/proc/self/fd/{file.handle[1]}")
    assert status.st_blocks * 512 >= segment.size, "not allocated: a full memory would be a SIGBUS later"
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_nlink == 0, "it has a name that somebody would have to delete"


def test_no_peer_can_shrink_it():
    file = SegmentFile()
    file.grow(1 << 16)
    descriptor = os.open(f"/proc/self/fd/{file.handle[1]}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def test_too_much_memory_is_an_error_with_the_sizes():
    file = SegmentFile()
    kept = file.grow(2_000_000)
    with pytest.raises(
        MemoryError, match=r"allocate \d+\.0 MB .* MB are available \(this rank holds 2\.0 MB"
    ):
        file.grow(10**15)
    assert file.size == kept.size
    assert file.grow(10).base == kept.size


def test_a_refusal_of_the_kernel_is_an_error_with_its_reason(monkeypatch):
    def refuse(descriptor: int, offset: int, length: int):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = SegmentFile()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(MemoryError, match="for rows: No space left on device"):
            file.grow(100)
    assert file.grow(100).base == 0


@named(
    "base, size",
    {
        "too long": (0, 4096 * 9),
        "past the end": (4096 * 4, 4096),
        "before the start": (-4096, 4096),
        "not on a page": (8, 4096),
        "empty": (0, 0),
        "negative": (0, -4096),
        "far away": (1 << 62, 4096),
    },
)
def test_a_peer_maps_only_what_is_there(base: int, size: int):
    file = SegmentFile()
    file.grow(4 * 4096)
    with pytest.raises(ValueError, match=f"no segment of {size} bytes at offset {base}"):
        PeerFile(file.handle).map(base, size)


def test_a_file_of_a_process_that_is_not_there():
    with pytest.raises(OSError, match="No such file"):
        PeerFile((2**22 + 1, 3))


def test_dropped_mappings_give_their_addresses_back():
    file = SegmentFile()
    before = _mappings()
    segments = [file.grow(4096) for _ in range(20)]
    arrays = [segment.memory[10:20] for segment in segments]
    assert _mappings() > before
    del segments
    assert all(np.array_equal(array, np.zeros(10)) for array in arrays), "an array keeps its mapping"
    del arrays
    assert _mappings() == before


def _mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:dgcl" in line for line in maps)

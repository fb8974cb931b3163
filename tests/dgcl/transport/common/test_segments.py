import errno
import os
import stat

import pytest

from dgcl.transport.common.segments import PeerFile, SegmentFile
from tests.support.samples import named


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

"""Rows in files: what is read and written by name, counted, private, and refused when there is no room.

| case                        | judged by                                               |
| --------------------------- | ------------------------------------------------------- |
| reads, writes, additions    | the same on a plain tensor                              |
| bytes                       | rows times bytes of a row                               |
| files                       | the folder is empty at once; mode 0600; blocks allocated |
| no room                     | a file system of 1 MB; RLIMIT_FSIZE where there is none  |
"""

import gc
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from dgcl.offload.host_store import HostStore
from dgcl.topology.sizes import as_bytes

SHAPE = (50, 3, 2)


@pytest.fixture(params=["memory", "cached", "not-cached"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> HostStore:
    return HostStore(None if request.param == "memory" else tmp_path, request.param != "not-cached")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_rows_are_those_of_a_plain_tensor(store: HostStore, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    expected = torch.randint(0, 2, SHAPE, generator=generator).to(dtype)
    rows = store.empty(SHAPE, dtype)
    store.write(rows, slice(0, 20), expected[:20])
    store.write(rows, slice(20, 50), expected[20:].transpose(1, 2).contiguous().transpose(1, 2))
    assert rows.equal(expected)
    for part in (slice(3, 17), slice(4, 4)):
        assert store.read(rows, part).equal(expected[part])
    view, target = rows[10:].detach(), torch.zeros(2, *SHAPE[1:], dtype=dtype)
    store.load(view, torch.tensor([0, 5]), target, torch.tensor([1, 0]))
    assert target.equal(expected[[15, 10]])
    row_bytes = 6 * dtype.itemsize
    assert store.bytes_written == 50 * row_bytes
    assert store.bytes_read == (14 + 2) * row_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_additions(store: HostStore, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    before, source = (torch.randn(SHAPE, generator=generator).to(dtype) for _ in range(2))
    which, places = torch.tensor([1, 2, 40]), torch.tensor([3, 0, 1])
    rows = store.empty(SHAPE, dtype)
    store.write(rows, slice(0, 50), before)
    store.add(rows, which, source, places)
    assert store.bytes_read == 3 * 6 * dtype.itemsize
    expected = before.clone()
    for row, place in zip(which, places, strict=True):
        expected[row] += source[place]
    assert rows.equal(expected)


def test_other_tensors_are_read_and_written_too(store: HostStore):
    plain = torch.arange(12.0).view(6, 2).t()
    assert store.read(plain, slice(1, 2)).tolist() == [[1, 3, 5, 7, 9, 11]]
    store.write(plain, slice(0, 1), torch.zeros(1, 6))
    assert plain[0].tolist() == [0] * 6


def test_files_are_private_and_leave_nothing(tmp_path):
    store = HostStore(tmp_path)
    rows = store.empty((1000, 128), torch.float32)
    assert not list(tmp_path.iterdir())
    found = [os.fstat(int(fd)) for fd in os.listdir("/proc/self/fd") if _is_ours(fd, tmp_path)]
    assert {stat.st_size for stat in found} == {rows.nbytes}
    assert all(stat.st_mode & 0o777 == 0o600 for stat in found)
    assert all(stat.st_blocks * 512 >= rows.nbytes for stat in found)  # no page waits for the first write
    half = rows[500:]
    del rows
    gc.collect()
    half.fill_(1.0)  # a view keeps the file
    assert half.sum() == 500 * 128
    del half
    gc.collect()
    store.close()  # until then it waits for other rows
    assert not [fd for fd in os.listdir("/proc/self/fd") if _is_ours(fd, tmp_path)]


def _is_ours(fd: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(os.fspath(folder))
    except OSError:
        return False


def _room_of_files(folder: Path) -> int:
    fds = [int(fd) for fd in os.listdir("/proc/self/fd") if _is_ours(fd, folder)]
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in map(os.fstat, fds)}.values())


def test_files_are_used_again_and_take_no_more_than_rows_have_taken(tmp_path):
    """Rows of random sizes come and go; what lives, and its sum, is kept by hand."""
    store, generator = HostStore(tmp_path), np.random.default_rng(0)
    live: list[tuple[torch.Tensor, str]] = []
    most, of_kinds, made, again = 0, {}, set(), 0
    for _ in range(200):
        if live and generator.random() < 0.5:
            live.pop(int(generator.integers(len(live))))
            continue
        kind = ("inputs", "gradients")[int(generator.integers(2))]
        rows = store.empty((int(generator.choice([1000, 3000, 5000])), 2), torch.float64, kind)
        rows.fill_(len(live))
        again += rows.data_ptr() in made
        made.add(rows.data_ptr())
        live.append((rows, kind))
        del rows
        total = sum(each.nbytes for each, _ in live)
        if total > most:
            most = total
            of_kinds = {
                k: sum(each.nbytes for each, its in live if its == k) for k in ("inputs", "gradients")
            }
        assert store.peak == {k: size for k, size in of_kinds.items() if size}
        assert total <= _room_of_files(tmp_path) <= most
    assert again > 50
    kept = [(rows.clone(), rows) for rows, _ in live]
    store.empty((3000, 2), torch.float64).fill_(-1.0)
    assert all(before.equal(rows) for before, rows in kept)


def test_no_room_is_an_error_with_sizes(tmp_path):
    store = HostStore(tmp_path)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    with pytest.raises(OSError, match=r"store: .* of rows do not fit into .*, where .* are free") as caught:
        store.empty((2 * free // 8, 1), torch.float64)
    assert os.fspath(tmp_path) in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_limit_of_file_sizes_is_an_error(tmp_path):
    store = HostStore(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="do not fit"):
            store.empty((1 << 21, 1), torch.float64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "text, expected",
    [
        (np.int32(7), 7),
        ("2T", 2 << 40),
        ("1.5 MiB", 3 << 19),
        ("1.5 MB", 1_500_000),
        ("9b", 9),
    ],
)
def test_numbers_of_bytes(text: int | str, expected: int):
    assert as_bytes(text, "memory_limit") == expected


@pytest.mark.parametrize("text", [0, -1, "", "GB", "8 pounds", "0GB", True, 1.5, None])
def test_no_numbers_of_bytes(text: object):
    with pytest.raises(ValueError, match="memory_limit must be a positive number of bytes"):
        as_bytes(text, "memory_limit")  # type: ignore[arg-type]

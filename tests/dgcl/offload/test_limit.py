"""Under a limit of the operating system a job in memory fails, and the same job with rows in files trains.

The limit is a control group's, page cache counted; it takes root. Losses are compared with those of a job without one.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import dgcl
from tests.dgcl.offload.limited import losses
from tests.support.samples import matrix

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
VERSION_1, VERSION_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """The file that processes of a group with a limit are entered in."""
    is_first = VERSION_1.is_dir()
    group = (VERSION_1 if is_first else VERSION_2) / f"dgcl-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(limit))
    except OSError as error:
        pytest.fail(f"no control group can be made here ({error}): this test takes root")
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def run(mode: str, model: str, features: Path, folder: Path, limit: int) -> tuple[int, list[float], str]:
    """(exit status, losses, errors) of a job under a limit."""
    command = f"{sys.executable} -W ignore -m tests.dgcl.offload.limited {mode} {model}".split()
    with memory_group(limit) as procs:
        arguments = [os.fspath(path) for path in (features, folder, procs)]
        ran = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600)
    return ran.returncode, [float(line) for line in ran.stdout.split()], ran.stderr


def without_limit(model, features):
    """Losses of a job in memory."""
    return list(losses("memory", model, os.fspath(features), ""))


def made(path: Path, num_nodes: int, width: int) -> Path:
    """A file of features, written a part at a time; not through a map, by which a full disk ends the process."""
    generator = np.random.default_rng(0)
    header = {"descr": "<f4", "fortran_order": False, "shape": (num_nodes, width)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(0, num_nodes, 10_000):
            file.write(generator.standard_normal((10_000, width), np.float32))
    return path


@pytest.mark.parametrize("model", ["gat", matrix("gcn")])
def test_trains_where_memory_is_not_enough(tmp_path, model: str):
    features = made(tmp_path / "features.npy", 50_000, 128)
    limit = 100 << 20  # the rows of one layer are 24 MiB
    (expected,) = dgcl.launch(without_limit, 1, model, features, ranks="threads")
    status, found, _ = run("memory", model, features, tmp_path, limit)
    assert status == -9
    assert len(found) < len(expected)
    status, found, errors = run("offload", model, features, tmp_path, limit)
    assert status == 0, errors
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["features.npy"]


def test_features_of_twice_the_memory(tmp_path):
    features = made(tmp_path / "features.npy", 50_000, 1024)
    limit = features.stat().st_size // 2
    status, found, errors = run("offload", "wide", features, tmp_path, limit)
    assert status == 0, errors
    assert found[-1] < found[0]


def test_device_memory_is_as_predicted(tmp_path):
    """Within 10% and 2.5 MB, and falling with the number of chunks; files are on a disk, which is not counted.

    What set-up freed was given back, so a step's small blocks count, too.
    """
    command = f"{sys.executable} -W ignore -m tests.dgcl.offload.peak {tmp_path} 2,8"
    ran = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    peaks = np.array([line.split() for line in ran.stdout.splitlines()], np.int64)
    np.testing.assert_allclose(peaks[:, 2], peaks[:, 1], rtol=0.1, atol=2.5e6)
    assert (np.diff(peaks[:, 2]) < 0).all()

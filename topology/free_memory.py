"""Estimates how many bytes this process may still allocate, before Linux would kill processes.

The least of: what is free on the machine, this process's own limit (ulimit -v), and the limits of its control groups.
Linux refuses no single page: where less is free than was asked for, it kills some process of its choice. So the library
looks first.
Called by `dgcl/offload/host_store`, `dgcl/offload/offload`, `dgcl/partition/metis`, `dgcl/partition/kaminpar` and
`dgcl/transport/common/segments`. Free to change while limits of all control groups above count, of both versions, and
unused file cache counts as free (`tests/topology/test_free_memory.py`).
"""

import resource
from collections.abc import Iterator
from pathlib import Path


def available_memory() -> int:
    """Bytes that this process may still allocate: free on the machine, and below its own and its control group's limit.

    An estimate: other processes allocate, too. Where the kernel does not say, there is no limit.
    """
    own = resource.getrlimit(resource.RLIMIT_AS)[0] % (1 << 62)  # ulimit -v; -1: there is none
    return min([own, *(max(free, 0) for free in _free_bytes(Path("/proc"), Path("/sys/fs/cgroup")))])


def _free_bytes(proc: Path, groups: Path) -> Iterator[int]:
    """Bytes that the machine and each control group still allow."""
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    for line in _text(proc / "self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":  # version 2: every group above has its own limit
            yield from _free_in_group(groups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _free_in_group(root, path, *names, "total_inactive_file")


def _free_in_group(root: Path, path: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    """Bytes that a control group and those above it allow; unused file cache does not count as used."""
    inner = root / path.lstrip("/")
    for group in (inner, *inner.parents):
        most, used = _text(group / limit).strip(), _text(group / usage).strip()
        if most.isdecimal() and used.isdecimal():
            stat = dict(
                line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line
            )
            yield int(most) - int(used) + int(stat.get(cache, 0))
        if group == root:
            return


def _text(path: Path) -> str:
    """The text of a file of the kernel; "" where it does not exist."""
    try:
        return path.read_text()
    except OSError:
        return ""

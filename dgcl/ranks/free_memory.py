"""How much memory may still be taken before the kernel starts killing processes.

Shared memory is allocated eagerly, page by page, and no page alone is ever too much: asked for more than
there is, Linux does not refuse but ends some process of its choice. So one asks first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available_memory() -> int:
    """Bytes that this process may still allocate: free on the machine, and below its control group's limit.

    An estimate: other processes allocate, too. Where the kernel does not say, there is no limit.
    """
    return min((max(room, 0) for room in _rooms(Path("/proc"), Path("/sys/fs/cgroup"))), default=1 << 62)


def _rooms(proc: Path, groups: Path) -> Iterator[int]:
    """What each authority still allows."""
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    for line in _text(proc / "self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":  # version 2: every group above has its own limit
            yield from _group_rooms(groups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _group_rooms(root, path, *names, "total_inactive_file")


def _group_rooms(root: Path, path: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    """What a control group and those above it allow; file cache that is not in use does not count as used."""
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
    """What a file of the kernel says; nothing where it does not exist."""
    try:
        return path.read_text()
    except OSError:
        return ""

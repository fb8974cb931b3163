"""Processes of this machine by their start: whether another rank's still lives."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def process_status(process: int | str) -> list[str]:
    """The kernel's fields of a process, from its state on; none where it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":
            return fields
    return []


def process_name(process: int | str) -> str:
    """What no other process has: the machine's start, the namespace of process ids, its own, and when it began."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return " ".join(
            (boot, os.readlink("/proc/self/ns/pid"), str(process), *process_status(process)[19:20])
        )
    except OSError:
        return "unknown unknown 0 unknown"  # has not died, wherever it is asked


def has_died(name: str) -> bool:
    """Whether this was the name of a process of this machine; of other machines' it is not known."""
    boot, namespace, number, _ = name.split()
    now = process_name(number)
    return now != name and now.split()[:2] == [boot, namespace]

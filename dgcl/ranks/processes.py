"""Processes of this machine: whether another rank's still lives."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def this_process() -> str:
    """The machine's start, the namespace of process ids, and this one's; "" where the kernel does not say."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getpid()}"
    return ""


def process_state(process: str) -> str:
    """One letter, as the kernel has it; X where there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def has_died(process: str) -> bool:
    """Whether this was a process of this machine, by its :func:`this_process`; of other machines' it is not known."""
    place, _, number = process.rpartition(" ")
    return place != "" and place == this_process().rpartition(" ")[0] and process_state(number) in "ZX"

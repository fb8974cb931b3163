"""Tells whether the process of another rank of this machine still lives, from ``/proc``.

A process is known by the machine's start, its namespace of process ids and its id; of another machine or namespace
nothing is known, and it counts as alive. One that the kernel is ending counts as dead, before its connections close.

Called by `rendezvous` and `dgcl/transport/common/peers`. Free to change while a rank that came and died is named at
once (`tests/dgcl/ranks/test_rendezvous.py`).
"""

import os
from contextlib import suppress
from pathlib import Path

_EXITING = 4  # PF_EXITING of linux/sched.h


def this_process() -> str:
    """The machine's start, the namespace of process ids, and this one's; "" where the kernel does not say."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getpid()}"
    return ""


def process_status(process: int | str) -> list[str]:
    """The kernel's fields of a process, from its state on; X where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X"]


def has_died(process: str) -> bool:
    """Whether this was a process of this machine, by its :func:`this_process`; of other machines' it is not known.

    One that the kernel is ending counts, too: it has that mark before its connections are closed.
    """
    place, _, number = process.rpartition(" ")
    if not place or place != this_process().rpartition(" ")[0]:
        return False
    status = process_status(number)
    return status[0] in "ZX" or int(status[6]) & _EXITING > 0

"""Finds which ranks share memory: each tries to open a memory file of every other.

Names of hosts prove nothing: containers on one host may share memory or not. A file counts only if it holds the token
that its rank put there, and only pairs that open each other's.

Called by `machines`. Free to change while ranks are together that open each other's memory, also by way of a third, and
a file with another content does not count (`tests/dgcl/ranks/test_reach.py`).
"""

import os
import secrets
from collections.abc import Sequence

from dgcl.ranks.control import Control

_TOKEN_BYTES = 8


def ranks_that_share_memory(control: Control) -> list[int]:
    """For each rank the lowest rank that it shares memory with, by way of others if need be. Collective.

    Neither a host's name nor its machine id is proof: containers on one host may share memory or not, and a
    process id means another process, or none, in another PID namespace. So every rank puts a random token into an
    anonymous memory file, and the others try to read it through its process entry.
    """
    descriptor = os.memfd_create("dgcl", os.MFD_CLOEXEC)
    try:
        token = secrets.token_bytes(_TOKEN_BYTES)
        os.write(descriptor, token)
        files = control.exchange((os.getpid(), descriptor, token))
        mine = [_can_open((process, number), expected) for process, number, expected in files]
        # The second exchange also keeps every file open until all ranks have tried it.
        return _lowest_connected(control.exchange(mine))
    finally:
        os.close(descriptor)


def _can_open(handle: tuple[int, int], token: bytes) -> bool:
    """Whether the file of a (process, descriptor) can be opened for writing, and holds this token."""
    process, descriptor = handle
    try:
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.pread(opened, _TOKEN_BYTES, 0) == token
    except OSError:
        return False
    finally:
        os.close(opened)


def _lowest_connected(can_open: Sequence[Sequence[bool]]) -> list[int]:
    """The lowest rank of each rank's component, where an edge is a pair that can open each other's memory."""
    lowest = list(range(len(can_open)))
    changed = True
    while changed:
        changed = False
        for a, row in enumerate(can_open):
            for b, opens in enumerate(row):
                if opens and can_open[b][a] and lowest[b] < lowest[a]:
                    lowest[a] = lowest[b]
                    changed = True
    return lowest

"""Which ranks share memory, found out by opening a piece of it: the machines of a job, as rows see them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from dgcl.ranks.control import Control
from dgcl.transport.shared_memory.segments import PeerFile, SegmentFile

_TOKEN_BYTES = 8


def ranks_that_share_memory(control: Control) -> list[int]:
    """For each rank the lowest rank that it shares memory with, by way of others if need be. Collective.

    Neither a host's name nor its machine id is proof: containers on one host may share memory or not, and a
    process id means another process, or none, in another PID namespace.
    """
    file = SegmentFile()
    try:
        segment = file.grow(_TOKEN_BYTES)
        token = secrets.token_bytes(_TOKEN_BYTES)
        segment.memory[:_TOKEN_BYTES] = memoryview(token)
        cards = control.exchange((*file.handle, token))
        mine = [_can_open(handle, expected) for *handle, expected in cards]
        return _lowest_connected(control.exchange(mine))  # and nobody closes its file before all have looked
    finally:
        file.close()


def _can_open(handle: Sequence[int], token: bytes) -> bool:
    process, descriptor = handle
    try:
        file = PeerFile((process, descriptor))
    except OSError:
        return False
    try:
        return file.map(0, os.sysconf("SC_PAGESIZE")).memory[:_TOKEN_BYTES].tobytes() == token
    except (OSError, ValueError):
        return False
    finally:
        file.close()


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

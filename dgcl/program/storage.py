"""Where rows that pass through a rank lie during a call: one place serves twice where that is provably safe.

A rank keeps a row that it relays until it has sent it on (expand), and what its children send until it has added
that up and sent the sum (fold). Another transfer may be put in the same place if it cannot begin earlier. Ranks
run at their own pace and wait for rows alone, so that has to follow from who waits for whose rows: the rank that
writes must have received something that could not have come before those sends were over.

That takes long ways. No row comes back to a rank that had it, so from the send to the writer it is two transfers
at least, and the write is a third: a fold of fewer than four stages, or an expand of fewer than five, leaves no
such place (filled in stage 0, sent on in 1, told on in 2, written in 3; a relay's row must be sent on in 4).

Transfers are placed as a whole; first fit, in the order in which they come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_STAGES = 4
MOST_TRANSFERS = 4096  # beyond, the sets below would take longer than the places are worth


@dataclass(frozen=True, eq=False)
class Blocks:
    """What n transfers leave at their receivers until it is read.

    Attributes:
        stage, sender, receiver: ``(n,)`` of each transfer, in the direction and order in which it is made.
        size: ``(n,)`` rows that need a place.
        kept: ``(n,)`` bool, whether they are read after the call, so that the place is never free.
        brings, sends_on: Distinct pairs of a transfer and one that sends some of its rows on.
    """

    stage: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    size: np.ndarray
    kept: np.ndarray
    brings: np.ndarray
    sends_on: np.ndarray


def place(blocks: Blocks, world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """``(n,)`` the first place of each transfer at its receiver, and ``(P,)`` how many places each rank needs.

    Never more than one place for each row.
    """
    order = np.lexsort((blocks.sender, blocks.stage, blocks.receiver))
    ends = np.cumsum(blocks.size[order])
    bounds = np.searchsorted(blocks.receiver[order], np.arange(world_size + 1))
    before = np.concatenate(([0], ends))[bounds]
    start = np.empty(len(order), np.int64)
    start[order] = ends - blocks.size[order] - before[blocks.receiver[order]]
    needed = np.diff(before).astype(np.int64)
    if blocks.stage.max(initial=-1) + 1 < LEAST_STAGES or len(order) > MOST_TRANSFERS:
        return start, needed
    over, readers = _known(blocks), _readers(blocks)
    for rank in range(world_size):
        mine = [t for t in order[bounds[rank] : bounds[rank + 1]].tolist() if blocks.size[t]]
        placed: list[int] = []
        for t in mine:
            taken = [x for x in placed if blocks.kept[x] or readers[x] & ~over[t]]
            start[t] = _first_gap(int(blocks.size[t]), start[taken], blocks.size[taken])
            placed.append(t)
        needed[rank] = max((int(start[t] + blocks.size[t]) for t in mine), default=0)
    return start, needed


def _first_gap(size: int, starts: np.ndarray, sizes: np.ndarray) -> int:
    """The first place with room for ``size`` rows beside those taken."""
    at = 0
    for begin, length in sorted(zip(starts.tolist(), sizes.tolist(), strict=True)):
        if at + size <= begin:
            break
        at = max(at, begin + length)
    return at


def _readers(blocks: Blocks) -> list[int]:
    """For each transfer those that send its rows on, as bits."""
    readers = [0] * len(blocks.stage)
    for brings, sends_on in zip(blocks.brings.tolist(), blocks.sends_on.tolist(), strict=True):
        readers[brings] |= 1 << sends_on
    return readers


def _known(blocks: Blocks) -> list[int]:
    """For each transfer those that are over when it begins, at whatever pace ranks run, as bits."""
    feeders: list[list[int]] = [[] for _ in blocks.stage]
    for brings, sends_on in zip(blocks.brings.tolist(), blocks.sends_on.tolist(), strict=True):
        feeders[sends_on].append(brings)
    begun, told = [0] * len(feeders), [0] * len(feeders)  # told: what its arrival tells the receiver
    latest: dict[tuple[int, int], int] = {}
    ends = list(zip(blocks.sender.tolist(), blocks.receiver.tolist(), strict=True))
    for t in np.argsort(blocks.stage, kind="stable").tolist():
        for feeder in feeders[t]:
            begun[t] |= told[feeder]
        told[t] = begun[t] | 1 << t
        if ends[t] in latest:  # a receiver counts what one sender has done, so this one tells of those before
            told[t] |= told[latest[ends[t]]]
        latest[ends[t]] = t
    return begun

"""Turns a plan's trees into messages between ranks, and finds which messages each of them waits for.

All rows that one rank sends to another in one stage are one message. It waits for exactly those messages that bring
its sender rows that it forwards.
Called by `event_simulator`, `executed` and `simulated_machine`. Free to change while messages wait for those that
single rows, followed through their trees, wait for, and for no others (`tests/planner/simulator/test_simulate.py`).
"""

from dataclasses import dataclass

import numpy as np

from dgcl.planner.array_types import Int64Array
from dgcl.planner.trees import Trees


@dataclass(frozen=True)
class Messages:
    """N messages, ordered by (stage, src, dst).

    Attributes:
        stage, src, dst: (N,) int64.
        rows: (N,) int64.
        before, after: (D,) int64, message ``after[i]`` waits for message ``before[i]``; no pair twice.
    """

    stage: Int64Array
    src: Int64Array
    dst: Int64Array
    rows: Int64Array
    before: Int64Array
    after: Int64Array

    @property
    def num(self) -> int:
        """Number of messages N."""
        return int(self.stage.shape[0])

    def behind(self) -> Int64Array:
        """Return, for each message, the one queued behind it, or -1.

        Messages of one sender to one receiver keep their order, by stage: the receiver counts them.
        """
        order = np.lexsort((self.dst, self.src))
        behind = np.full(self.num, -1, np.int64)
        same = (np.diff(self.src[order]) == 0) & (np.diff(self.dst[order]) == 0)
        behind[order[:-1][same]] = order[1:][same]
        return behind


def messages(trees: Trees, world_size: int) -> Messages:
    """Return the messages of a plan."""
    key = (trees.edge_stage.astype(np.int64) * world_size + trees.edge_src) * world_size + trees.edge_dst
    sent = np.bincount(key) > 0
    kinds, message = np.flatnonzero(sent), np.cumsum(sent)[key] - 1
    rows, num = np.bincount(message, trees.edge_count(), kinds.shape[0]), max(1, kinds.shape[0])
    parent = trees.parents(world_size)
    child = np.flatnonzero(parent >= 0)
    pairs = np.unique(message[child] * num + message[parent[child]], return_counts=True)[0]  # by sorting
    return Messages(
        stage=kinds // (world_size * world_size),
        src=kinds // world_size % world_size,
        dst=kinds % world_size,
        rows=rows.astype(np.int64),
        before=pairs % num,
        after=pairs // num,
    )

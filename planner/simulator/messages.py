"""The messages that the decentralised protocol sends for a plan, and what each of them waits for.

All rows that one rank sends to another in one stage are one transfer. A transfer may be cut into slices; each slice is
a message. A slice waits for exactly those slices that bring its sender rows that it forwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgcl.planner.arrays import FloatArray, Int64Array
from dgcl.planner.trees import Trees

_CELLS = 1 << 22  # table cells per chunk of trees


@dataclass(frozen=True)
class Messages:
    """N messages, ordered by (stage, src, dst, slice).

    Attributes:
        stage, src, dst: (N,) int64.
        index: (N,) int64, which slice of its transfer.
        rows: (N,) int64.
        before, after: (D,) int64, message ``after[i]`` waits for message ``before[i]``; no pair twice.
    """

    stage: Int64Array
    src: Int64Array
    dst: Int64Array
    index: Int64Array
    rows: Int64Array
    before: Int64Array
    after: Int64Array

    @property
    def num(self) -> int:
        """Number of messages N."""
        return int(self.stage.shape[0])

    def previous(self) -> Int64Array:
        """Return, for each message, the one queued ahead of it, or -1.

        Messages of one sender to one receiver keep their order, by stage and slice: the receiver counts them.
        """
        order = np.lexsort((np.arange(self.num), self.dst, self.src))
        ahead = np.full(self.num, -1, np.int64)
        same = (self.src[order[1:]] == self.src[order[:-1]]) & (self.dst[order[1:]] == self.dst[order[:-1]])
        ahead[order[1:][same]] = order[:-1][same]
        return ahead


def messages(trees: Trees, world_size: int, slices: int = 1) -> Messages:
    """Return the messages of a plan, each transfer in up to ``slices`` slices of equal numbers of rows.

    Rows lie in a transfer in the order of the trees. (The runtime sorts them by vertex id, which a plan does not know;
    with more than one slice the order here is the most favourable one.)
    """
    key = (trees.edge_stage.astype(np.int64) * world_size + trees.edge_src) * world_size + trees.edge_dst
    kinds, transfer = np.unique(key, return_inverse=True)
    transfer = transfer.reshape(-1)
    count = trees.edge_count()
    total = np.zeros(kinds.shape[0], np.int64)
    np.add.at(total, transfer, count)
    order = np.argsort(transfer, kind="stable")
    ends = np.cumsum(count[order])
    first = np.concatenate([[0], np.cumsum(total)[:-1]])
    start = np.empty(trees.num_edges, np.int64)  # where an edge's rows begin in its transfer
    start[order] = ends - count[order] - first[transfer[order]]

    pieces = np.minimum(slices, total)
    piece_ptr = np.concatenate([[0], np.cumsum(pieces)])
    index = np.arange(piece_ptr[-1]) - np.repeat(piece_ptr[:-1], pieces)
    of_transfer = np.repeat(np.arange(kinds.shape[0]), pieces)
    low = total[of_transfer] * index // pieces[of_transfer]
    high = total[of_transfer] * (index + 1) // pieces[of_transfer]

    def slice_of(edge: Int64Array, row: Int64Array) -> Int64Array:
        """Return the message that carries row number ``row`` of each edge's own rows."""
        x = transfer[edge]
        return piece_ptr[x] + ((start[edge] + row + 1) * pieces[x] - 1) // total[x]

    parent = parent_edges(trees, world_size)
    child = np.flatnonzero(parent >= 0)
    feeder = parent[child]
    before, after = [slice_of(feeder, np.zeros_like(child))], [slice_of(child, np.zeros_like(child))]
    # A pair of slices has its first common row at row 0, or where either side starts a new slice.
    for edge in (child, feeder):
        for i in range(1, slices):
            x = transfer[edge]
            row = total[x] * i // pieces[x] - start[edge]
            inside = (i < pieces[x]) & (row > 0) & (row < count[edge])
            before.append(slice_of(feeder[inside], row[inside]))
            after.append(slice_of(child[inside], row[inside]))
    num = int(piece_ptr[-1])
    pairs = np.unique(np.concatenate(after) * max(1, num) + np.concatenate(before))
    return Messages(
        stage=kinds[of_transfer] // (world_size * world_size),
        src=kinds[of_transfer] // world_size % world_size,
        dst=kinds[of_transfer] % world_size,
        index=index,
        rows=high - low,
        before=pairs % max(1, num),
        after=pairs // max(1, num),
    )


def parent_edges(trees: Trees, world_size: int) -> Int64Array:
    """Return the edge of the same tree that enters each edge's sender; -1 where the sender is the owner."""
    parent = np.full(trees.num_edges, -1, np.int64)
    step = max(1, _CELLS // world_size)
    for first in range(0, trees.num_trees, step):
        last = min(trees.num_trees, first + step)
        edges = np.arange(trees.edge_ptr[first], trees.edge_ptr[last])
        cell = np.repeat(np.arange(last - first), np.diff(trees.edge_ptr[first : last + 1])) * world_size
        entered = np.full((last - first) * world_size, -1, np.int64)
        entered[cell + trees.edge_dst[edges]] = edges
        parent[edges] = entered[cell + trees.edge_src[edges]]
    return parent


def transfer_bytes(found: Messages, row_bytes: int) -> FloatArray:
    """Return the bytes of each message, (N,) float64."""
    return found.rows.astype(np.float64) * float(row_bytes)

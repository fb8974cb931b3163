"""Decides in which batches each row stays on a rank, and in which slot of its device memory.

Its input is M_ij, the rows that rank i must hold while batch j is computed (:mod:`dgcl.offload.schedule`). Rows that
both of two consecutive batches hold always stay (in the paper of HongTu nothing else does). Of the others as many stay,
over batches that do not read them, as capacity allows; those whose next use is farthest are dropped first (Belady,
1966). The schedule is known, so no other choice loads fewer rows with as many slots.
Called by `schedule`; `arranging`, `batch_tables`, `layer` and others take the type ``Ids``. Free to change while no
cache of that size loads fewer rows, and no two rows share a slot in a batch (`tests/dgcl/offload/test_counts.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Residencies:
    """The K residencies of one rank, sorted by (begin, row).

    Attributes:
        row: (K,) int64 the vertex.
        begin, end: (K,) int64 its first and its last batch; both read the row.
        slot: (K,) int64 where it is; no two residencies of a slot share a batch.
        num_slots: How many slots there are.
    """

    row: Ids
    begin: Ids
    end: Ids
    slot: Ids
    num_slots: int

    def beginning(self, batch: int) -> slice:
        """Which residencies begin with a batch."""
        return slice(*np.searchsorted(self.begin, [batch, batch + 1]).tolist())

    def ending(self, batch: int) -> Ids:
        """Which residencies end with a batch, ascending."""
        return np.flatnonzero(self.end == batch)

    def slots_of(self, batch: int, rows: Ids) -> Ids:
        """The slots of rows that are held in a batch."""
        here = np.flatnonzero((self.begin <= batch) & (self.end >= batch))
        here = here[np.argsort(self.row[here])]
        here = here[np.searchsorted(self.row[here], rows)]
        assert (self.row[here] == rows).all()
        return self.slot[here]


def make_residencies(held: Sequence[Ids], slots: int | None = None) -> Residencies:
    """Decide what stays on a rank.

    Args:
        held: Of each batch the vertices that the rank must hold, each once.
        slots: How many rows fit; at least as many as the fullest batch holds.
    """
    capacity = max(slots or 0, *map(len, held))
    row, batch, follows = _uses(held)
    stays = _stay(row, batch, follows, len(held), capacity)
    last = row != np.append(row[1:], -1)
    starts = np.flatnonzero(np.append(True, (~stays | last)[:-1])) if len(row) else np.zeros(0, np.int64)
    ends = np.append(starts[1:] - 1, len(row) - 1) if len(row) else starts
    order = np.lexsort((row[starts], batch[starts]))
    starts, ends = starts[order], ends[order]
    slot, num_slots = _slots(batch[starts], batch[ends], len(held))
    return Residencies(row[starts], batch[starts], batch[ends], slot, num_slots)


def _uses(held: Sequence[Ids]) -> tuple[Ids, Ids, Ids]:
    """Every (row, batch) that is held, sorted, with the batch of the row's next use; after the last one: never."""
    never = len(held)
    row = np.concatenate([np.asarray(rows, np.int64) for rows in held]) if held else np.zeros(0, np.int64)
    batch = np.repeat(np.arange(len(held)), [len(rows) for rows in held])
    order = np.lexsort((batch, row))
    row, batch = row[order], batch[order]
    follows = np.full(len(row), never, np.int64)
    again = np.flatnonzero(row[1:] == row[:-1])
    follows[again] = batch[again + 1]
    return row, batch, follows


def _stay(row: Ids, batch: Ids, follows: Ids, num_batches: int, capacity: int) -> NDArray[np.bool_]:
    """Which uses are followed by another one without a load in between.

    Batch by batch: of the rows that the next batch does not hold, those stay whose next use is nearest, as many as
    there is room beside what the next batch holds. Ties: the lowest vertex stays. A row that is given up before its
    next use has never stayed, so its residency ends with the last use.
    """
    by_batch = np.argsort(batch, kind="stable")
    sizes = np.bincount(batch, minlength=num_batches)
    ends = np.cumsum(sizes)
    stays = np.zeros(len(row), bool)
    waiting = np.zeros(0, np.int64)  # uses whose rows are there, to be used after this batch
    for now in range(num_batches - 1):
        used = by_batch[ends[now] - sizes[now] : ends[now]]
        waiting = np.concatenate([waiting, used[follows[used] < num_batches]])
        due = follows[waiting] == now + 1
        stays[waiting[due]] = True
        waiting = waiting[~due]
        room = capacity - int(sizes[now + 1])
        if len(waiting) > room:
            waiting = waiting[np.lexsort((row[waiting], follows[waiting]))[:room]]
    return stays


def _slots(begin: Ids, end: Ids, num_batches: int) -> tuple[Ids, int]:
    """A slot for each residency, sorted by begin; the lowest that are free, so there are as few as can be."""
    slot = np.empty(len(begin), np.int64)
    num_slots = 0
    free = np.zeros(0, np.int64)
    by_end = np.argsort(end, kind="stable")
    first_begin = np.searchsorted(begin, np.arange(num_batches + 1))
    first_end = np.searchsorted(end[by_end], np.arange(num_batches + 1))
    for now in range(num_batches):
        if now:
            free = np.sort(np.concatenate([free, slot[by_end[first_end[now - 1] : first_end[now]]]]))
        new = slice(first_begin[now], first_begin[now + 1])
        count = int(new.stop - new.start)
        fresh = max(0, count - len(free))
        slot[new] = np.concatenate([free[:count], np.arange(num_slots, num_slots + fresh)])
        free, num_slots = free[count:], num_slots + fresh
    return slot, num_slots

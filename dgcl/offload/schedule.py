"""Plans what all ranks load, send and hold in each batch, and in which order chunks are computed.

Batch j is chunk j of every rank together; the sets N_ij, U_j, T_ij and M_ij are defined below the imports. The order of
chunks is a greedy one, taken only if it delivers fewer rows than the given order.
Called by `arranging`, `batch_tables` and `offload_prediction`. Free to change while counts are those of the sets,
owners hold each row as it is sent and as its gradient returns, and shuffled chunks are put in order
(`tests/dgcl/offload/test_counts.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dgcl.offload.residency import Ids, Residencies, make_residencies

#: ``reads[i][j]``: what the chunk of rank i in batch j reads (N_ij), each vertex once, in any order.
Reads = Sequence[Sequence[Ids]]


# The vertices of each of m ranks are divided into n chunks; chunk j of every rank together are *batch* j. With N_ij
# the rows that chunk (i, j) reads, its own among them:
#
#     U_j  = union of N_ij over ranks i               what batch j reads
#     T_ij = {v in U_j: rank i owns v}                what rank i gives to batch j
#     M_ij = T_ij and N_ij                            what rank i holds while batch j is computed
#
# A *residency* is a run of batches in which a row stays in one slot of a rank. It begins and ends with a batch that
# reads the row. When it begins, an owner loads the row from its host memory, and any other rank gets it from the
# owner, who holds it in that batch. The backward takes the batches in descending order: a row's residency is loaded
# at its end, and its gradient returned at its beginning. That is the adjoint of the forward, for any residencies.
# HongTu's backward ascends and loses gradients, so ours descends, and what stays is chosen by Belady's rule.
@dataclass(frozen=True, eq=False)
class Schedule:
    """What every rank holds, loads, sends and gives up.

    Attributes:
        owner: (N,) int32, the owner of each vertex.
        reads: What each chunk reads, in the order of batches.
        residencies: Of each rank.
    """

    owner: NDArray[np.int32]
    reads: Reads
    residencies: tuple[Residencies, ...]

    @property
    def num_ranks(self) -> int:
        """m."""
        return len(self.reads)

    @property
    def num_batches(self) -> int:
        """n."""
        return len(self.reads[0])

    @cached_property
    def host_rows(self) -> NDArray[np.int64]:
        """(m,) rows that each rank loads from its host memory in a forward, and again in a backward."""
        return np.array([int((self.owner[r.row] == i).sum()) for i, r in enumerate(self.residencies)])

    @cached_property
    def device_rows(self) -> NDArray[np.int64]:
        """(m,) rows that each rank gets from the devices of others, one way."""
        return np.array([len(r.row) for r in self.residencies]) - self.host_rows

    @property
    def delivered(self) -> int:
        """Rows that begin to be resident, over all ranks, wherever they come from: what a schedule costs."""
        return int(self.host_rows.sum() + self.device_rows.sum())

    @property
    def num_slots(self) -> tuple[int, ...]:
        """Slots of each rank."""
        return tuple(each.num_slots for each in self.residencies)

    def travelling(self, batch: int, ends: bool = False) -> tuple[Ids, Ids]:
        """What travels between ranks for a batch: (vertices, the ranks that get them).

        Args:
            batch: The batch.
            ends: Those whose residency ends with the batch, as a backward loads them, instead of begins.
        """
        rows, ranks = [], []
        for rank, each in enumerate(self.residencies):
            which = each.row[each.ending(batch) if ends else each.beginning(batch)]
            which = which[self.owner[which] != rank]
            rows.append(which)
            ranks.append(np.full(len(which), rank, np.int64))
        return np.concatenate(rows), np.concatenate(ranks)


def make_schedule(reads: Reads, owner: NDArray[np.int32], slots: int | None = None) -> Schedule:
    """Decide what is resident where, for batches in the given order.

    Args:
        reads: Of each rank and batch the vertices that are read, each once.
        owner: (N,) the owner of each vertex.
        slots: As of :func:`~dgcl.offload.residency.make_residencies`, for every rank.
    """
    residencies = tuple(make_residencies(of_rank, slots) for of_rank in holdings(reads, owner))
    return Schedule(owner, reads, residencies)


def holdings(reads: Reads, owner: NDArray[np.int32]) -> list[list[Ids]]:
    """M_ij: of each rank and batch what it must hold, its own that any chunk reads and what its own chunk reads."""
    unions = [_union(batch) for batch in zip(*reads, strict=True)]
    return [
        [_union((u[owner[u] == rank], mine)) for u, mine in zip(unions, of_rank, strict=True)]
        for rank, of_rank in enumerate(reads)
    ]


def volumes(reads: Reads) -> tuple[int, int, int]:
    """(V_ori, V_p2p, V_ru): rows read by chunks, by batches, and by batches beyond the one before."""
    unions = [_union(batch) for batch in zip(*reads, strict=True)]
    reused = [len(np.intersect1d(*pair, assume_unique=True)) for pair in pairwise(unions)]
    per_batch = sum(map(len, unions))
    return sum(len(rows) for of_rank in reads for rows in of_rank), per_batch, per_batch - sum(reused)


def reorganise(
    reads: Reads, owner: NDArray[np.int32], slots: int | None = None
) -> tuple[list[Ids], Schedule]:
    """Order every rank's chunks so that chunks of a batch, and batches after each other, read the same rows.

    First the chunks of each batch: beginning with those of rank 0, each further rank adds the one of its unused chunks
    that has most in common with the batch so far. Then the batches: beginning with the first, each is followed by the
    unused one that has most in common with it. Ties: the lowest. Greedy, so it is kept only if fewer rows are
    delivered than in the given order.

    Returns:
        Of each rank (n,) which of its chunks is computed in each batch; and the schedule of that order.
    """
    unordered = make_schedule(reads, owner, slots)
    n = unordered.num_batches
    chunks = [np.arange(n) for _ in reads]
    marked = np.zeros(len(owner), bool)
    for batch in range(n):
        marked[:] = False
        marked[reads[0][batch]] = True
        for rank in range(1, len(reads)):
            common = [int(marked[reads[rank][chunk]].sum()) for chunk in chunks[rank][batch:]]
            best = batch + int(np.argmax(common))
            before = chunks[rank][batch:best].copy()
            chunks[rank][batch], chunks[rank][batch + 1 : best + 1] = chunks[rank][best], before
            marked[reads[rank][chunks[rank][batch]]] = True
    unions = [
        _union([of_rank[int(perm[batch])] for of_rank, perm in zip(reads, chunks, strict=True)])
        for batch in range(n)
    ]
    order, unused = [0], list(range(1, n))
    while unused:
        marked[:] = False
        marked[unions[order[-1]]] = True
        best = int(np.argmax([int(marked[unions[batch]].sum()) for batch in unused]))
        order.append(unused.pop(best))
    chunks = [of_rank[order] for of_rank in chunks]
    ordered = make_schedule(
        [[of_rank[k] for k in perm.tolist()] for of_rank, perm in zip(reads, chunks, strict=True)],
        owner,
        slots,
    )
    if ordered.delivered < unordered.delivered:
        return chunks, ordered
    return [np.arange(n) for _ in reads], unordered


def _union(parts: Sequence[Ids]) -> Ids:
    return np.unique(np.concatenate(parts)) if len(parts) else np.zeros(0, np.int64)

"""Verifier of the tables of all ranks: it executes a chunked layer with vertex ids in the place of rows.

It reads the tables alone, and shares no code with the compiler that made them. It shows, for forward and backward:

- what a chunk reads is there, its own vertices first, in the forward and in the backward;
- a slot is written only where the row in it has been read for the last time: what its residency began with is there
  until it ends, and gradients in it are returned before it is opened for others;
- the gradient of every row that a chunk reads reaches its place in host memory exactly once, and every place gets a
  first gradient that is not added to what was there.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dgcl.offload.residency import Ids
from dgcl.offload.tables import RankTables, Swap
from dgcl.program.model import ProgramError


def verify_tables(
    tables: Sequence[RankTables], stored: Sequence[Ids], reads: Sequence[Sequence[Ids]]
) -> None:
    """Prove the tables of all ranks.

    Args:
        tables: Of each rank.
        stored: Of each rank the vertex of every row of host memory.
        reads: Of each rank and batch the vertices that the chunk reads.

    Raises:
        ProgramError: Naming rank and batch.
    """
    num_batches = len(reads[0])
    held = [np.full(each.num_slots, -1, np.int64) for each in tables]
    for batch in range(num_batches):
        _load(tables, stored, held, batch, again=False)
        _check_sources(tables, stored, held, reads, batch)
    num_vertices = sum(map(len, stored))
    rng = np.random.default_rng(0x0FF1)
    expected = np.zeros(num_vertices, np.uint64)
    gradients = [np.zeros(len(ids), np.uint64) for ids in stored]
    written = [np.zeros(len(ids), bool) for ids in stored]
    held = [np.full(each.num_slots, -1, np.int64) for each in tables]
    sums = [np.zeros(each.num_slots, np.uint64) for each in tables]
    for batch in reversed(range(num_batches)):
        _load(tables, stored, held, batch, again=True)
        _check_sources(tables, stored, held, reads, batch)
        for rank, mine in enumerate(tables):
            now = mine.batches[batch]
            if (sums[rank][now.opened] != 0).any():
                raise _fail(rank, batch, "a slot is opened whose gradient was not returned")
            values = rng.integers(1, 2**63, len(now.sources), dtype=np.uint64)
            sums[rank][now.sources] += values
            np.add.at(expected, reads[rank][batch], values)
        _return(tables, held, sums, batch)
        for rank, mine in enumerate(tables):
            load = mine.batches[batch].load
            if not np.array_equal(written[rank][load.rows], load.again):
                raise _fail(rank, batch, "a gradient is added to host memory that has none, or replaces one")
            written[rank][load.rows] = True
            gradients[rank][load.rows] += sums[rank][load.slots]
            sums[rank][load.slots] = 0
            held[rank][load.slots] = -1
    for rank, ids in enumerate(stored):
        if not (written[rank].all() and np.array_equal(gradients[rank], expected[ids])):
            raise ProgramError(f"rank {rank}: a gradient does not reach host memory, or does so twice")
        if sums[rank].any():
            raise ProgramError(f"rank {rank}: a gradient stays in a slot")


def _load(
    tables: Sequence[RankTables], stored: Sequence[Ids], held: list[Ids], batch: int, again: bool
) -> None:
    """Fill slots from host memory, then from other ranks; in a backward no slot may still be in use."""
    for rank, mine in enumerate(tables):
        now = mine.batches[batch]
        load = now.reload if again else now.load
        if again and (held[rank][load.slots] >= 0).any():
            raise _fail(rank, batch, "a slot is loaded while another row is in it")
        held[rank][load.slots] = stored[rank][load.rows]
    sent = _sent(tables, held, batch, again)
    for rank, mine in enumerate(tables):
        swap = _swap_of(mine, batch, again)
        if swap is None:
            continue
        program = mine.programs[_name(batch, again)]
        if again and (held[rank][swap.receive] >= 0).any():
            raise _fail(rank, batch, "a slot is received into while another row is in it")
        held[rank][swap.receive] = [sent[item] for item in program.halo_ids.tolist()]


def _sent(tables: Sequence[RankTables], held: list[Ids], batch: int, again: bool) -> dict[int, int]:
    """The vertex that each item of an exchange is, as its owner sends it."""
    vertices: dict[int, int] = {}
    for rank, mine in enumerate(tables):
        swap = _swap_of(mine, batch, again)
        if swap is not None:
            items = mine.programs[_name(batch, again)].owned_ids.tolist()
            vertices.update(zip(items, held[rank][swap.send].tolist(), strict=True))
    return vertices


def _return(
    tables: Sequence[RankTables], held: list[Ids], sums: list[NDArray[np.uint64]], batch: int
) -> None:
    """Send gradients of residencies that begin with the batch to owners, who must hold the row."""
    totals: dict[int, int] = {}
    for rank, mine in enumerate(tables):
        swap = mine.batches[batch].begin
        if swap is None:
            continue
        for item, value in zip(
            mine.programs[_name(batch, False)].halo_ids.tolist(),
            sums[rank][swap.receive].tolist(),
            strict=True,
        ):
            totals[item] = (totals.get(item, 0) + value) % 2**64
        sums[rank][swap.receive] = 0
        held[rank][swap.receive] = -1
    for rank, mine in enumerate(tables):
        swap = mine.batches[batch].begin
        if swap is None:
            continue
        if (held[rank][swap.send] < 0).any():
            raise _fail(rank, batch, "gradients come back for a row that is not there")
        items = mine.programs[_name(batch, False)].owned_ids.tolist()
        sums[rank][swap.send] += np.array([totals[item] for item in items], np.uint64)


def _check_sources(
    tables: Sequence[RankTables],
    stored: Sequence[Ids],
    held: list[Ids],
    reads: Sequence[Sequence[Ids]],
    batch: int,
) -> None:
    for rank, mine in enumerate(tables):
        now = mine.batches[batch]
        if not np.array_equal(held[rank][now.sources], reads[rank][batch]):
            raise _fail(rank, batch, "a row that the chunk reads is not in its slot")
        own = stored[rank][now.rows]
        if not np.array_equal(reads[rank][batch][: len(own)], own):
            raise _fail(rank, batch, "the chunk's own rows do not come first")


def _swap_of(mine: RankTables, batch: int, again: bool) -> Swap | None:
    now = mine.batches[batch]
    return now.end if again else now.begin


def _name(batch: int, again: bool) -> str:
    return f"batch {batch} {'end' if again else 'begin'}"


def _fail(rank: int, batch: int, what: str) -> ProgramError:
    return ProgramError(f"rank {rank}, batch {batch}: {what}")

"""Tables of chunked layers are proved on symbols, and the proof sees what is changed in them.

| changed                                          | the proof says                   |
| ------------------------------------------------ | -------------------------------- |
| a source's slot                                  | not in its slot                  |
| a load left out                                  | not in its slot                  |
| a slot given to two rows at once                 | not in its slot                  |
| a gradient added that is the first, or the other | has none, or replaces one        |
| a return to the host left out                    | does not reach, or slot in use   |
| rows of an exchange received in another order    | not in its slot                  |
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import Graph
from dgcl.offload.proof import verify_tables
from dgcl.offload.schedule import reorganise
from dgcl.offload.tables import Batch, HostRows, RankTables, Swap, compile_tables
from dgcl.program.model import ProgramError
from dgcl.topology import resolve_topology
from tests.dgcl.offload.sets import chunks_of, random_graph
from tests.dgcl.workers.test_exchanges import toy_24

Made = tuple[list[RankTables], list[np.ndarray], list[list[np.ndarray]]]


def compiled(graph: Graph, part: np.ndarray, num_ranks: int, num_chunks: int) -> Made:
    """Tables, the order of host memory, and what chunks read."""
    chunks = chunks_of(graph, part, num_ranks, num_chunks, "random")
    order, schedule = reorganise([[c.reads for c in of] for of in chunks], part.astype(np.int32))
    ordered = [[of[k] for k in perm] for of, perm in zip(chunks, order, strict=True)]
    stored = [np.concatenate([c.local.owned_ids for c in of]) for of in ordered]
    sizes = [[c.size for c in of] for of in ordered]
    tables, _ = compile_tables(schedule, stored, sizes, resolve_topology("uniform", num_ranks), "direct")
    return tables, stored, [list(of) for of in schedule.reads]


@given(num_ranks=st.integers(1, 4), num_chunks=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_tables_are_proved(num_ranks: int, num_chunks: int, seed: int):
    graph = random_graph(16, 40, seed)
    part = np.random.default_rng(seed).integers(0, num_ranks, 16)
    tables, stored, reads = compiled(graph, part, num_ranks, num_chunks)
    verify_tables(tables, stored, reads)
    for ids, of_rank, read in zip(stored, tables, reads, strict=True):
        for batch, rows in zip(of_rank.batches, read, strict=True):
            own = ids[batch.rows]
            assert rows[: len(own)].tolist() == own.tolist()


def _other_source(batch: Batch) -> Batch:
    return replace(batch, sources=np.roll(batch.sources, 1))


def _no_load(batch: Batch) -> Batch:
    return replace(batch, load=HostRows(*(each[1:] for each in vars(batch.load).values())))


def _no_reload(batch: Batch) -> Batch:
    return replace(batch, reload=HostRows(*(each[1:] for each in vars(batch.reload).values())))


def _other_first(batch: Batch) -> Batch:
    return replace(batch, load=replace(batch.load, again=~batch.load.again))


def _same_slot(batch: Batch) -> Batch:
    slots = batch.load.slots.copy()
    slots[0] = slots[1]
    return replace(batch, load=replace(batch.load, slots=slots))


def _other_receive(batch: Batch) -> Batch:
    assert batch.begin is not None
    return replace(batch, begin=replace(batch.begin, receive=np.roll(batch.begin.receive, 1)))


def _other_send(batch: Batch) -> Batch:
    assert batch.end is not None
    end: Swap = replace(batch.end, send=np.roll(batch.end.send, 1))
    return replace(batch, end=end)


@pytest.mark.parametrize(
    "change", [_other_source, _no_load, _no_reload, _other_first, _same_slot, _other_receive, _other_send]
)
def test_changed_tables_are_refused(change: Callable[[Batch], Batch]):
    part = np.arange(24) * 2 // 24
    tables, stored, reads = compiled(toy_24(), part, 2, 2)
    verify_tables(tables, stored, reads)
    batches = tables[0].batches
    broken = [replace(tables[0], batches=(change(batches[0]), *batches[1:])), tables[1]]
    if change in (_no_reload, _other_send):
        broken[0] = replace(tables[0], batches=(batches[0], change(batches[1])))
    with pytest.raises(ProgramError, match=r"rank [01]"):
        verify_tables(broken, stored, reads)

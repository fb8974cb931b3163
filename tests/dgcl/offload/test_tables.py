"""Tables of chunked layers, carried out with vertices in the place of rows, and with numbers for their gradients.

What a chunk reads is in its slots, forwards and backwards, its own vertices first; no slot is loaded while another row
is in it; and each vertex gets the sum of what the chunks that read it gave, once, in its place of host memory.
"""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import Graph
from dgcl.offload.batch_tables import RankTables, compile_tables
from dgcl.offload.schedule import reorganise
from dgcl.topology import resolve_topology
from tests.dgcl.offload.sets import chunks_of, random_graph

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
def test_rows_and_gradients_reach_their_places(num_ranks: int, num_chunks: int, seed: int):
    rng = np.random.default_rng(seed)
    made = compiled(random_graph(16, 40, seed), rng.integers(0, num_ranks, 16), num_ranks, num_chunks)
    tables, stored, reads = made
    slots, sums = ([np.full(of.num_slots, empty) for of in tables] for empty in (-1, 0))
    of_host, expected = [np.full(len(ids), -1) for ids in stored], Counter[int]()
    for batch in range(num_chunks):
        load(*made, slots, batch, back=False)
    slots = [np.full(of.num_slots, -1) for of in tables]
    for batch in reversed(range(num_chunks)):
        load(*made, slots, batch, back=True)
        for of, held, read in zip(tables, sums, reads, strict=True):
            assert not held[of.batches[batch].opened].any()
            gradients = rng.integers(1, 2**40, len(read[batch]))
            held[of.batches[batch].sources] += gradients
            expected.update(dict(zip(read[batch].tolist(), gradients.tolist(), strict=True)))
        folded = Counter[int]()
        for rank, program, swap in swaps(tables, batch, back=False):
            folded.update(
                dict(zip(program.halo_ids.tolist(), sums[rank][swap.receive].tolist(), strict=True))
            )
            slots[rank][swap.receive], sums[rank][swap.receive] = -1, 0
        for rank, program, swap in swaps(tables, batch, back=False):
            assert (slots[rank][swap.send] >= 0).all()
            sums[rank][swap.send] += np.array([folded[item] for item in program.owned_ids.tolist()], np.int64)
        for of, host, held, gradients in zip(tables, of_host, slots, sums, strict=True):
            returned = of.batches[batch].load
            assert ((host[returned.rows] >= 0) == returned.again).all()
            host[returned.rows] = host[returned.rows].clip(min=0) + gradients[returned.slots]
            held[returned.slots], gradients[returned.slots] = -1, 0
    assert not any(held.any() for held in sums)
    assert dict(zip(chain(*stored), chain(*of_host), strict=True)) == expected


def load(tables, stored, reads, slots, batch: int, back: bool):
    """Fill slots from host memory, then from other ranks; what the chunks read is there."""
    for of, ids, held in zip(tables, stored, slots, strict=True):
        rows = of.batches[batch].reload if back else of.batches[batch].load
        assert not back or (held[rows.slots] == -1).all()
        held[rows.slots] = ids[rows.rows]
    sent: dict[int, int] = {}
    for rank, program, swap in swaps(tables, batch, back):
        sent.update(zip(program.owned_ids.tolist(), slots[rank][swap.send].tolist(), strict=True))
    for rank, program, swap in swaps(tables, batch, back):
        assert not back or (slots[rank][swap.receive] == -1).all()
        slots[rank][swap.receive] = [sent[item] for item in program.halo_ids.tolist()]
    for of, ids, held, read in zip(tables, stored, slots, reads, strict=True):
        now = of.batches[batch]
        assert held[now.sources].tolist() == read[batch].tolist()
        assert read[batch][: len(ids[now.rows])].tolist() == ids[now.rows].tolist()


def swaps(tables: list[RankTables], batch: int, back: bool) -> list[Any]:
    """Of an exchange the ranks, their programs and their slots."""
    which = "end" if back else "begin"
    name = f"batch {batch} {which}"
    return [
        (rank, of.programs[name], getattr(of.batches[batch], which))
        for rank, of in enumerate(tables)
        if name in of.programs
    ]

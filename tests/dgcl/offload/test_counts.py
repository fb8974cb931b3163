"""Counts of chunked layers: golden numbers, and an oracle that follows the definitions set by set.

| what                         | judged by                                            |
| ---------------------------- | ---------------------------------------------------- |
| volumes, loads, exchanges    | sets of Python, m = 1..4 ranks, n = 1..8 chunks      |
| optimal residencies          | every cache that there is, on tiny graphs            |
| slots                        | no two residencies of a slot share a batch           |
| chunks                       | each vertex once, all its in-edges, balanced         |
"""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dgcl.offload.chunks import CHUNK_BY, Chunking
from dgcl.offload.offload_prediction import device_rows, smallest_fitting
from dgcl.offload.residency import make_residencies
from dgcl.offload.schedule import make_schedule, reorganise, volumes
from tests.dgcl.offload.sets import chunks_of, fewest_loads, held_sets, local_graphs, random_graph
from tests.support.exchanges import toy_24


def host_loads(made, rank):
    """Of each batch the vertices that a rank loads from its host memory."""
    mine = made.residencies[rank]
    rows = [mine.row[mine.beginning(batch)] for batch in range(made.num_batches)]
    return [of_batch[made.owner[of_batch] == rank] for of_batch in rows]


def test_toy_graph_has_the_published_counts():
    part = np.arange(24) * 2 // 24
    reads = [[chunk.reads for chunk in of_rank] for of_rank in chunks_of(toy_24(), part, 2, 3)]
    assert volumes(reads) == (50, 44, 26)
    made = make_schedule(reads, part.astype(np.int32))
    assert made.num_slots == (10, 10)
    assert (made.host_rows.sum(), made.device_rows.sum()) == (26, 14)
    loads = [[rows.tolist() for rows in host_loads(made, rank)] for rank in range(2)]
    assert loads[0] == [[0, 1, 2, 3, 5, 7, 11], [4, 6, 8, 10], [9, 11]]
    assert loads[1] == [[12, 13, 14, 15, 17, 19, 23], [16, 18, 20, 22], [21, 23]]


def test_example_of_three_ranks():
    sets = [[[0, 1, 2, 3], [2, 3]], [[0, 1, 3, 4], [3, 4, 5]], [[3, 4, 7], [4, 5, 6]]]
    reads = [[np.array(rows) for rows in of_rank] for of_rank in sets]
    owner = np.array([0, 0, 0, 0, 1, 1, 2, 2], np.int32)
    assert volumes(reads) == (19, 11, 8)
    assert make_schedule(reads, owner).host_rows.sum() <= 8


@given(
    num_ranks=st.integers(1, 4),
    num_chunks=st.integers(1, 8),
    num_nodes=st.integers(1, 30),
    edges=st.integers(0, 90),
    seed=st.integers(0, 10**6),
    chunk_by=st.sampled_from(["range", "random"]),
)
def test_counts_are_those_of_the_sets(num_ranks, num_chunks, num_nodes, edges, seed, chunk_by):
    graph = random_graph(num_nodes, edges, seed)
    part = np.random.default_rng(seed).integers(0, num_ranks, num_nodes).astype(np.int32)
    chunks = chunks_of(graph, part, num_ranks, num_chunks, chunk_by)
    sources, heads = graph.edges()
    for of_rank in chunks:
        for chunk in of_rank:
            own = set(chunk.local.owned_ids.tolist())
            read = {int(u) for u, v in zip(sources, heads, strict=True) if int(v) in own}
            assert set(chunk.reads.tolist()) == own | read
    reads = [[chunk.reads for chunk in of_rank] for of_rank in chunks]
    sets = [[set(rows.tolist()) for rows in of_rank] for of_rank in reads]
    unions = [set().union(*batch) for batch in zip(*sets, strict=True)]
    v_ru = len(unions[0]) + sum(len(b - a) for a, b in itertools.pairwise(unions))
    v_ori = sum(len(rows) for of_rank in sets for rows in of_rank)
    assert volumes(reads) == (v_ori, sum(map(len, unions)), v_ru)

    made, held = make_schedule(reads, part), held_sets(sets, part)
    for rank, residencies in enumerate(made.residencies):
        here: list[dict[int, int]] = [{} for _ in range(num_chunks)]  # of each batch the slot of each row
        for row, begin, end, slot in zip(
            residencies.row, residencies.begin, residencies.end, residencies.slot, strict=True
        ):
            assert row in held[rank][begin]
            assert row in held[rank][end]
            for batch in range(begin, end + 1):
                assert row not in here[batch]
                assert slot not in here[batch].values()
                here[batch][int(row)] = int(slot)
            if part[row] != rank:  # its owner holds it when it comes and when its gradient goes back
                assert row in held[part[row]][begin]
                assert row in held[part[row]][end]
        for batch in range(num_chunks):
            assert held[rank][batch] <= here[batch].keys()
            rows = np.array(sorted(held[rank][batch]), np.int64)
            assert residencies.slots_of(batch, rows).tolist() == [here[batch][int(v)] for v in rows]
        assert residencies.num_slots == max(map(len, held[rank]))
        count = sum(len(b - a) for a, b in itertools.pairwise([set(), *held[rank]]))
        loads = [len(rows) for rows in host_loads(made, rank)]
        assert sum(loads) == made.host_rows[rank]
        assert len(residencies.row) <= count
    assert made.host_rows.sum() <= v_ru
    arrived = [len(made.travelling(batch)[0]) for batch in range(num_chunks)]
    assert sum(arrived) == made.device_rows.sum()
    assert sum(len(made.travelling(batch, ends=True)[0]) for batch in range(num_chunks)) == sum(arrived)


@example(held=[{0, 1, 2, 3}, {4}, {0, 1, 2}], spare=0)  # room beside the next batch, however full this one is
@given(held=st.lists(st.sets(st.integers(0, 6), max_size=4), min_size=1, max_size=6), spare=st.integers(0, 3))
def test_no_cache_of_that_size_loads_fewer(held, spare):
    capacity = max(map(len, held)) + spare
    made = make_residencies([np.array(sorted(rows), np.int64) for rows in held], capacity)
    assert len(made.row) == fewest_loads(held, capacity)
    assert made.num_slots <= capacity


def test_order_of_batches_and_of_every_rank_is_found():
    """Two ranks whose chunks are shuffled against each other, rank 0's too."""
    blocks = [np.arange(4 * k, 4 * k + 4) for k in range(4)]
    chained = [np.concatenate([blocks[k], blocks[k + 1][:3]]) if k < 3 else blocks[k] for k in range(4)]
    reads = [[chained[k] for k in (0, 2, 1, 3)], [chained[k] for k in (3, 1, 2, 0)]]
    order, made = reorganise(reads, (np.arange(16) % 2).astype(np.int32))
    assert [perm.tolist() for perm in order] == [[0, 2, 1, 3], [3, 1, 2, 0]]
    assert volumes(made.reads)[2] == 16


@pytest.mark.parametrize("chunk_by", CHUNK_BY)
@pytest.mark.parametrize("num_chunks", [1, 2, 5, 40])
def test_chunks_hold_every_vertex_once(chunk_by, num_chunks):
    graph = random_graph(30, 120, 1)
    (local,) = local_graphs(graph, np.zeros(30, np.int32), 1)
    rows = Chunking(local, chunk_by).rows(num_chunks)
    assert len(rows) == num_chunks
    assert sorted(np.concatenate(rows).tolist()) == list(range(30))
    assert all((np.diff(each) > 0).all() for each in rows)
    if num_chunks == 5:
        weights = np.array([(np.diff(graph.indptr)[each] + 1).sum() for each in rows])
        assert weights.max() <= 1.5 * weights.mean()


def test_metis_chunks_read_less_than_random_ones():
    side = np.arange(400).reshape(20, 20)
    edges = np.concatenate(
        [
            np.stack([side[:-1].ravel(), side[1:].ravel()]),
            np.stack([side[:, :-1].ravel(), side[:, 1:].ravel()]),
        ],
        1,
    )
    from dgcl.graph import as_graph

    graph = as_graph(np.concatenate([edges, edges[::-1]], 1))
    part = np.zeros(400, np.int32)
    read = {
        by: volumes([[c.reads for c in of] for of in chunks_of(graph, part, 1, 16, by)])[0]
        for by in ("metis", "random")
    }
    assert read["metis"] <= read["random"] / 2


@pytest.mark.parametrize("limit, expected", [(1000, 1), (499, 3), (100, 10), (10, 91), (9, 100)])
def test_smallest_number_of_chunks(limit, expected):
    chunks, peak = smallest_fitting(lambda n: 1000 // n, limit, 100)
    assert (chunks, peak) == (expected, 1000 // expected)


def test_one_uneven_cut_does_not_end_the_search():
    tried: list[int] = []

    def peak(chunks: int) -> int:
        tried.append(chunks)
        return 1100 if len(tried) == 2 else 1000 // chunks

    assert smallest_fitting(peak, 200, 100)[1] <= 200
    assert len(tried) > 2


def test_a_rank_that_sends_much_and_reads_little_has_copies():
    owner = np.repeat(np.arange(3), 4).astype(
        np.int32
    )  # ranks 1 and 2 read rank 0's four rows, which travel twice
    reads = [[np.array([0])], *([np.array([0, 1, 2, 3, 4 * rank])] for rank in (1, 2))]
    rows = device_rows(make_schedule(reads, owner), [[(1, 1)]] * 3)
    assert [each.copies for each in rows] == [4, 4, 4]
    assert [each.arrivals for each in rows] == [8, 4, 4]
    sender = rows[0].bytes((10, 10), itemsize=1, inside=(30,))
    assert sender.inside == 40
    assert rows[0].bytes((10, 10), itemsize=1, inside=(50,)).inside == 50

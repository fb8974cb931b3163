"""An oracle for programs: what all ranks together do, row by row, with ids and random numbers in the place of rows."""

from collections.abc import Sequence

import numpy as np

from dgcl.program import Program
from dgcl.relation import Demand
from dgcl.transport.common.program_agreement import digests_of


def wanted_by(rank: int, demand: Demand) -> np.ndarray:
    """The items that a rank wants."""
    words = demand.readers[rank // 64]
    return np.flatnonzero(words >> words.dtype.type(rank % 64) & words.dtype.type(1))


def prove(programs: Sequence[Program], demand: Demand):
    """Every rank gets what it wants, once, and every owner the sum over all that have its item."""
    agreed(programs)
    held = [np.full(each.num_local + each.num_relay, -1) for each in programs]
    for rows, each in zip(held, programs, strict=True):
        rows[: each.num_owned] = each.owned_ids
    for stage in range(programs[0].num_stages):
        for each in programs:
            sends = each.expand
            for send in np.flatnonzero(sends.send_stage == stage):
                peer = programs[sends.send_peer[send]]
                for kind, first in enumerate((0, peer.num_local)):
                    at, to, count = (
                        table[send, kind] for table in (sends.send_from, sends.send_to, sends.send_count)
                    )
                    moved = held[each.rank][each.send_rows[at : at + count]]
                    assert (moved >= 0).all()
                    assert (held[peer.rank][first + to : first + to + count] == -1).all()
                    held[peer.rank][first + to : first + to + count] = moved
    for rows, each in zip(held, programs, strict=True):
        assert rows[each.num_owned : each.num_local].tolist() == each.halo_ids.tolist()
        assert sorted(each.halo_ids.tolist()) == wanted_by(each.rank, demand).tolist()
    values = [np.random.default_rng(each.rank).integers(1, 2**40, each.num_local) for each in programs]
    sums = [
        np.concatenate([own, np.zeros(each.num_relay, int)])
        for own, each in zip(values, programs, strict=True)
    ]
    row_of_slot = [each.arrival_rows[np.argsort(each.arrival_slots)] for each in programs]
    for stage in range(programs[0].num_stages):
        for each in programs:
            sends = each.fold
            for send in np.flatnonzero(sends.send_stage == stage):
                peer = int(sends.send_peer[send])
                for at, to, count in zip(
                    sends.send_from[send], sends.send_to[send], sends.send_count[send], strict=True
                ):
                    rows = row_of_slot[peer][to : to + count]
                    np.add.at(sums[peer], rows, sums[each.rank][at : at + count])
    expected = np.zeros(len(demand.owner), int)
    for own, each in zip(values, programs, strict=True):
        np.add.at(expected, np.concatenate([each.owned_ids, each.halo_ids]), own)
    for total, each in zip(sums, programs, strict=True):
        assert total[: each.num_owned].tolist() == expected[each.owned_ids].tolist()


def agreed(programs: Sequence[Program]):
    """What each sends is what its peers expect, by their digests."""
    sent, expected = np.stack([digests_of(each) for each in programs]).transpose(1, 0, 2)
    assert np.array_equal(sent, expected.T)

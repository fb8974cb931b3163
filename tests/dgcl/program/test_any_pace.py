"""Programs are right at whatever pace ranks run, in plans of many stages: on symbols, and carried out."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dgcl.communicator import Communicator
from dgcl.program import Program, Schedule
from tests.support.plans import World, at_random, random_world, wandering
from tests.support.ranks import folded, local_ids, on_threads, random_bits, same_bits
from tests.support.samples import examples, sampled

Send = tuple[int, int]  # rank, number of its send


def many_stages(seed: int) -> World:
    """Eight ranks, rows that wander over up to seven others."""
    return random_world(seed, 8, wandering(seed), num_nodes=60, num_edges=100)


SEEDS = range(4)


class Call:
    """A call on symbols, transfer by transfer, in any order that the protocol allows."""

    def __init__(self, programs: list[Program], verb: str):
        self.programs, self.verb = programs, verb
        self.schedules: list[Schedule] = [getattr(program, verb) for program in programs]
        self.received: set[tuple[int, int, int]] = set()  # (receiver, stage, sender)
        self.left: list[Send] = [
            (r, i) for r, s in enumerate(self.schedules) for i in range(len(s.send_peer))
        ]
        generator = np.random.default_rng(1)
        self.own = [generator.integers(1, 2**62, p.num_local, dtype=np.uint64) for p in programs]
        if verb == "expand":
            self.memory = [np.zeros(p.num_local + p.num_relay, np.uint64) for p in programs]
            for memory, program in zip(self.memory, programs, strict=True):
                memory[: program.num_owned] = program.owned_ids + 1
        else:
            self.memory = [np.zeros(p.num_arrivals, np.uint64) for p in programs]

    def may_run(self, send: Send) -> bool:
        """Whether its rows are there and all earlier sends to that peer are done."""
        rank, i = send
        schedule = self.schedules[rank]
        waits = schedule.send_deps[schedule.send_dep_ptr[i] : schedule.send_dep_ptr[i + 1]].tolist()
        mine = [(rank, int(schedule.recv_stage[r]), int(schedule.recv_peer[r])) for r in waits]
        earlier = ((rank, j) in self.left for j in range(i) if schedule.send_peer[j] == schedule.send_peer[i])
        return all(receive in self.received for receive in mine) and not any(earlier)

    def run(self, send: Send):
        """Read the rows, write them at the receiver, say so."""
        rank, i = send
        program, schedule = self.programs[rank], self.schedules[rank]
        peer = int(schedule.send_peer[i])
        for portion in (0, 1):
            start, count = int(schedule.send_from[i, portion]), int(schedule.send_count[i, portion])
            to = int(schedule.send_to[i, portion])
            if self.verb == "expand":
                rows = self.memory[rank][program.send_rows[start : start + count]]
                to += self.programs[peer].num_local if portion else 0
            else:
                own = self.own[rank][start : start + count] if portion == 0 else np.zeros(count, np.uint64)
                rows = own + self.sums(rank, start, count)
            self.memory[peer][to : to + count] = rows
        self.received.add((peer, int(schedule.send_stage[i]), rank))
        self.left.remove(send)

    def sums(self, rank: int, start: int, count: int) -> np.ndarray:
        """What has arrived for these local rows, added up."""
        program, total = self.programs[rank], np.zeros(count, np.uint64)
        for row, slot in zip(program.arrival_rows.tolist(), program.arrival_slots.tolist(), strict=True):
            if start <= row < start + count:
                total[row - start] += self.memory[rank][slot]
        return total

    def finish(self, last: Send | None):
        """Run all there is, and `last` only when nothing else can go on."""
        while self.left:
            able = [send for send in self.left if self.may_run(send)]
            self.run(next((send for send in able if send != last), able[0]))

    def is_right(self) -> bool:
        """Whether every rank has what the call should give it."""
        if self.verb == "expand":
            return all(
                np.array_equal(memory[: p.num_local], np.concatenate([p.owned_ids, p.halo_ids]).astype(np.uint64) + 1)
                for memory, p in zip(self.memory, self.programs, strict=True)
            )  # fmt: skip
        expected: dict[int, int] = {}
        for program, own in zip(self.programs, self.own, strict=True):
            ids = np.concatenate([program.owned_ids, program.halo_ids]).tolist()
            for vertex, value in zip(ids, own.tolist(), strict=True):
                expected[vertex] = (expected.get(vertex, 0) + value) % 2**64
        return all(
            (self.own[r][: p.num_owned] + self.sums(r, 0, p.num_owned)).tolist()
            == [expected[vertex] for vertex in p.owned_ids.tolist()]
            for r, p in enumerate(self.programs)
        )


def wrong_at_some_pace(programs: list[Program], verb: str) -> Iterator[Send | None]:
    """The sends that spoil the result when they come as late as can be."""
    for last in [None, *Call(programs, verb).left]:
        call = Call(programs, verb)
        call.finish(last)
        if not call.is_right():
            yield last


@pytest.mark.parametrize(
    "seed, verb", sampled(SEEDS, ["expand", "fold"], keep=lambda seed, verb: seed == verb == 0)
)
def test_any_transfer_may_be_as_late_as_it_likes(seed: int, verb: str):
    assert not list(wrong_at_some_pace(many_stages(seed).programs, verb))


@pytest.mark.slow
@examples(10, 25)
@given(seed=st.integers(0, 2**20), num_edges=st.integers(10, 60), wander=st.booleans())
def test_at_any_pace_for_any_plan(seed: int, num_edges: int, wander: bool):
    maker = wandering(seed) if wander else at_random(seed)
    world = random_world(seed, 7, maker, num_nodes=24, num_edges=num_edges)
    for verb in ("expand", "fold"):
        assert not list(wrong_at_some_pace(world.programs, verb))


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_of_many_stages_carried_out(seed: int):
    world = many_stages(seed)

    def run(comm: Communicator):
        ids = local_ids(comm)
        for call in range(3):
            full = random_bits((comm.num_nodes, 5), torch.int64, seed=call)
            assert same_bits(comm.expand(full[comm.owned_ids]), full[ids])
            rows = random_bits((comm.num_local, 3), torch.int64, seed=10 * call + comm.rank)
            assert torch.equal(comm.fold(rows), folded(comm, rows))

    on_threads(world, run)

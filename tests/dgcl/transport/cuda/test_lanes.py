"""Rows between devices that cannot reach each other: found out at set-up, and brought through the host."""

from typing import Any

import numpy as np
import pytest
import torch

from dgcl.transport.cuda.lanes import NUM_SLOTS, cut
from tests.dgcl.support_plans import make_world, random_world
from tests.dgcl.transport.cuda.fake_cuda import FakeCuda
from tests.dgcl.transport.cuda.fake_ranks import Rank, on_devices
from tests.dgcl.transport.cuda.test_exchange import both_verbs
from tests.samples import sampled, slow

pytestmark = pytest.mark.xdist_group("alone")

PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)


def apart(*ranks: int) -> Any:
    """These ranks' devices have no peer access to others."""

    def prepare(fakes: list[FakeCuda]):
        for rank in ranks:
            fakes[rank].access = False

    return prepare


@pytest.fixture(params=[64, 1 << 12], ids=["many-slices", "one-slice"])
def slice_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("dgcl.transport.cuda.lanes.SLICE_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("trees", ["direct", "line", slow("random-1")])
def test_rows_arrive_all_the_same(trees: str, slice_bytes: int):
    """Rank 1 reaches nobody, the others reach each other: both ways in one call."""
    world = random_world(3, 3, trees, num_nodes=30, num_edges=90)

    def body(rank: Rank) -> Any:
        both_verbs(rank, 3, torch.float32)
        both_verbs(rank, 2, torch.bfloat16, 1)
        lanes = rank.exchange._connections.lanes
        assert lanes is not None
        return sorted(lanes.staged), rank.exchange.bytes_sent[0, 0].tolist()

    results, _ = on_devices(world, body, shared=False, prepare=apart(1))
    assert [staged for staged, _ in results] == [[1], [0, 2], [1]]
    for rank, (_, sent) in enumerate(results):
        assert sent == ((3 * 12 + 4) * world.planned_rows[rank]).tolist()


@pytest.mark.parametrize(
    "queues, trees",
    sampled(["one", "levels"], ["random-1", "direct"], keep=lambda queues, trees: queues == trees),
)
def test_streams_that_share_a_hardware_queue_do_not_wait_for_each_other(trees: str, queues: Any, monkeypatch):
    """Every rank is laid out like its peers: with one queue the wait of one must not stand before its own sends.

    Every transfer has many more slices than there are slots.
    """
    monkeypatch.setattr("dgcl.transport.cuda.lanes.SLICE_BYTES", 64)

    def prepare(fakes: list[FakeCuda]):
        apart(0, 1)(fakes)
        for fake in fakes:
            fake.queues = queues

    world = random_world(3, 3, trees, num_nodes=30, num_edges=90)
    on_devices(world, lambda rank: both_verbs(rank, 24, torch.float32, 1), shared=False, prepare=prepare)


@pytest.mark.parametrize(
    "highest, levels", [(-5, [0, 1, 2, 4]), (-2, [0, 1, 2, 2]), (0, [0, 0, 0, 0])], ids=str
)
def test_roles_have_levels_of_priority(highest: int, levels: list[int]):
    def prepare(fakes: list[FakeCuda]):
        apart(0)(fakes)
        for fake in fakes:
            fake.highest = highest

    def body(rank: Rank) -> list[int]:
        both_verbs(rank, 3, torch.float32, 1)
        streams = [rank.stream, *rank.exchange._streams, rank.device.side]
        return [-rank.fake._streams[stream].priority for stream in streams]

    results, _ = on_devices(PAIR, body, shared=False, prepare=prepare)
    assert results == [levels] * 2


@pytest.mark.usefixtures("slice_bytes")
def test_no_call_waits_for_the_device_here_either():
    frozen: list[FakeCuda] = []

    def prepare(fakes: list[FakeCuda]):
        apart(0)(fakes)
        frozen.extend(fakes)

    def body(rank: Rank):
        both_verbs(rank, 5, torch.float32, 1)
        rank.control.barrier()
        rank.fake.frozen.set()
        rank.fake.blocks.clear()
        rank.control.barrier()
        results = [rank.exchange.expand(rank.owned(5, seed=seed)) for seed in range(5)]
        folded = [rank.exchange.fold(rank.local(5, seed=seed)) for seed in range(5)]
        assert rank.fake.blocks == []
        rank.fake.frozen.clear()
        rank.wait()
        for seed in range(5):
            assert torch.equal(results[seed], rank.expanded(5, seed=seed))
            assert torch.equal(folded[seed], rank.folded(5, seed=seed))

    on_devices(PAIR, body, shared=False, prepare=prepare)


@pytest.mark.parametrize(
    "what, why",
    [
        ("exports", "its device memory cannot be shared: cuIpcGetMemHandle"),
        ("access", "the driver has no peer access between them"),
        ("atomics", "atomic operations between them are not native"),
        ("sight", "one does not see the other's GPU (CUDA_VISIBLE_DEVICES)"),
    ],
)
def test_what_a_driver_does_not_give_leaves_the_host(what: str, why: str):
    def prepare(fakes: list[FakeCuda]):
        for fake in fakes:
            fake.access, fake.atomics = what != "access", what != "atomics"
            if what == "exports":
                fake.refused["cuIpcGetMemHandle"] = 801
            fake.hidden = what == "sight"

    def body(rank: Rank) -> str:
        both_verbs(rank, 3, torch.float32, 1)
        return rank.exchange.describe()[1 - rank.rank]

    results, _ = on_devices(PAIR, body, shared=False, prepare=prepare)
    assert all(why in text for text in results)


def test_rows_without_bytes_come_too():
    def body(rank: Rank):
        out = rank.exchange.expand(torch.zeros(rank.program.num_owned, 0))
        assert out.shape == (rank.program.num_local, 0)
        both_verbs(rank, 1, torch.float32, 1)

    on_devices(PAIR, body, shared=False, prepare=apart(0))


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_slices_cover_every_byte_once_in_the_same_order_at_both_ends(size: int, monkeypatch):
    monkeypatch.setattr("dgcl.transport.cuda.lanes.SLICE_BYTES", size)
    world = random_world(3, 4, "random-1")
    every = frozenset(range(4))
    for sender in world.programs:
        given = cut(sender.expand, 12, every, receives=False)
        for receiver in world.programs:
            taken = cut(receiver.expand, 12, every, receives=True)
            ends = [
                [
                    (piece.number, piece.portion, piece.first, piece.num_bytes, piece.last)
                    for pieces in cuts.values()
                    for piece in pieces
                    if piece.peer == other
                ]
                for cuts, other in ((given, receiver.rank), (taken, sender.rank))
            ]
            assert ends[0] == ends[1]
            rows = sender.expand.send_count[sender.expand.send_peer == receiver.rank].sum()
            assert sum(piece[3] for piece in ends[0]) == 12 * rows
            assert [piece[0] for piece in ends[0]] == list(range(len(ends[0])))
            assert np.all([piece[3] <= size for piece in ends[0]])
    assert NUM_SLOTS == 2

"""Rows of devices on several machines: directly within a machine, in groups of messages between machines."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.transport.cuda.exchange import DeviceExchange
from dgcl.transport.cuda.message_channel import Message
from dgcl.transport.cuda.nccl import NcclChannel
from dgcl.transport.cuda.through_host import HostExchange
from dgcl.transport.memory import predict_memory
from tests.dgcl.support_plans import World, make_world, random_world
from tests.dgcl.transport.cuda.fake_cuda import FakeCuda
from tests.dgcl.transport.cuda.fake_nccl import Hub, MachineRank, on_machines
from tests.dgcl.transport.cuda.test_exchange import both_verbs
from tests.samples import sampled

MACHINES = {"2x2": (0, 0, 1, 1), "4x1": (0, 1, 2, 3), "3+1": (0, 0, 0, 1), "mixed": (0, 1, 0, 1)}
PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)


@pytest.mark.parametrize(
    ("queues", "layout"),
    sampled(["one", "levels"], ["4x1", "2x2"], keep=lambda queues, layout: queues == layout),
)
def test_one_hardware_queue_is_enough(layout: str, queues: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = FakeCuda.__init__

    def with_queues(self: FakeCuda, *arguments: Any, **keywords: Any) -> None:
        made(self, *arguments, **keywords)
        self.queues = queues

    monkeypatch.setattr(FakeCuda, "__init__", with_queues)
    world = random_world(3, 4, "random-1")
    on_machines(world, MACHINES[layout], lambda rank: both_verbs(rank, 3, torch.float32, 2))


def transfers(world: World, numbers: tuple[int, ...], verb: str) -> np.ndarray:
    """``(P, P)``: how many transfers there are between each two ranks of different machines."""
    count = np.zeros((world.world_size, world.world_size), np.int64)
    for program in world.programs:
        schedule = getattr(program, verb)
        for peer in schedule.send_peer.tolist():
            count[program.rank, peer] += numbers[program.rank] != numbers[peer]
    return count


@pytest.mark.parametrize(
    ("layout", "trees"),
    sampled(
        MACHINES,
        ["direct", "line", "hub", "chain", "random-1", "random-2"],
        keep=lambda layout, trees: (layout + trees) % 4 == 0,
    ),
)
def test_rows_arrive_and_sums_are_right(layout: str, trees: str) -> None:
    """And no byte travels between machines that is not planned, but for 16 a call, and 8 with each transfer."""
    world, numbers, hub = random_world(3, 4, trees), MACHINES[layout], Hub()

    def body(rank: MachineRank) -> np.ndarray:
        assert isinstance(rank.exchange, DeviceExchange)
        both_verbs(rank, 3, torch.float32)
        return rank.exchange.bytes_sent[0].copy()

    counted, backends = on_machines(world, numbers, body, hub=hub)
    for rank, sent in enumerate(counted):
        assert np.array_equal(sent[0], 3 * 12 * world.planned_rows[rank])
        assert np.array_equal(sent[1], 3 * 12 * world.planned_rows[:, rank])
    beside = 8 * 3 * (transfers(world, numbers, "expand") + transfers(world, numbers, "fold"))
    both = transfers(world, numbers, "expand") + transfers(world, numbers, "expand").T
    for a in range(4):
        for b in range(4):
            proofs = 4096 * sum(size == 4096 for size in hub.sizes[a, b])
            if numbers[a] == numbers[b] or both[a, b] == 0:
                assert sum(hub.sizes[a, b]) == proofs
            else:
                rows = counted[a][:, b].sum()
                assert sum(hub.sizes[a, b]) - proofs == rows + beside[a, b] + 6 * 16
    assert all(backend.closed and not backend.aborted for backend in backends.values())


@pytest.mark.parametrize("width", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_element_types_and_widths(width: int) -> None:
    def body(rank: MachineRank) -> None:
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64):
            both_verbs(rank, width, dtype, 1)
        out = rank.exchange.expand(torch.zeros(rank.program.num_owned, 0))
        assert out.shape == (rank.program.num_local, 0)
        both_verbs(rank, width, torch.float32, 1)

    on_machines(random_world(5, 4, "random-1"), MACHINES["2x2"], body, seed=7)


def test_memory_counts_rows_on_their_way_to_other_machines() -> None:
    world, numbers = random_world(3, 4, "line"), MACHINES["2x2"]

    def body(rank: MachineRank) -> tuple[Any, int]:
        report = predict_memory(
            [rank.program], [5, 3], torch.float64, input_grad=True, staged_rows=rank.exchange.staged_rows
        )
        without = predict_memory([rank.program], [5, 3], torch.float64, input_grad=True)
        assert report.pool >= without.pool
        return report.staging, without.staging

    staging, _ = on_machines(world, numbers, body)
    rows = world.planned_rows * np.not_equal.outer(numbers, numbers)
    for rank, (found, without) in enumerate(staging):
        assert found == 5 * 8 * max(rows[rank].sum(), rows[:, rank].sum())
        assert without == 0


@pytest.mark.slow
def test_no_call_waits_for_the_device() -> None:
    def body(rank: MachineRank) -> None:
        both_verbs(rank, 5, torch.float32, 1)
        rank.control.barrier()
        rank.fake.frozen.set()
        rank.fake.blocks.clear()
        rank.control.barrier()
        results = []
        for seed in range(4):
            for width in (5, 9):  # of the second kind none has been made before
                expanded = rank.exchange.expand(rank.owned(width, seed=seed))
                results.append((expanded, rank.exchange.fold(rank.local(width, seed=seed)), width, seed))
        rank.control.barrier()
        assert rank.fake.blocks == [], "a call has waited"
        rank.fake.frozen.clear()
        rank.wait()
        for expanded, folded, width, seed in results:
            assert torch.equal(expanded, rank.expanded(width, seed=seed))
            assert torch.equal(folded, rank.folded(width, seed=seed))

    on_machines(random_world(3, 4, "random-2"), MACHINES["2x2"], body)


def test_rows_stay_until_they_are_sent() -> None:
    """A rank that needs nothing of the other is far ahead of it."""
    world, frozen = make_world([(0, 1)], [0, 1], 2), list[FakeCuda]()

    def body(rank: MachineRank) -> None:
        both_verbs(rank, 3, torch.float32, 1)
        rank.control.barrier()
        if rank.rank == 1:
            rank.fake.frozen.set()
        rank.control.barrier()
        found = [rank.exchange.expand(rank.owned(3, seed=seed)) for seed in range(4)]
        time.sleep(0.3)
        frozen[1].frozen.clear()
        rank.wait()
        assert all(torch.equal(out, rank.expanded(3, seed=seed)) for seed, out in enumerate(found))

    on_machines(world, (0, 1), body, prepare=frozen.extend)


@pytest.mark.slow
def test_machines_and_devices_that_do_not_reach_each_other() -> None:
    """All three ways in one call."""

    def prepare(fakes: list[FakeCuda]) -> None:
        fakes[1].broken_writes = True

    def body(rank: MachineRank) -> list[str]:
        both_verbs(rank, 3, torch.float32)
        return rank.exchange.describe()

    reasons, _ = on_machines(random_world(3, 4, "random-1"), MACHINES["3+1"], body, prepare=prepare)
    assert reasons[0][1].startswith("host memory: their devices cannot reach each other (what it wrote")
    assert reasons[0][2] == "device memory: each writes into the other's by raw addresses"
    assert reasons[0][3].startswith("network: NCCL, from device to device (they share no memory")


def test_machines_that_exchange_nothing_need_no_network() -> None:
    """As with vertices that are copied to every machine."""
    world = make_world([(0, 1), (1, 0), (2, 3), (3, 2)], [0, 1, 2, 3], 4)

    def body(rank: MachineRank) -> tuple[str, str]:
        both_verbs(rank, 3, torch.float32)
        return type(rank.exchange).__name__, rank.exchange.describe()[3 - rank.rank]

    results, backends = on_machines(world, MACHINES["2x2"], body)
    assert [kind for kind, _ in results] == ["DeviceExchange"] * 4
    assert results[0][1].startswith("network, not used: no rows travel between machines")
    assert backends == {}


def test_a_captured_call_counts_on_when_it_is_replayed() -> None:
    world = random_world(3, 4, "random-1")
    held = np.zeros(60)
    for program in world.programs:
        held[np.concatenate([program.owned_ids, program.halo_ids])] += 1

    def body(rank: MachineRank) -> None:
        both_verbs(rank, 4, torch.float32, 2)
        rank.control.barrier()
        source = rank.owned(4)
        rank.fake.memory.add(source.data_ptr(), source.nbytes, None)
        rank.fake.begin_capture(rank.stream)
        out = rank.exchange.expand(source)
        folded = rank.exchange.fold(out)
        graph = rank.fake.end_capture(rank.stream)
        times = torch.from_numpy(held[rank.program.owned_ids]).float()[:, None]
        for seed in (3, 4):
            source.copy_(rank.owned(4, seed=seed))
            rank.fake.replay(graph, rank.stream)
            rank.wait()
            rank.fake.drain()
            assert torch.equal(out, rank.expanded(4, seed=seed))
            assert torch.equal(folded, rank.owned(4, seed=seed) * times)
            both_verbs(rank, 4, torch.float32, 1)

    on_machines(world, MACHINES["2x2"], body)


# What goes wrong.


def failing(rank: MachineRank, call: Any) -> tuple[type[BaseException], str]:
    """How a rank hears of it; and after that nothing runs any more."""
    with pytest.raises(CommError) as caught:  # noqa: PT012
        call()
        rank.wait()
        for _ in range(400):  # a rank that was not in need of the others hears of it a little later
            time.sleep(0.02)
            rank.exchange.check_usable()
    rank.fake.drain()
    return caught.type, str(caught.value)


@pytest.mark.parametrize("layout", ["2x2", "4x1"])
@pytest.mark.parametrize("different", ["verb", "width", "dtype"])
def test_different_calls_are_told_before_rows_are_sent(different: str, layout: str) -> None:
    """A message that met a place of another size would be an error on the device."""
    hub = Hub()

    def body(rank: MachineRank) -> Any:
        both_verbs(rank, 3, torch.float32, 1)
        rank.control.barrier()
        if rank.rank != 3:
            return failing(rank, lambda: rank.exchange.expand(rank.owned(3)))
        if different == "verb":
            return failing(rank, lambda: rank.exchange.fold(rank.local(3)))
        if different == "width":
            return failing(rank, lambda: rank.exchange.expand(rank.owned(4)))
        return failing(rank, lambda: rank.exchange.expand(rank.owned(3, torch.int32)))

    world = random_world(3, 4, "direct")
    results, backends = on_machines(world, MACHINES[layout], body, hub=hub, timeout=10.0)
    assert DisagreementError in {kind for kind, _ in results}
    assert all("ranks make different calls" in text for _, text in results), results
    assert all(backend.aborted for backend in backends.values())


@pytest.mark.slow
def test_a_rank_that_makes_no_call_is_named() -> None:
    told = threading.Semaphore(0)

    def body(rank: MachineRank) -> Any:
        both_verbs(rank, 3, torch.float32, 1)
        rank.control.barrier()
        if rank.rank == 1:
            assert all(told.acquire(timeout=60) for _ in range(2))
            return failing(rank, lambda: None)
        try:
            return failing(rank, lambda: rank.exchange.expand(rank.owned(3)))
        finally:
            told.release()

    results, _ = on_machines(random_world(3, 3, "direct"), (0, 0, 1), body, timeout=2.0)
    assert {kind for kind, _ in results} == {CommTimeoutError}
    assert all("rank 1" in text for _, text in results)
    assert any("(it has not begun this call)" in text for _, text in results)


def test_an_error_of_one_rank_reaches_other_machines() -> None:
    def body(rank: MachineRank) -> Any:
        both_verbs(rank, 3, torch.float32, 1)
        rank.control.barrier()
        if rank.rank == 0:
            rank.exchange.fail(CommError("rank 0: the loss is not finite"))
            return None
        return failing(rank, lambda: rank.exchange.expand(rank.owned(3)))

    results, _ = on_machines(random_world(3, 4, "line"), MACHINES["2x2"], body)
    assert all("the loss is not finite" in text for _, text in results[1:])


def test_a_rank_that_leaves_is_named() -> None:
    def body(rank: MachineRank) -> Any:
        both_verbs(rank, 3, torch.float32, 1)
        rank.control.barrier()
        if rank.rank == 1:
            rank.close()
            return None
        return failing(rank, lambda: rank.exchange.expand(rank.owned(3)))

    results, _ = on_machines(PAIR, (0, 1), body, timeout=10.0)
    assert results[0][0] is PeerLostError
    assert "rank 1 has closed its communicator, and stage 0: " in results[0][1]


def test_a_rank_may_leave_before_its_rows_have_arrived() -> None:
    """Its partner is told that it has left, and waits for what it has sent all the same."""

    def body(rank: MachineRank) -> bool:
        both_verbs(rank, 3, torch.float32, 1)
        rank.control.barrier()
        out = rank.exchange.expand(rank.owned(3, seed=1))
        if rank.rank == 1:
            rank.close()
            return True
        network = rank.exchange._network
        end = time.monotonic() + 10
        while network.stand_in(1).state == 0 and time.monotonic() < end:
            time.sleep(0.01)
        assert network.gone(1, rank.exchange._call) is None
        assert network.gone(1, rank.exchange._call + 1) == "has closed its communicator"
        rank.wait()
        return torch.equal(out, rank.expanded(3, seed=1))

    results, _ = on_machines(PAIR, (0, 1), body)
    assert results == [True, True]


def test_rows_of_a_stopped_rank_are_not_taken_for_arrived() -> None:
    """Rank 0 disagrees with its neighbour 1 alone; rank 2 must not believe what would come from it."""
    # Only 0 and 1 need each other both ways; rank 2 reads from rank 0, and nobody reads from rank 2.
    world = make_world([(0, 1), (1, 0), (0, 2)], [0, 1, 2], 3)

    def body(rank: MachineRank) -> Any:
        both_verbs(rank, 3, torch.float32, 1)
        rank.control.barrier()
        width = 4 if rank.rank == 1 else 3
        return failing(rank, lambda: rank.exchange.expand(rank.owned(width)))

    results, _ = on_machines(world, (0, 0, 1), body, timeout=10.0)
    assert all("ranks make different calls" in text for _, text in results), results


# What set-up finds out.


@pytest.mark.parametrize("trouble", ["lost", "spoiled", "refused", "not-built", "one-device", "asked"])
def test_where_nccl_does_not_work_rows_go_through_the_hosts(
    trouble: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dgcl")
    monkeypatch.setattr("dgcl.transport.cuda.nccl._CONNECTING", 1.0)
    hub = Hub(lose={(0, 1)} if trouble == "lost" else set(), spoil=trouble == "spoiled")
    hub.refuses = 0 if trouble == "refused" else -1
    if trouble == "not-built":
        monkeypatch.setattr(
            "dgcl.transport.cuda.nccl._hindrance", lambda control: "this torch is built without NCCL"
        )

    def prepare(fakes: list[FakeCuda]) -> None:
        if trouble == "one-device":
            fakes[1].number = fakes[0].number

    def body(rank: MachineRank) -> str:
        assert isinstance(rank.exchange, HostExchange)
        both_verbs(rank, 3, torch.float32)
        return rank.exchange.describe()[1 - rank.rank]

    channel = "gloo" if trouble == "asked" else "auto"
    results, _ = on_machines(PAIR, (0, 1), body, hub=hub, prepare=prepare, channel=channel)
    why = {
        "lost": "no message has come within 1 s",
        "spoiled": "has not arrived as it was",
        "refused": "rank 0: no GPUs found!",
        "not-built": "built without NCCL",
        "one-device": "some share one",
        "asked": "asked for",
    }[trouble]
    assert all("through the hosts" in reason and why in reason for reason in results), results
    assert why in caplog.text


def test_a_group_that_is_refused_is_closed() -> None:
    """NCCL counts open groups by thread: all that the user gives it there would wait for the end of one left open."""
    done: list[str] = []

    class Aborted:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> None:
                done.append(name)
                if name == "recv":
                    raise RuntimeError("NCCL communicator was aborted")

            return call

    def body(rank: MachineRank) -> None:
        message = Message(1, rank.device.driver.allocate(8), 8)
        with pytest.raises(CommError, match="was aborted"):
            NcclChannel(Aborted(), rank.device).group([message], [message], 0)

    on_machines(PAIR, (0, 1), lambda rank: body(rank) if rank.rank == 0 else None)
    assert done == ["_start_coalescing", "send", "recv", "_end_coalescing"]


def test_nccl_that_was_asked_for_is_tried_where_ranks_share_a_device() -> None:
    """And carries all rows, also within a machine."""

    def prepare(fakes: list[FakeCuda]) -> None:
        for fake in fakes:
            fake.number = fakes[0].number

    def body(rank: MachineRank) -> str:
        both_verbs(rank, 3, torch.float32)
        return rank.exchange.describe()[1 - rank.rank]

    reasons, _ = on_machines(PAIR, (0, 0), body, prepare=prepare, channel="nccl")
    assert reasons == ["network: NCCL, from device to device (asked for)"] * 2


def test_nccl_that_was_asked_for_must_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dgcl.transport.cuda.nccl._hindrance", lambda control: "this torch is built without NCCL"
    )
    with pytest.raises(CommError, match='channel="nccl" cannot be had: this torch is built without NCCL'):
        on_machines(PAIR, (0, 1), lambda rank: None, channel="nccl")


def test_where_the_rest_of_set_up_fails_the_wire_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    channels: list[Any] = []

    def refuse(self: Any, *given: Any) -> None:
        channels.append(given[4].messages)  # the network
        raise MemoryError("no room on the device")

    monkeypatch.setattr(DeviceExchange, "__init__", refuse)
    with pytest.raises(MemoryError, match="no room on the device"):
        on_machines(PAIR, (0, 1), lambda rank: None)
    assert len(channels) == 2
    assert all(channel._group.aborted for channel in channels)

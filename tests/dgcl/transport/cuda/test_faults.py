"""What goes wrong between ranks on devices: every rank hears of it by name, in time, and every stream runs dry."""

import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.kernels.cuda_driver import CudaError
from dgcl.ranks.context import context
from tests.support.fake_cuda import FakeCuda, Memory
from tests.support.fake_ranks import Rank, on_devices
from tests.support.plans import World, make_world, random_world
from tests.support.processes import Ranks, describe

pytestmark = pytest.mark.xdist_group("alone")

LINE = random_world(3, 3, "line")
PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)


def warm(rank: Rank):
    rank.exchange.fold(rank.exchange.expand(rank.owned(3)))
    rank.wait()
    rank.control.barrier()


def failing(rank: Rank, call: Callable[[], object] | None = None) -> tuple[type[BaseException], str]:
    """How a rank hears of it, in a call or where it waits for its end; and after that nothing runs any more."""
    with pytest.raises(CommError) as caught:  # noqa: PT012
        (call or (lambda: rank.exchange.expand(rank.owned(3))))()
        rank.wait()
    rank.fake.drain()
    with pytest.raises(type(caught.value), match="unusable since an earlier call failed"):
        rank.exchange.fold(rank.local(3))
    return caught.type, str(caught.value)


def test_a_rank_that_makes_no_call_is_named():
    told = threading.Semaphore(0)

    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 2:
            assert all(told.acquire(timeout=60) for _ in range(2))
            failing(rank)
            return None
        rank.hurry(1.0)
        kind, text = failing(rank)
        told.release()
        return kind, text

    results, _ = on_devices(LINE, body)
    assert [kind for kind, _ in results[:2]] == [CommTimeoutError] * 2
    texts = [text for _, text in results[:2]]
    assert any("waited 1 s in vain: stage" in text for text in texts)
    assert all("missing from rank 2 (it has not begun this call)" in text for text in texts)


def test_a_device_that_does_not_get_on_is_named_with_what_is_missing():
    """All hosts have made the call, but one device never begins it: the other waits in a kernel."""

    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 1:
            rank.fake.frozen.set()
        rank.control.barrier()
        rank.exchange.expand(rank.owned(3))
        rank.control.barrier()
        if rank.rank == 0:
            rank.hurry(1.0)
        while rank.exchange.failure is None:
            time.sleep(0.01)
        rank.control.barrier()
        rank.fake.frozen.clear()
        rank.fake.drain()
        return str(rank.exchange.failure)

    results, _ = on_devices(PAIR, body, shared=False)
    for text in results:
        assert text.startswith("rank 0, expand (call 3): waited 1 s in vain: stage 0: ")
        assert "rank 1" in text


def told_of_the_last(world: World, act: Callable[[Rank], object], shared: bool = True) -> list[Any]:
    """How all ranks hear of what the last one does."""

    def body(rank: Rank) -> Any:
        warm(rank)
        return failing(rank) if rank.rank < world.world_size - 1 else act(rank)

    return on_devices(world, body, shared=shared)[0][:-1]


@pytest.mark.slow
def test_a_slow_rank_is_no_failure():
    """Every stage takes less than the timeout, the whole more."""

    def body(rank: Rank):
        warm(rank)
        rank.hurry(7.0)
        for step in range(4):
            time.sleep(2.0 * (rank.rank == 1))
            out = rank.exchange.expand(rank.owned(3, seed=step))
        rank.wait()
        assert torch.equal(out, rank.expanded(3, seed=3))

    on_devices(LINE, body)


@pytest.mark.parametrize("different", ["verb", "width", "dtype"])
def test_different_calls_are_told_from_each_other(different: str):
    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 0:
            return failing(rank)
        if different == "verb":
            return failing(rank, lambda: rank.exchange.fold(rank.local(3)))
        if different == "width":
            return failing(rank, lambda: rank.exchange.expand(rank.owned(4)))
        return failing(rank, lambda: rank.exchange.expand(rank.owned(3, torch.int32)))

    results, _ = on_devices(PAIR, body)
    assert [kind for kind, _ in results] == [DisagreementError] * 2
    assert all("ranks make different calls" in text for _, text in results)
    assert all("expand of rows of 12 bytes, torch.float32" in text for _, text in results)


def test_a_rank_that_leaves_is_named():
    ((kind, text),) = told_of_the_last(PAIR, lambda rank: rank.exchange.close())
    assert kind is PeerLostError
    assert "rank 1 has closed its communicator, and " in text


def test_a_rank_may_leave_when_its_part_is_enqueued():
    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 0:
            rank.fake.frozen.set()
        out = rank.exchange.expand(rank.owned(3, seed=1))
        if rank.rank == 1:
            rank.exchange.close()
        else:
            time.sleep(0.3)
            rank.fake.frozen.clear()
            rank.wait()
        return torch.equal(out, rank.expanded(3, seed=1))

    results, _ = on_devices(PAIR, body)
    assert results == [True, True]


def test_an_error_of_one_rank_stops_the_others():
    error = CommError("rank 2: the loss is not finite")
    for rank, (kind, text) in enumerate(told_of_the_last(LINE, lambda rank: rank.exchange.fail(error))):
        assert kind is CommError
        assert text.startswith(f"rank {rank}")
        assert "the loss is not finite" in text


def test_a_driver_that_refuses_a_launch_is_an_error_of_all():
    def refuse(rank: Rank):
        rank.fake.refused["cuLaunchKernel"] = 719
        with pytest.raises(CudaError, match=r"operation 1 \(begin\).*\(719\)"):
            rank.exchange.expand(rank.owned(3))

    ((_, text),) = told_of_the_last(PAIR, refuse, shared=False)
    assert "rank 1: a call could not be enqueued: operation 1 (begin)" in text


def test_a_call_that_is_interrupted_after_all_agreed_is_an_error_of_all():
    def interrupted(stream: int):
        raise KeyboardInterrupt

    def interrupt(rank: Rank):
        rank.exchange._follow = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            rank.exchange.expand(rank.owned(3))

    ((_, text),) = told_of_the_last(PAIR, interrupt, shared=False)
    assert "rank 1: a call could not be enqueued: KeyboardInterrupt" in text


def test_a_closed_communicator_says_so():
    def body(rank: Rank):
        rank.exchange.close()
        rank.exchange.close()
        with pytest.raises(ValueError, match="this communicator is closed"):
            rank.exchange.expand(rank.owned(3))

    on_devices(PAIR, body)


@pytest.mark.parametrize("what", ["leaves", "fails", "makes-no-call"])
def test_a_host_that_is_far_ahead_hears_of_a_peer(what: str):
    """2,000 calls in a row: no more than 32 are ever in the driver's queue, and the error comes all the same."""
    told = threading.Event()

    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 1:
            for step in range(3):
                rank.exchange.expand(rank.owned(3, seed=step))
            if what == "leaves":
                rank.exchange.close()
            elif what == "fails":
                rank.exchange.fail(CommError("rank 1: the loss is not finite"))
            else:
                assert told.wait(60)
            return None
        made = 0
        if what == "makes-no-call":
            rank.hurry(1.0)
        with pytest.raises(CommError) as caught:  # noqa: PT012
            while made < 2000:
                rank.exchange.expand(rank.owned(3, seed=made))
                made += 1
        told.set()
        rank.fake.drain()
        return made, caught.type, rank.fake.most_work

    results, _ = on_devices(PAIR, body, shared=False)
    made, kind, most_work = results[0]
    wanted = {"leaves": PeerLostError, "fails": CommError, "makes-no-call": CommTimeoutError}
    assert kind is wanted[what]
    assert made <= 3 + 32
    assert most_work <= 512


def test_the_queue_of_a_fast_host_stays_short(monkeypatch):
    monkeypatch.setattr("dgcl.transport.cuda.device_exchange.MOST_CALLS", 4)

    def body(rank: Rank) -> int:
        out = rank.owned(1)
        for step in range(200):
            out = rank.exchange.expand(rank.owned(1, seed=step))
        rank.wait()
        assert torch.equal(out, rank.expanded(1, seed=199))
        return rank.fake.most_work

    results, _ = on_devices(PAIR, body, shared=False)
    assert max(results) <= 5 * 12


def test_the_end_of_a_process_waits_until_peers_have_unmapped_its_memory():
    unmapped = threading.Event()

    def body(rank: Rank):
        warm(rank)
        if rank.rank == 1:
            with rank.exchange._watchdog.enqueuing:  # in which it may use what it has mapped
                rank.control.barrier()
                time.sleep(0.3)
                assert not rank.exchange._connections.peers[0].is_closed
                unmapped.set()
            rank.control.barrier()
        else:
            rank.control.barrier()
            rank.exchange._watchdog.leave_at_exit()
            assert unmapped.is_set()
            assert rank.exchange._connections.peers[1].has_left(0)
            rank.control.barrier()

    on_devices(PAIR, body, shared=False)


FACTS = {
    "compute-mode": r"rank 1: the compute mode of its GPU is exclusive to a process",
    "part-of-a-gpu": r"rank 1: its GPU is a part of one \(MIG\)",
    "frozen": r"rank 1: the device has not done what set-up needs within 2 s",
    "old-driver": r"rank 1: the driver cannot lock memory .*: cuMemHostAlloc: .*too old for it \(500\)",
}


@pytest.mark.parametrize("fact", FACTS)
def test_what_set_up_cannot_use_is_named_on_every_rank(fact: str, monkeypatch):
    if fact == "frozen":
        monkeypatch.setattr("dgcl.transport.cuda.device_tables.SECONDS", 2.0)

    def prepare(fakes: list[FakeCuda]):
        fakes[1].mode = 3 if fact == "compute-mode" else 0
        fakes[1].name = "NVIDIA A100 MIG 1g.5gb" if fact == "part-of-a-gpu" else fakes[1].name
        if fact == "frozen":
            fakes[1].frozen.set()
        if fact == "old-driver":
            fakes[1].missing.add("cuMemHostAlloc")

    with pytest.raises(CommError, match=FACTS[fact]) as caught:
        on_devices(PAIR, warm, shared=False, prepare=prepare)
    notes = caught.value.__notes__
    assert notes[0].startswith("raised on rank ")
    assert "CommError: rank 1: " in notes[1]


def test_launches_that_block_are_named(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(CommError, match="CUDA_LAUNCH_BLOCKING=1 lets launches return only when"):
        on_devices(PAIR, warm, shared=False)


# Processes: memory by handles, and ranks that die.


def train(channel: Connection, world: World, timeout: float):
    memory = Memory()
    fake = FakeCuda(memory, context.require_control().rank, uuid=7)
    rank = Rank(world, fake, timeout)
    steps = 0
    try:
        while True:
            out = rank.exchange.expand(rank.owned(3, seed=steps))
            folded = rank.exchange.fold(rank.local(3, seed=steps))
            rank.wait()
            if fake.errors:
                raise fake.errors[0]
            assert torch.equal(out, rank.expanded(3, seed=steps)), f"expand in step {steps}"
            assert torch.equal(folded, rank.folded(3, seed=steps)), f"fold in step {steps}"
            steps += 1
            if steps == 5:
                channel.send("under way")
    except CommError as error:
        channel.send(describe(error))
    channel.recv()


@pytest.mark.slow
def test_processes_exchange_by_handles_and_notice_a_death():
    with Ranks(3, train, LINE, 60.0) as ranks:
        assert set(ranks.told().values()) == {"under way"}
        ranks.signal(2, signal.SIGKILL)
        for rank, (kind, text, _) in ranks.told([0, 1]).items():
            assert kind == "PeerLostError", text
            assert "rank 2 has died" in text
            assert f"rank {rank}" in text

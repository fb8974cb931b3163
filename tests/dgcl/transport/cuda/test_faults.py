"""What goes wrong between ranks on devices: every rank hears of it by name, in time, and every stream runs dry."""

from __future__ import annotations

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
from tests.dgcl.support_plans import World, make_world, random_world
from tests.dgcl.support_processes import Ranks, describe
from tests.dgcl.transport.cuda.fake_cuda import FakeCuda, Memory
from tests.dgcl.transport.cuda.fake_ranks import Rank, on_devices

pytestmark = pytest.mark.xdist_group("alone")

LINE = random_world(3, 3, "line")
PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)
SOON = 30.0


def warm(rank: Rank) -> None:
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


@pytest.mark.parametrize(
    "memory_operations",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["waits-of-streams", "kernels-alone"],
)
def test_a_rank_that_makes_no_call_is_named(memory_operations: bool) -> None:
    told = threading.Semaphore(0)

    def prepare(fakes: list[FakeCuda]) -> None:
        fakes[0].memory_operations = memory_operations

    def body(rank: Rank) -> Any:
        rank.exchange._stream_waits = memory_operations  # as if another process were on the device
        warm(rank)
        start = time.monotonic()
        if rank.rank == 2:
            assert all(told.acquire(timeout=60) for _ in range(2))
            failing(rank)
            return None
        kind, text = failing(rank)
        told.release()
        return kind, text, time.monotonic() - start

    world = random_world(3, 3, "direct")  # where everyone needs everyone
    results, _ = on_devices(world, body, timeout=2.0, prepare=prepare)
    kinds = [kind for kind, _, _ in results[:2]]
    assert kinds == [CommTimeoutError] * 2
    texts = [text for _, text, _ in results[:2]]
    assert any("waited 2 s in vain: stage" in text for text in texts)
    assert all("missing from rank 2 (it has not begun this call)" in text for text in texts)
    assert all(1.8 < seconds < SOON for _, _, seconds in results[:2])


@pytest.mark.slow
def test_a_driver_that_waits_for_kernels_does_not_keep_them_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """Functions of the driver that wait for all kernels, as some do, keep the watchdog from looking."""
    told = threading.Event()

    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 1:
            assert told.wait(60)
            failing(rank)
            return None
        rank.exchange.expand(rank.owned(3))
        rank.fake.held = True
        with pytest.raises(CommTimeoutError) as caught:  # noqa: PT012
            rank.wait()
            rank.exchange.expand(rank.owned(3))
        told.set()
        rank.fake.drain()
        return str(caught.value)

    results, _ = on_devices(PAIR, body, shared=False, timeout=1.0)
    # Which it is depends on how soon the device answers once it was stopped.
    assert any(words in results[0] for words in ("1 s in vain", "not got on for 1 s", "not answer for 1 s"))
    assert "rank 0: the driver has kept its watchdog waiting" in caplog.text


def test_streams_that_cannot_wait_leave_it_to_kernels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dgcl")

    def prepare(fakes: list[FakeCuda]) -> None:
        fakes[1].refused["cuStreamWaitValue64_v2"] = 801

    def body(rank: Rank) -> None:
        assert rank.device.waits_in_streams == (rank.rank == 0)
        warm(rank)

    on_devices(PAIR, body, shared=False, prepare=prepare)
    assert "rank 1: kernels wait for flags, because streams cannot: operation 0 (wait)" in caplog.text


@pytest.mark.slow
def test_a_slow_rank_is_no_failure() -> None:
    """Every stage takes less than the timeout, the whole more."""

    def body(rank: Rank) -> None:
        warm(rank)
        for step in range(4):
            time.sleep(0.8 * (rank.rank == 1))
            out = rank.exchange.expand(rank.owned(3, seed=step))
        rank.wait()
        assert torch.equal(out, rank.expanded(3, seed=3))

    on_devices(LINE, body, timeout=2.5)


@pytest.mark.parametrize("different", ["verb", "width", "dtype"])
def test_different_calls_are_told_from_each_other(different: str) -> None:
    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 0:
            return failing(rank)
        if different == "verb":
            return failing(rank, lambda: rank.exchange.fold(rank.local(3)))
        if different == "width":
            return failing(rank, lambda: rank.exchange.expand(rank.owned(4)))
        return failing(rank, lambda: rank.exchange.expand(rank.owned(3, torch.int32)))

    results, _ = on_devices(PAIR, body, shared=False, timeout=10.0)
    assert [kind for kind, _ in results] == [DisagreementError] * 2
    assert all("ranks make different calls" in text for _, text in results)
    assert all("expand of rows of 12 bytes, torch.float32" in text for _, text in results)


def test_a_rank_that_leaves_is_named() -> None:
    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 1:
            rank.exchange.close()
            return None
        return failing(rank)

    results, _ = on_devices(PAIR, body, timeout=10.0)
    assert results[0][0] is PeerLostError
    assert "rank 1 has closed its communicator, and stage 0: " in results[0][1]


def test_a_rank_may_leave_when_its_part_is_enqueued() -> None:
    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 0:
            time.sleep(0.1)
        out = rank.exchange.expand(rank.owned(3, seed=1))
        if rank.rank == 1:
            rank.exchange.close()
            return torch.equal(out, rank.expanded(3, seed=1))
        rank.wait()
        return torch.equal(out, rank.expanded(3, seed=1))

    results, _ = on_devices(PAIR, body)
    assert results == [True, True]


def test_an_error_of_one_rank_stops_the_others() -> None:
    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 2:
            rank.exchange.fail(CommError("rank 2: the loss is not finite"))
            return None
        return failing(rank)

    results, _ = on_devices(LINE, body)
    for rank, (kind, text) in enumerate(results[:2]):
        assert kind is CommError
        assert f"rank {rank} stops because rank" in text
        assert "the loss is not finite" in text


def test_a_driver_that_refuses_a_launch_is_an_error_of_all() -> None:
    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 1:
            rank.fake.refused["cuLaunchKernel"] = 719
            with pytest.raises(CudaError, match=r"operation 1 \(begin\).*\(719\)"):
                rank.exchange.expand(rank.owned(3))
            return None
        return failing(rank)

    results, _ = on_devices(PAIR, body, shared=False)
    assert "rank 0 stops because rank 1 reports: rank 1: a call could not be enqueued" in results[0][1]


def test_a_device_that_stands_still_is_late() -> None:
    def body(rank: Rank) -> Any:
        warm(rank)
        if rank.rank == 1:
            rank.control.barrier()
            return None
        rank.exchange.expand(rank.owned(3))
        time.sleep(0.2)
        rank.fake.frozen.set()  # not even a copy is made
        end = time.monotonic() + 10
        while rank.exchange._watchdog.failure is None and time.monotonic() < end:
            time.sleep(0.01)
        rank.fake.frozen.clear()
        rank.control.barrier()
        return str(rank.exchange._watchdog.failure)

    results, _ = on_devices(PAIR, body, shared=False, timeout=1.0)
    assert "the device has not got on for 1 s" in results[0]


def test_a_closed_communicator_says_so() -> None:
    def body(rank: Rank) -> None:
        rank.exchange.close()
        rank.exchange.close()
        with pytest.raises(ValueError, match="this communicator is closed"):
            rank.exchange.expand(rank.owned(3))

    on_devices(PAIR, body)


@pytest.mark.parametrize("what", ["leaves", "fails", "makes-no-call"])
def test_a_host_that_is_far_ahead_hears_of_a_peer(what: str) -> None:
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
        with pytest.raises(CommError) as caught:  # noqa: PT012
            while made < 2000:
                rank.exchange.expand(rank.owned(3, seed=made))
                made += 1
        told.set()
        rank.fake.drain()
        return made, caught.type, rank.fake.most_work

    results, _ = on_devices(PAIR, body, shared=False, timeout=1.0)
    made, kind, most_work = results[0]
    wanted = {"leaves": PeerLostError, "fails": CommError, "makes-no-call": CommTimeoutError}
    assert kind is wanted[what]
    assert made <= 3 + 32
    assert most_work <= 512


def test_the_queue_of_a_fast_host_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgcl.transport.cuda.run_ahead.MOST_CALLS", 4)

    def body(rank: Rank) -> int:
        out = rank.owned(1)
        for step in range(200):
            out = rank.exchange.expand(rank.owned(1, seed=step))
        rank.wait()
        assert torch.equal(out, rank.expanded(1, seed=199))
        return rank.fake.most_work

    results, _ = on_devices(PAIR, body, shared=False)
    assert max(results) <= 5 * 12


@pytest.mark.parametrize("cause", ["launches-block", "one-queue", "named"])
def test_what_keeps_kernels_from_running_side_by_side_is_named(
    cause: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dgcl")
    monkeypatch.setattr("dgcl.transport.cuda.concurrency._SECONDS", 0.3)
    if cause != "one-queue":
        monkeypatch.setenv(
            "CUDA_LAUNCH_BLOCKING" if cause == "launches-block" else "CUDA_DEVICE_MAX_CONNECTIONS", "1"
        )

    def prepare(fakes: list[FakeCuda]) -> None:
        fakes[1].blocking = cause == "launches-block"
        fakes[1].queues = "one" if cause == "one-queue" else "streams"

    if cause == "launches-block":
        with pytest.raises(
            CommError, match=r"rank 1: launches of kernels return only when .*LAUNCH_BLOCKING=1"
        ):
            on_devices(PAIR, warm, shared=False, prepare=prepare)
        return
    on_devices(PAIR, warm, shared=False, prepare=prepare)
    told = {
        "one-queue": "rank 1: kernels of different streams run one after the other (a profiler?)",
        "named": "rank 1: streams share one queue (CUDA_DEVICE_MAX_CONNECTIONS=1)",
    }
    assert told[cause] in caplog.text


# Processes: memory by handles, and ranks that die.


def train(channel: Connection, world: World, timeout: float) -> None:
    memory = Memory()
    fake = FakeCuda(memory, context.require_control().rank, uuid=7)
    rank = Rank(world, fake, timeout)
    channel.send(rank.exchange._stream_waits)
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
def test_processes_exchange_by_handles_and_notice_a_death() -> None:
    with Ranks(3, train, LINE, 60.0) as ranks:
        assert set(ranks.told().values()) == {True}, "streams do not wait, though processes share a device"
        assert set(ranks.told().values()) == {"under way"}
        killed = ranks.signal(2, signal.SIGKILL)
        for rank, (kind, text, when) in ranks.told([0, 1]).items():
            assert kind == "PeerLostError", text
            assert "rank 2 has died" in text
            assert f"rank {rank}" in text
            assert when - killed < SOON

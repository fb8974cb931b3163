"""Rows of devices that go through their hosts: down, along the plan, and up again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.errors import CommError
from dgcl.kernels.cuda_driver import CudaError
from dgcl.ranks.context import context
from dgcl.transport.cuda import connect_device
from dgcl.transport.cuda.through_host import HostExchange
from dgcl.transport.shared_memory import Runtime
from tests.dgcl.support_plans import World, make_world, random_world
from tests.dgcl.transport.cuda.fake_cuda import FakeCuda, Memory, _contexts
from tests.dgcl.transport.cuda.fake_ranks import Rank, on_stream, open_fake
from tests.dgcl.transport.cuda.host_ranks import exchange_by_network

PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)


class HostRank(Rank):
    """A rank whose exchange is the one through the host, between threads that do share memory."""

    def __init__(self, world: World, fake: FakeCuda) -> None:
        control = context.require_control()
        self.world, self.fake, self.control = world, fake, control
        self.program, self.rank = world.programs[control.rank], control.rank
        self.device = open_fake(fake)
        self.stream = _contexts.stream
        self.runtime = Runtime({"halo": self.program}, control, 20.0)
        self.exchange: Any = HostExchange({"halo": self.program}, control, self.device, self.runtime)


@pytest.fixture
def fakes() -> Iterator[list[FakeCuda]]:
    memory = Memory()
    found = [FakeCuda(memory, seed) for seed in range(3)]
    yield found
    for fake in found:
        fake.stop()
    assert not [fake.errors for fake in found if fake.errors]


def test_copies_up_on_any_stream_are_waited_for_before_their_memory_goes(fakes: list[FakeCuda]) -> None:
    gate = threading.Event()

    def body(rank: HostRank) -> torch.Tensor:
        side = rank.device.driver.create_stream()
        rank.fake._streams[side].put(lambda: None, gate.is_set)
        opening = threading.Timer(0.2, gate.set)
        opening.start()
        with on_stream(side):
            # The copy down would wait for the gate: only what goes up is on this stream.
            block = rank.runtime.allocate(64)
            out = rank.exchange._copy_up(block, (16,), torch.float32, side)
        rank.exchange.close()
        assert gate.is_set(), "closed while a copy still reads the host's memory"
        return out

    on_hosts(PAIR, fakes, body)


def on_hosts(world: World, fakes: list[FakeCuda], function: Callable[[HostRank], Any]) -> list[Any]:
    def run() -> Any:
        rank = HostRank(world, fakes[context.require_control().rank])
        try:
            result = function(rank)
            rank.fake.drain()
            return result
        except BaseException as error:
            rank.exchange.fail(CommError(f"rank {rank.rank}: stopped by {error!r}"))
            raise
        finally:
            rank.exchange.close()
            rank.runtime.close()
            _contexts.current = 0

    return dgcl.launch(run, world.world_size, timeout=60.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8], ids=str)
def test_rows_go_down_along_the_plan_and_up_again(fakes: list[FakeCuda], dtype: torch.dtype) -> None:
    def body(rank: HostRank) -> None:
        for seed in range(4):
            expanded = rank.exchange.expand(rank.owned(5, dtype, seed))
            folded = rank.exchange.fold(rank.local(5, dtype, seed))
            rank.wait()
            assert torch.equal(expanded, rank.expanded(5, dtype, seed)), "expand"
            assert torch.equal(folded, rank.folded(5, dtype, seed)), "fold"
        assert rank.exchange.bytes_sent[0, 0].sum() == 4 * 5 * dtype.itemsize * rank.program.expand.rows_sent

    on_hosts(random_world(3, 3, "line"), fakes, body)


def test_blocks_of_the_host_are_not_reused_before_the_device_has_read_them(fakes: list[FakeCuda]) -> None:
    """Results of many calls are looked at only at the end; meanwhile memory goes round."""

    def body(rank: HostRank) -> None:
        found = [rank.exchange.expand(rank.owned(4, seed=seed)) for seed in range(12)]
        rank.wait()
        assert all(torch.equal(rows, rank.expanded(4, seed=seed)) for seed, rows in enumerate(found))
        for _ in range(12):
            rank.exchange.expand(rank.owned(4))
            rank.wait()
        assert len(rank.exchange._copying_up) <= 1, "blocks that the device has read are not given back"

    on_hosts(PAIR, fakes, body)


def test_memory_is_locked_once_and_unlocked_at_the_end(fakes: list[FakeCuda]) -> None:
    def body(rank: HostRank) -> int:
        for seed in range(3):
            rank.exchange.fold(rank.local(4, seed=seed))
        rank.wait()
        return len(rank.exchange._locked)

    assert all(count >= 1 for count in on_hosts(PAIR, fakes, body))
    left = [size for size, owner in fakes[0].memory._known.values() if owner is None and size > 1 << 16]
    assert left == [], "memory of the host stays locked"


def test_memory_that_cannot_be_locked_is_used_all_the_same(
    fakes: list[FakeCuda], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dgcl")
    fakes[0].refused["cuMemHostRegister_v2"] = 999

    # This driver copies from memory that is not locked, too, once it knows of it.
    def body(rank: HostRank) -> None:
        if rank.rank == 0:
            segment = rank.runtime.allocate(1 << 12).segment
            rank.fake.memory.add(segment.address, segment.size, None)
        expanded = rank.exchange.expand(rank.owned(4))
        rank.wait()
        assert torch.equal(expanded, rank.expanded(4))

    on_hosts(PAIR, fakes, body)
    assert "rank 0: the driver cannot lock memory of the host" in caplog.text


def test_a_capture_is_refused(fakes: list[FakeCuda]) -> None:
    def body(rank: HostRank) -> None:
        rank.fake.begin_capture(rank.stream)
        with pytest.raises(RuntimeError, match="through its host; such a call cannot be captured"):
            rank.exchange.expand(rank.owned(4))
        rank.fake.end_capture(rank.stream)

    on_hosts(PAIR, fakes, body)


def test_a_device_that_fails_is_an_error_of_all(fakes: list[FakeCuda]) -> None:
    fakes[1].refused["cuMemcpyDtoHAsync_v2"] = 700

    def body(rank: HostRank) -> str:
        with pytest.raises((CommError, CudaError)) as caught:
            rank.exchange.expand(rank.owned(4))
        return str(caught.value)

    told = on_hosts(PAIR, fakes, body)
    assert "rank 1 reports: rank 1: rows do not come down from the device: cuMemcpyDtoHAsync_v2" in told[0]
    assert told[1].startswith("cuMemcpyDtoHAsync_v2")


def test_ranks_that_share_memory_exchange_between_devices(fakes: list[FakeCuda]) -> None:
    def run() -> str:
        control = context.require_control()
        program = PAIR.programs[control.rank]
        device = open_fake(fakes[control.rank])
        runtime = Runtime({"halo": program}, control, 20.0)
        exchange = connect_device({"halo": program}, control, 20.0, device, runtime)
        assert exchange is not None
        try:
            return type(exchange).__name__
        finally:
            exchange.close()
            runtime.close()
            _contexts.current = 0

    assert dgcl.launch(run, 2) == ["DeviceExchange"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("nccl", [False, True], ids=["through-hosts", "gloo-as-nccl"])
def test_communicators_of_devices_work_over_the_network(nccl: bool, forked_ranks: None) -> None:
    generator = np.random.default_rng(1)
    edges, part = generator.integers(0, 30, (2, 120)), generator.integers(0, 2, 30)
    answers = dgcl.launch(exchange_by_network, 2, edges, part, nccl, ranks="processes", timeout=120.0)
    readers = [
        {int(part[v]) for u, v in edges.T if u == vertex} | {int(part[vertex])} for vertex in range(30)
    ]
    for rank, answer in enumerate(answers):
        assert answer["kind"] == ("DeviceExchange" if nccl else "HostExchange")
        # A proof each way; in both calls a greeting each way; in the one stage rows and a count each way.
        assert answer["messages"] == (2 + 2 * 2 + 2 * 4 if nccl else 0)
        words = (
            "network: NCCL, from device to device (asked for)" if nccl else "this torch is built without NCCL"
        )
        assert words in answer["described"]
        assert answer["expanded"]
        assert answer["folded"] == {
            vertex: float(vertex * len(readers[vertex])) for vertex in range(30) if part[vertex] == rank
        }
        assert answer["sent"][1 - rank] > 0

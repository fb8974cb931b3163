"""dgcl.ranks.rank_sums: every element added in rank order, and no more bytes than a reduce-scatter and an
all-gather."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import dgcl
from dgcl.errors import CommError, CommTimeoutError
from dgcl.ranks.context import context
from dgcl.ranks.device_sums import DeviceSums
from dgcl.ranks.enqueued import Enqueued
from dgcl.ranks.group_control import GroupControl
from dgcl.ranks.rank_sums import DIRECT_BYTES, all_reduce_sum
from tests.support.rank_pool import RankPool

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.complex64, torch.uint8)


def sums(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    control = context.require_control()
    generator = torch.Generator().manual_seed(control.rank)
    results = []
    for dtype in DTYPES:
        for shape in shapes:
            part = (20 * torch.randn(*shape, generator=generator)).to(dtype)
            total = all_reduce_sum(control, part.t())
            parts = control.exchange(part.clone())
            expected = parts[0].clone()
            for other in parts[1:]:
                expected += other
            assert total.dtype == dtype
            assert torch.equal(total, expected.t()), (dtype, shape)
            results.append(total)
    return results


SHAPES = [(50, 3), (5000, 3), (1, 20_001), (0, 3)]


@pytest.mark.parametrize("world_size", [1, 2, 4, 7])
def test_sums_have_the_same_bits_on_every_rank(world_size: int):
    first, *others = dgcl.launch(sums, world_size, SHAPES)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_sums_among_processes(rank_pool: Callable[[int], RankPool]):
    first, *others = rank_pool(3).run(sums, SHAPES)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def bytes_of_a_sum(num_bytes: int) -> int:
    control = context.require_control()
    assert isinstance(control, GroupControl)
    before = control.messages.bytes_received
    all_reduce_sum(control, torch.ones(num_bytes // 4))
    return control.messages.bytes_received - before


@pytest.mark.parametrize("num_bytes", [DIRECT_BYTES, DIRECT_BYTES + 4, 4 << 20])
def test_no_more_is_received_than_by_an_all_reduce(rank_pool: Callable[[int], RankPool], num_bytes: int):
    """2 (P - 1) / P of the tensor, and a few hundred bytes with each message; small ones from each rank whole."""
    size, most_with_a_message = 4, 800
    for received in rank_pool(size).run(bytes_of_a_sum, num_bytes):
        if num_bytes <= DIRECT_BYTES:
            needed, rounds = (size - 1) * num_bytes, 1
        else:
            needed, rounds = 2 * (size - 1) * num_bytes // size, 3
        assert needed - 4 * size <= received <= needed + rounds * (size - 1) * most_with_a_message


@pytest.mark.parametrize("length", [10, 5000])
def test_a_sum_is_of_the_values_at_the_call(length: int):
    """Threads read each other's memory: a rank that returns first may write to its tensor, and to the sum, at once."""

    def run():
        control = context.require_control()
        for step in range(200):
            tensor = torch.full((length,), float(control.rank + step))
            total = all_reduce_sum(control, tensor)
            tensor.fill_(-1e9)
            assert (total == 0 + 1 + 2 + 3 * step).all()
            total.fill_(1e9)

    dgcl.launch(run, 3)


@pytest.mark.parametrize("lengths", [(1, 2), (5000, 5001), (1, 5000)])
def test_sums_of_different_tensors_are_an_error(lengths: tuple[int, int]):
    def run():
        control = context.require_control()
        said = rf"ranks disagree: \({lengths[0]},\) torch.float32 on rank 0, \({lengths[1]},\) torch.float32 on rank 1"
        with pytest.raises(CommError, match=said):
            all_reduce_sum(control, torch.zeros(lengths[control.rank]))

    dgcl.launch(run, 2)


# Between devices, with Gloo in the part of NCCL, and host memory in that of GPUs.


class GlooAsNccl:
    """What :class:`~dgcl.ranks.device_sums.DeviceSums` uses of a backend; the groups end in the caller's time."""

    def __init__(self, store: Any, control: GroupControl, wrong: bool = False):
        self._group: Any = dist.ProcessGroupGloo(
            store, control.rank, control.world_size, timedelta(seconds=60)
        )
        self._wrong = wrong
        self.calls: list[str] = []

    def alltoall_base(self, to: torch.Tensor, given: torch.Tensor, *splits: list[int]) -> Any:
        self.calls.append("all to all")
        return self._group.alltoall_base(to, given, *splits)

    def _allgather_base(self, to: torch.Tensor, given: torch.Tensor) -> Any:
        self.calls.append("all-gather")
        return self._group._allgather_base(to, given + 1 if self._wrong else given)

    def abort(self):
        self.calls.append("abort")

    def shutdown(self):
        self.calls.append("shutdown")


def sums_on_devices(way: str) -> tuple[list[str], int, list[torch.Tensor]]:
    """Sums with a stand-in: what its backend was asked for, what came over the control plane, and the sums."""
    timeout = 60.0
    control = GroupControl(None, timeout)
    made: list[GlooAsNccl] = []

    def make(store: Any, control: GroupControl, device: torch.device) -> GlooAsNccl:
        if way == "one cannot" and control.rank == 1:
            raise RuntimeError("no NCCL here\nfor sure")
        made.append(GlooAsNccl(store, control, wrong=way == "wrong"))
        return made[0]

    with (
        patch("dgcl.ranks.device_sums.make_backend", make),
        patch.object(dist, "is_nccl_available", lambda: True),
        patch("dgcl.ranks.device_sums._CONNECTING", 2.0 if way == "one cannot" else 60.0),
        patch(
            "dgcl.ranks.rank_sums.gpu_of",
            lambda _: "" if way == "host" else f"GPU {0 if way == 'shared' else control.rank}",
        ),
    ):
        results, generator = [], torch.Generator().manual_seed(control.rank)
        for length in (5, 7001, 7001, 9000, 3):
            before = control.messages.bytes_received
            results.append(all_reduce_sum(control, torch.randn(length, 2, generator=generator).t()))
            if length == 9000:
                received = control.messages.bytes_received - before
        control.barrier()
    control.leave("is done")
    return (list(made[0].calls) if made else []), received, results


def test_devices_sum_in_the_same_order(rank_pool: Callable[[int], RankPool]):
    by_host, by_device = (rank_pool(3).run(sums_on_devices, way) for way in ("host", "device"))
    for (_, _, expected), (calls, received, found) in zip(by_host, by_device, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        assert calls == ["all to all", "all-gather"] * 5, (
            "one to prove it, and all after a large sum has opened it"
        )
        assert received < 4000, "rows went through the hosts"


@pytest.mark.parametrize("way", ["shared", "one cannot", "wrong"])
def test_where_nccl_does_not_work_sums_go_through_the_hosts(rank_pool: Callable[[int], RankPool], way: str):
    by_host, found = (rank_pool(3).run(sums_on_devices, each) for each in ("host", way))
    for (_, _, expected), (_, received, sums) in zip(by_host, found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, sums, strict=True))
        assert received > 4 * 9000 * 2


def lose_a_rank() -> str:
    control = GroupControl(None, 60.0)
    backend = GlooAsNccl(control.next_store("a test"), control)
    sums = DeviceSums(control, backend)
    if control.rank == 1:
        sums.enqueue(torch.ones(10))
        control.leave("was stopped by a test")
        return ""
    with pytest.raises(CommError, match="rank 1 was stopped by a test") as caught:
        sums.sum(control, torch.ones(10))
    while "abort" not in backend.calls:
        time.sleep(0.01)
    return type(caught.value).__name__


def test_a_rank_that_is_lost_in_a_sum_on_devices_is_named(rank_pool: Callable[[int], RankPool]):
    assert rank_pool(3).run(lose_a_rank) == ["PeerLostError", "", "PeerLostError"]


def test_a_sum_on_devices_that_does_not_end_is_given_up(rank_pool: Callable[[int], RankPool]):
    rank_pool(2).run(wait_in_vain)


def wait_in_vain():
    control = GroupControl(None, 60.0)
    backend = GlooAsNccl(control.next_store("a test"), control)
    with patch.object(control, "timeout", 0.1):
        sums = DeviceSums(control, backend)
    with patch("dgcl.ranks.enqueued.completion", lambda device: lambda: False):
        total = sums.sum(control, torch.ones(10))  # the host does not wait
    assert total.tolist() == [2.0] * 10
    while "abort" not in backend.calls:
        time.sleep(0.01)
    with pytest.raises(CommTimeoutError, match=r"has not ended on the device within 0\.1 s") as caught:
        sums.sum(control, torch.ones(10))
    assert caught.value is not sums._failure, "whose traceback would keep tensors"
    with patch("dgcl.ranks.enqueued.completion", lambda device: lambda: False):
        late = Enqueued(60.0, sums._check, sums._fail)
        late.add(torch.device("cpu"), "a sum")
    late.close(0.1)  # as at exit
    late._thread.join(60)
    assert not late._thread.is_alive()

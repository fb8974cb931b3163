"""What the network channel moves, counts and refuses, between processes of one host."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.communicator import Communicator
from dgcl.errors import ERROR_CODES
from dgcl.ranks.context import context
from dgcl.transport.network.job import SLICE_BYTES, Job, slices_of
from dgcl.transport.network.messages import error_of, failed_message, ready_message, words_of
from dgcl.transport.network.wire import NEWS, Wire
from tests.dgcl.rank_pool import RankPool
from tests.dgcl.support_plans import World, random_world
from tests.dgcl.support_ranks import folded, join, local_ids, random_bits, same_bits
from tests.samples import named

WORLD = random_world(3, 4, "line", num_edges=400)


def joined(world: World, timeout: float = 20.0) -> Communicator:
    return join(world.shares(), timeout, "network")


def move(shape: tuple[int, ...], dtype: torch.dtype) -> list[bool]:
    """Expand bit patterns, alternate with folds, and see what was counted."""
    comm = joined(WORLD)
    whole = random_bits((comm.num_nodes, *shape), dtype, seed=1)
    owned, held = whole[comm.owned_ids], whole[local_ids(comm)]
    good = [same_bits(comm.expand(owned), held)]
    if dtype in (torch.float64, torch.int64):
        rows = torch.arange(held.numel()).reshape(held.shape).to(dtype)
        good += [same_bits(comm.fold(rows), folded(comm, rows)), same_bits(comm.expand(owned), held)]
        pending = comm.expand_async(owned)
        good.append(same_bits(pending.wait(), held[comm.num_owned :]))
    row_bytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
    schedule = comm.exchanges["halo"].program.expand
    planned = np.bincount(schedule.send_peer, schedule.send_count.sum(axis=1), comm.world_size)
    times = 3 if len(good) > 1 else 1
    good.append(comm.bytes_sent["expand"].tolist() == (planned * row_bytes * times).astype(int).tolist())
    good.append(all("network" in line for line in comm.describe().splitlines()[1:]))
    comm.close()
    comm.close()
    return good


@named(
    "shape, dtype",
    {
        "scalars": ((), torch.float64),
        "bfloat16": ((7,), torch.bfloat16),
        "no bytes": ((0,), torch.float32),
        "integers": ((3, 5), torch.int64),
        "bool": ((1,), torch.bool),
        "many slices": ((20_000,), torch.float64),  # several slices of a few rows
        "long rows": ((SLICE_BYTES // 4 + 9,), torch.float32),  # a row is longer than a slice
    },
)
def test_rows_arrive_as_they_were_sent(
    shape: tuple[int, ...], dtype: torch.dtype, rank_pool: Callable[[int], RankPool]
) -> None:
    for rank, good in enumerate(rank_pool(4).run(move, shape, dtype)):
        assert all(good), (rank, good)


def repeat(calls: int) -> bool:
    """Many calls of changing width, back to back, of which some ranks are ahead of others: after rows of no bytes
    a rank may begin the next call before another has begun this one."""
    comm = joined(WORLD)
    good = True
    for call in range(calls):
        rows = torch.full((comm.num_owned, call % 3), float(call))
        good &= bool((comm.expand(rows) == call).all())
        counted = comm.fold(torch.ones(comm.num_local, call % 2))
        good &= bool((counted >= 1).all())
    comm.close()
    return good


def test_many_calls_in_a_row(rank_pool: Callable[[int], RankPool]) -> None:
    assert all(rank_pool(4).run(repeat, 60))


def on_part_of_the_group() -> list[Any]:
    """Ranks 1 to 3 of a world of four, in a group of their own."""
    import torch.distributed as dist

    group = dist.new_group([1, 2, 3], backend="gloo")
    if dist.get_rank() == 0:
        return []
    before = context.control
    dgcl.init(group)
    graph = torch.tensor([[0, 1, 2, 3, 4, 5], [3, 4, 5, 0, 1, 2]])
    comm = dgcl.build_comm_info(graph, "uniform", part=np.array([0, 0, 1, 1, 2, 2]), channel="network")
    rows = comm.expand(comm.owned_ids.double())
    total = torch.ones(1)
    dist.all_reduce(total, group=group)  # the user's group is as it was
    comm.close()
    dist.all_reduce(total, group=group)
    context.control = before
    return [rows.tolist(), torch.cat([comm.owned_ids, comm.halo_ids]).double().tolist(), total.item()]


def test_a_group_of_the_users(rank_pool: Callable[[int], RankPool]) -> None:
    said = rank_pool(4).run(on_part_of_the_group)
    for rows, ids, total in said[1:]:
        assert rows == ids
        assert total == 9.0


def again_and_again() -> list[bool]:
    """Communicators one after another, on a group of some ranks, of which one is in yet another group."""
    import torch.distributed as dist

    rank = dist.get_rank()
    group = dist.new_group([1, 2, 3], backend="gloo")
    if rank == 0:
        return []
    before = context.control
    alone = dist.new_group([1], backend="gloo", use_local_synchronization=True) if rank == 1 else None
    dgcl.init(group, timeout=20.0)
    good = []
    for _ in range(4):
        comm = dgcl.build_comm_info(
            torch.tensor([[0, 1, 2], [1, 2, 0]]), "uniform", part=np.arange(3), channel="network"
        )
        rows = comm.expand(comm.owned_ids.double())
        good.append(rows.tolist() == torch.cat([comm.owned_ids, comm.halo_ids]).double().tolist())
        comm.close()
    context.control = before
    if alone is not None:
        dist.destroy_process_group(alone)
    return good


def test_groups_of_the_users_one_after_another(rank_pool: Callable[[int], RankPool]) -> None:
    assert rank_pool(4).run(again_and_again) == [[], *[[True] * 4] * 3]


def test_threads_have_no_network() -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match='channel="network" needs ranks that are processes'):
        dgcl.launch(lambda: dgcl.build_comm_info(edges, "uniform", channel="network"), 2)


def test_a_channel_that_there_is_not() -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="channel must be one of auto, memory, network"):
        dgcl.launch(lambda: dgcl.build_comm_info(edges, "uniform", channel="pigeon"), 2)


@pytest.mark.parametrize("kind", ERROR_CODES)
@pytest.mark.parametrize("text", ["", "rank 1 is lost", "ä" * 2000])
def test_an_error_survives_its_message(kind: type[Exception], text: str) -> None:
    error = error_of(failed_message(kind(text)))
    assert type(error) is kind
    assert text.startswith(str(error))
    assert str(error) == text or len(str(error)) >= 499


def test_ready_messages() -> None:
    assert words_of(ready_message(2**40, -3))[1:] == (2**40, -3)


@pytest.mark.parametrize("row_bytes", [0, 1, 512, SLICE_BYTES, SLICE_BYTES + 1])
@pytest.mark.parametrize("count", [0, 1, 2047, 2048, 2049])
def test_slices_cover_a_portion_once(count: int, row_bytes: int) -> None:
    slices = slices_of(count, row_bytes)
    assert [row for begin, end in slices for row in range(begin, end)] == list(
        range(count if row_bytes else 0)
    )
    assert all(
        end > begin and ((end - begin) * row_bytes <= SLICE_BYTES or end == begin + 1)
        for begin, end in slices
    )


def forks() -> bool:
    """Calls before and after a fork of rank 1 has run the exit handlers that it inherited."""
    comm = joined(WORLD)
    channel, rows = comm.transport.runtime.network, comm.owned_ids
    assert channel is not None
    good = bool(torch.equal(comm.expand(rows), local_ids(comm)))
    if comm.rank == 1:
        pid = os.fork()
        if pid == 0:
            try:
                channel.close()
                os._exit(0 if not channel._wire.closed else 2)
            finally:
                os._exit(1)
        good &= os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    comm.control.barrier()
    good &= bool(torch.equal(comm.expand(rows), local_ids(comm)))
    comm.control.barrier()
    comm.close()
    return good


def test_a_fork_does_not_take_leave_of_the_partners(rank_pool: Callable[[int], RankPool]) -> None:
    assert rank_pool(4).run(forks) == [True] * 4


def test_a_closed_wire_says_so() -> None:
    wire = Wire(None, 1.0)  # type: ignore[arg-type]
    for post in (wire.send, wire.receive):
        with pytest.raises(RuntimeError, match="closed"):
            post(torch.zeros(1, dtype=torch.uint8), 0, NEWS)


def test_the_sender_may_cancel_what_it_is_filling() -> None:
    """In a finaliser, which runs in whatever thread drops the last reference."""
    job = Job(None, np.zeros(0, np.uint8), [], {})  # type: ignore[arg-type]

    def fill() -> None:
        with job.filling:
            job.cancel()

    sender = threading.Thread(target=fill, daemon=True)
    sender.start()
    sender.join(60)
    assert not sender.is_alive()
    assert job.cancelled

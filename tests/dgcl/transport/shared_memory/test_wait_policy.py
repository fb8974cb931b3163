"""When a wait yields."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.communicator import Communicator
from dgcl.ranks.context import context
from dgcl.transport.shared_memory.engine import EXPAND, WAITING, WaitPolicy, advance

pytestmark = pytest.mark.xdist_group("alone")


EVERY_YIELD_IS_EXPENSIVE: WaitPolicy = (1, 1_000_000_000, -1, 1, 1)
NO_YIELD_IS_EXPENSIVE: WaitPolicy = (1, 100_000, 10**15, 1, 1)


def waits_in_vain(comm: Communicator, policy: WaitPolicy, times: int) -> list[list[int]]:
    """What becomes of ``yields`` in waits of rank 0 for a rank that has not come yet."""
    runtime, yields = comm.transport.runtime, comm.transport.runtime.tasks[EXPAND].yields
    call, history = runtime.under_way, []
    assert call is not None
    for _ in range(times):
        assert advance(call.task.words, policy) == WAITING
        history.append(yields.tolist())
    return history


def on_two_ranks(body: Callable[[Communicator], Any]) -> Any:
    """``body`` on rank 0, which has started an exchange for which rank 1 comes when that is done."""
    meet = threading.Barrier(2)

    def run() -> Any:
        rank = context.require_control().rank
        comm = dgcl.build_comm_info(np.array([[0, 1], [1, 0]]) if rank == 0 else None, "uniform", part=[0, 1])
        rows = torch.full((1, 3), float(rank))
        if rank == 0:
            handle = dgcl.graph_allgather_async(rows, comm=comm)
            found = body(comm)
            meet.wait()
        else:
            meet.wait()
            handle, found = dgcl.graph_allgather_async(rows, comm=comm), None
        assert handle.wait()[:, 0].tolist() == [1 - rank]
        return found, comm.transport.runtime.tasks[EXPAND].yields.tolist()

    return dgcl.launch(run, 2)[0]


def test_an_expensive_yield_is_the_last_for_many_waits_and_twice_as_many_after_the_next():
    history, _ = on_two_ranks(lambda comm: waits_in_vain(comm, EVERY_YIELD_IS_EXPENSIVE, 18 + 33))
    assert history[0] == [16, 16]
    assert history[1:17] == [[left, 16] for left in range(15, -1, -1)]  # none of them yields
    assert history[17] == [32, 32]
    assert history[18:50] == [[left, 32] for left in range(31, -1, -1)]
    assert history[50] == [64, 64]


def test_waits_without_yields_do_not_grow_for_ever():
    def body(comm: Communicator) -> Any:
        comm.transport.runtime.tasks[EXPAND].yields[1] = 1000
        return waits_in_vain(comm, EVERY_YIELD_IS_EXPENSIVE, 1)

    assert on_two_ranks(body)[0] == [[1024, 1024]]


def test_a_wait_that_ends_by_cheap_yields_halves_the_number():
    def body(comm: Communicator):
        comm.transport.runtime.tasks[EXPAND].yields[1] = 64
        comm.transport.runtime.wait_policy = (1, 60_000_000_000, 10**15, 1, 1)  # until the other rank comes

    _, yields = on_two_ranks(body)
    assert yields[0] == 0
    assert yields[1] in (64, 32, 16)  # 64: rank 1 was there before rank 0 looked

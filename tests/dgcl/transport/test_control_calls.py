"""A collective on one rank alone: all hear at once who is in what; and programs that only look like it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dgcl
import dgcl.nn
from dgcl.communicator import Communicator
from dgcl.errors import CommError, CommTimeoutError, DisagreementError
from tests.dgcl.support_plans import random_world
from tests.dgcl.support_processes import Ranks, describe
from tests.dgcl.support_ranks import hurry, join, local_ids
from tests.samples import sampled

pytestmark = pytest.mark.xdist_group("alone")

WORLD = random_world(3, 3, "random-1", num_nodes=30, num_edges=150)


def accuracy(comm: Communicator) -> None:
    logits = torch.eye(4)[torch.arange(comm.num_owned) % 4]
    dgcl.nn.accuracy(logits, torch.zeros(comm.num_owned, dtype=torch.int64), comm=comm)


def allgather(comm: Communicator) -> None:
    dgcl.graph_allgather(torch.ones(comm.num_owned, 3), comm)


def gather_back(comm: Communicator) -> None:
    comm.fold(torch.ones(comm.num_local, 3))


def loss(comm: Communicator) -> None:
    dgcl.nn.loss(F.mse_loss, comm=comm)(torch.ones(comm.num_owned), torch.zeros(comm.num_owned))


def collect(comm: Communicator) -> None:
    comm.collect(torch.ones(comm.num_owned))


#: What one rank does alone, what all do next, and what is said of the two.
CASES: dict[str, tuple[Callable[..., None], Callable[..., None], str, str]] = {
    "collective before exchange": (
        accuracy,
        allgather,
        "is in accuracy (control call 3)",
        "in graph_allgather",
    ),
    "collect before exchange": (collect, allgather, "is in collect (control call 3)", "in graph_allgather"),
    "collective before fold": (accuracy, gather_back, "is in accuracy (control call 3)", "(fold, call 3)"),
    "exchange before collective": (
        allgather,
        accuracy,
        "is in accuracy (control call 3)",
        "in graph_allgather",
    ),
    "two collectives": (loss, accuracy, "is in mse_loss (control call 3)", "is in accuracy (control call 3)"),
}


def alone(comm: Communicator, odd: int, first: Callable[..., None], then: Callable[..., None]) -> None:
    """Two steps of all, then one call of rank ``odd`` alone."""
    for _ in range(2):
        allgather(comm)
        accuracy(comm)
    if comm.rank == odd:
        first(comm)
    then(comm)


def run_as_process(channel: Connection, shares: list[Any], odd: int, name: str) -> None:
    comm = join(shares, 300.0)
    comm.control.barrier()
    channel.send("here")
    try:
        alone(comm, odd, *CASES[name][:2])
    except CommError as error:
        channel.send(describe(error))
    channel.recv()


@pytest.mark.parametrize(
    "case",
    sampled(
        [("collective before exchange", 2), *((name, 0) for name in CASES)], keep=lambda case: case % 3 == 0
    ),
)
def test_processes_are_told_at_once_who_is_in_what(case: tuple[str, int]) -> None:
    name, odd = case
    with Ranks(3, run_as_process, WORLD.shares(), odd, name) as ranks:
        ranks.told()
        for kind, text, _ in ranks.told().values():
            assert kind == "DisagreementError", text
            assert all(part in text for part in CASES[name][2:]), text
            assert "rank" in text
            assert (
                "ake" in text and "on every rank" in text
            ) or "Every rank must make the same calls" in text


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_threads_are_told_at_once_who_is_in_what(name: str, odd: int) -> None:
    def run() -> str:
        comm = join(WORLD.shares(), 300.0)
        with pytest.raises(DisagreementError) as caught:
            alone(comm, odd, *CASES[name][:2])
        return str(caught.value)

    for text in dgcl.launch(run, 3, timeout=300.0):
        assert all(part in text for part in CASES[name][2:]), text


def test_the_control_plane_says_why_it_was_left_and_a_new_one_works() -> None:
    with Ranks(3, come_again, WORLD.shares()) as ranks:
        assert set(ranks.told().values()) == {"works again"}


def come_again(channel: Connection, shares: list[Any]) -> None:
    comm = join(shares, 300.0)
    with pytest.raises(DisagreementError):
        alone(comm, 1, accuracy, allgather)
    with pytest.raises(CommError, match=r"in accuracy .*call dgcl\.init\(\) again"):
        comm.control.barrier()
    comm.close()
    dgcl.init()
    fresh = join(shares, 300.0)
    assert torch.equal(fresh.expand(fresh.owned_ids), local_ids(fresh))
    channel.send("works again")


@pytest.mark.slow
def test_where_another_thread_may_come_the_deadline_tells() -> None:
    """Rank 0 waits in a collective in its main thread, and another of its threads has made calls, too."""

    comes = threading.Event()

    def run() -> str:
        comm = join(WORLD.shares())
        if comm.rank == 0:
            thread = threading.Thread(target=comm.control.has_one_caller)
            thread.start()
            thread.join()
        with pytest.raises(CommError) as caught:
            alone(comm, 0, announced, hurried)
        return f"{type(caught.value).__name__}: {caught.value}"

    def announced(comm: Communicator) -> None:
        comes.set()
        accuracy(comm)

    def hurried(comm: Communicator) -> None:
        comes.wait(60)
        hurry(comm.transport.runtime, 3.0)  # rank 0, which waits alone, waits longer
        allgather(comm)

    _, *others = dgcl.launch(run, 3)
    for text in others:
        assert text.startswith(CommTimeoutError.__name__), text
        assert "rank 0 is in accuracy (control call 3), which this rank has not begun" in text, text
        assert "longer timeout" not in text, text


@pytest.mark.slow
def test_a_slow_rank_is_waited_for() -> None:
    """Ranks that make the same calls may be in a collective while another is still in the exchange before it."""

    def run() -> None:
        comm = join(WORLD.shares(), 60.0)
        for step in range(20):
            if comm.rank == step % 3:
                time.sleep(0.05)
            allgather(comm)
            accuracy(comm)
            if comm.rank == (step + 1) % 3:
                time.sleep(0.05)
            collect(comm)

    dgcl.launch(run, 3)

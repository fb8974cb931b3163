"""Ranks that die, stop, leave or disagree where ranks share no memory: everybody hears of it."""

import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from dgcl.errors import CommError
from dgcl.ranks import abort_reasons
from tests.support.collective_ranks import apart
from tests.support.plans import random_world
from tests.support.processes import Ranks, describe
from tests.support.ranks import join
from tests.support.samples import slow

pytestmark = pytest.mark.xdist_group("alone")

SOON = 5.0  # seconds within which survivors have heard of it; it takes some 50 ms
WORLD = random_world(3, 3, "random-1", num_nodes=30, num_edges=150)
LINE = random_world(2, 4, "line")


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dgcl ")]


def exchange_for_ever(channel: Connection, shares: list[Any], timeout: float):
    """Calls until one fails; says when it is under way, how it ended, and that closing leaves no thread."""
    abort_reasons._STORE_TIMEOUT = 30.0  # a busy machine answers late
    comm = apart(2, join, shares, timeout, "auto")
    rows, calls = torch.ones(comm.num_owned, 40), 0
    try:
        while True:
            comm.fold(comm.expand(rows))
            calls += 1
            if calls == 3:
                channel.send("under way")
    except CommError as error:
        channel.send(describe(error))
    comm.close()
    until = time.monotonic() + 20  # they were told to end; a busy machine lets them do so later
    while (left := own_threads()) and time.monotonic() < until:
        time.sleep(0.05)
    channel.send(left)
    channel.recv()


@pytest.mark.parametrize("victim", [1, slow(3)])
def test_a_killed_rank_is_noticed_by_all_others(victim: int):
    """On a line, where most ranks have no connection with the victim and hear of it by their neighbours."""
    others = [rank for rank in range(4) if rank != victim]
    with Ranks(4, exchange_for_ever, LINE.shares(), 60.0) as ranks:
        ranks.told()
        killed = ranks.signal(victim, signal.SIGKILL)
        for rank, (kind, text, when) in ranks.told(others).items():
            assert kind == "PeerLostError", text
            assert f"rank {victim} has died" in text
            assert f"rank {rank}" in text
            assert when - killed < SOON
        assert ranks.told(others) == {rank: [] for rank in others}


@pytest.mark.slow
def test_who_waits_for_rows_of_a_third_rank_names_that_one():
    """On the line 0-1-2-3 rank 0 gets the rows of rank 3 from rank 1, who waits for rank 2, who waits for rank 3."""
    with Ranks(4, exchange_for_ever, LINE.shares(), 12.0) as ranks:  # a busy machine writes waits down late
        ranks.told()
        ranks.signal(3, signal.SIGSTOP)
        for kind, text, _ in ranks.told([0, 1, 2]).values():
            assert kind == "CommTimeoutError", text
            assert "rank 3" in text.split("in vain: ")[1].split(";")[0], text


@pytest.mark.slow
def test_a_stopped_rank_is_given_up_at_the_deadline():
    with Ranks(3, exchange_for_ever, WORLD.shares(), 1.5) as ranks:
        ranks.told()
        stopped = ranks.signal(1, signal.SIGSTOP)
        for rank, (kind, text, when) in ranks.told([0, 2]).items():
            assert kind == "CommTimeoutError", text
            assert "waited 1.5 s in vain" in text
            assert "rank 1" in text
            assert f"rank {rank}" in text
            assert when - stopped < 1.5 + SOON
        assert ranks.told([0, 2]) == {0: [], 2: []}
        ranks.signal(1, signal.SIGCONT)
        kind, text, _ = ranks.told([1])[1]
        assert kind in ("CommTimeoutError", "PeerLostError"), text


def differ(channel: Connection, shares: list[Any], change: str):
    """One call that all make alike, then one that rank 1 makes differently."""
    comm = apart(2, join, shares, 20.0, "auto")
    comm.expand(torch.ones(comm.num_owned, 4))
    odd = comm.rank == 1
    if change == "fails":  # that also ends calls in which this rank has done its part
        comm.control.barrier()
    try:
        if change == "verb" and odd:
            comm.fold(torch.ones(comm.num_local, 4))
        elif change == "width":
            comm.expand(torch.ones(comm.num_owned, 300 if odd else 4))
        elif change == "leaves" and odd:
            comm.close()
        elif change == "fails" and odd:
            comm.fail("the user's loss is not a number")
        else:
            comm.expand(torch.ones(comm.num_owned, 4))
        channel.send(("none", "", time.monotonic()))
    except CommError as error:
        channel.send(describe(error))
    channel.recv()


@pytest.mark.parametrize(
    "change, kind, words",
    [
        slow("verb", "DisagreementError", "ranks make different calls"),
        ("width", "DisagreementError", "ranks make different calls"),
        ("leaves", "PeerLostError", "has closed its communicator"),
        slow("fails", "CommError", "the user's loss is not a number"),
    ],
)
def test_all_hear_of_a_rank_that_does_something_else(change: str, kind: str, words: str):
    with Ranks(3, differ, WORLD.shares(), change) as ranks:
        said = ranks.told()
        for rank in (0, 2):
            assert said[rank][0] == kind, said
            assert words in said[rank][1]
            assert "rank 1" in said[rank][1]

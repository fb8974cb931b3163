"""A device's backend, with Gloo in its part: hosts go on, and what the device does not end fails the communicator."""

import signal
import threading
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from dgcl.errors import CommError
from dgcl.transport.common.program_agreement import connect_peers
from dgcl.transport.connect import connect_collective
from tests.support.plans import random_world
from tests.support.processes import Ranks, describe
from tests.support.ranks import join

WORLD = random_world(3, 3, "random-1", num_nodes=30, num_edges=150)


class Backend:
    """What a wire uses of one."""

    def __init__(self, store: Any, rank: int, size: int):
        self._group, self.aborted = (
            dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60)),
            threading.Event(),
        )
        self.alltoall_base, self.size, self.abort = (
            self._group.alltoall_base,
            self._group.size,
            self.aborted.set,
        )

    def name(self) -> str:
        return "a stand-in"


def exchange(channel: Connection, shares: list[Any], timeout: float, ends: bool):
    comm, over = join(shares, 60.0, "collective"), threading.Event()
    rows = torch.arange(comm.num_owned * 2.0).view(-1, 2)
    expected = comm.fold(comm.expand(rows))
    programs = {name: each.program for name, each in comm.exchanges.items()}
    backend = Backend(comm.control.next_store("a device"), comm.rank, comm.world_size)
    peers = connect_peers(programs, comm.control, "collective")
    comm.use_transport(connect_collective(programs, peers, 60.0, torch.device("cpu"), "", backend))
    comm.transport.agreement.enqueued.timeout = timeout
    with patch("dgcl.ranks.enqueued.completion", lambda device: over.is_set):
        assert torch.equal(comm.fold(comm.expand(rows)), expected)  # which do not wait for the device
        channel.send("enqueued")
        if ends:
            threading.Timer(1.0, over.set).start()
            comm.close()  # waits
            assert (over.is_set(), comm.transport.failure) == (True, None)
            channel.send("over")
            return
        while comm.transport.failure is None:
            time.sleep(0.01)
        assert backend.aborted.wait(60)
        for call in (comm.synchronize, lambda: comm.expand(rows)):
            with pytest.raises(CommError, match="communicator is unusable") as caught:
                call()
        channel.send(describe(caught.value))


@pytest.mark.slow
def test_a_communicator_is_closed_when_its_device_has_done_its_calls():
    with Ranks(3, exchange, WORLD.shares(), 60.0, True) as ranks:
        assert [*ranks.told().values()] == ["enqueued"] * 3
        assert [*ranks.told().values()] == ["over"] * 3


def test_a_rank_that_dies_is_named_although_no_host_waits_for_it():
    with Ranks(3, exchange, WORLD.shares(), 60.0, False) as ranks:
        assert [*ranks.told().values()] == ["enqueued"] * 3
        ranks.signal(1, signal.SIGKILL)
        for kind, text, _ in ranks.told([0, 2]).values():
            assert kind == "PeerLostError"
            assert "rank 1 has died, and the device does not end the call" in text


@pytest.mark.slow
def test_a_device_that_does_not_end_a_call_in_time_fails_it():
    with Ranks(3, exchange, WORLD.shares(), 1.0, False) as ranks:
        assert [*ranks.told().values()] == ["enqueued"] * 3
        for kind, text, _ in ranks.told().values():
            assert kind == "CommTimeoutError"
            assert "expand (call 1): the device has not ended it 1 s after" in text

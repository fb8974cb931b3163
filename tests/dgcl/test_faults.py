import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

import dgcl
from dgcl.communicator import Communicator
from dgcl.errors import CommError, CommTimeoutError, PeerLostError
from dgcl.ranks import context as contexts
from tests.support.fault_run import named_memory
from tests.support.plans import make_world, random_world
from tests.support.processes import Ranks, describe
from tests.support.ranks import join, local_ids, on_threads
from tests.support.samples import slow

pytestmark = pytest.mark.xdist_group("alone")

LINE = random_world(2, 4, "line")
TRIANGLE = random_world(3, 3, "random-1", num_nodes=30, num_edges=150)
PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)

# In processes: what happens to a rank from outside.


def train(channel: Connection, shares: list[Any], timeout: float):
    """Epochs for ever; says when the first is over, and how it ended."""
    comm = join(shares, timeout)
    x = torch.ones(comm.num_owned, 40, requires_grad=True)
    epochs = 0
    try:
        while True:
            dgcl.graph_allgather(dgcl.graph_allgather(x)[: comm.num_owned] * 2).sum().backward()
            epochs += 1
            if epochs == 3:
                channel.send("under way")
    except CommError as error:
        channel.send(describe(error))
    channel.recv()


@pytest.mark.parametrize("victim", [1, 3])
def test_kill_of_a_rank_is_noticed_by_all_others(victim: int):
    """On a line, where most ranks exchange nothing with the victim and hear of it by their neighbours."""
    with Ranks(4, train, LINE.shares(), 60.0) as ranks:
        ranks.told()
        ranks.signal(victim, signal.SIGKILL)
        for rank, (kind, text, _) in ranks.told([rank for rank in range(4) if rank != victim]).items():
            assert kind == "PeerLostError", text
            assert f"rank {victim} has died" in text
            assert f"rank {rank}" in text


def test_killing_every_rank_leaves_nothing():
    before = named_memory()
    with Ranks(3, train, TRIANGLE.shares(), 60.0) as ranks:
        ranks.told()
        pids = [process.pid for process in ranks.processes]
        for rank in range(3):
            ranks.signal(rank, signal.SIGKILL)
        for process in ranks.processes:
            process.join()
        assert named_memory() == before
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def wait_here_and_there(channel: Connection):
    """Rank 1 waits for rows of rank 2, which waits in the control plane for rank 0, and then ends."""
    comm = join(make_world([(1, 2), (2, 1), (0, 2)], [0, 1, 2], 3).shares(), 60.0)
    channel.send("ready")
    try:
        if comm.rank == 1:
            comm.expand(torch.ones(comm.num_owned, 1))
        elif comm.rank == 2:
            comm.control.barrier()
        else:
            channel.recv()
    except CommError as error:
        comm.close()
        channel.send(describe(error))
    channel.recv()


def test_who_waits_for_rows_of_a_rank_that_lost_another_elsewhere_hears_of_that_one():
    with Ranks(3, wait_here_and_there) as ranks:
        ranks.told()
        ranks.signal(0, signal.SIGKILL)
        kind, text, _ = ranks.told([1])[1]
        assert kind == "PeerLostError", text
        assert text.startswith("rank 1 stops because rank 2 reports: rank 2: rank 0 has died"), text


def end_because_of_another(channel: Connection):
    """Rank 0 waits for rows of rank 2, and its program ends; rank 1 waits in the control plane for rank 0."""
    comm = join(make_world([(2, 0), (0, 1)], [0, 1, 2], 3).shares(), 60.0)
    channel.send("ready")
    if comm.rank == 2:
        channel.recv()
    try:
        if comm.rank == 0:
            comm.expand(torch.ones(comm.num_owned, 1))
        comm.control.broadcast(None, src=0)
    except CommError as error:
        channel.send(describe(error))
    contexts._tell_peers()
    channel.recv()


def test_who_waits_elsewhere_for_a_rank_that_ended_because_of_another_hears_of_that_one():
    with Ranks(3, end_because_of_another) as ranks:
        ranks.told()
        ranks.signal(2, signal.SIGKILL)
        kind, text, _ = ranks.told([1])[1]
        assert kind == "PeerLostError", text
        expected = "broadcast over the control group failed: rank 0 has ended: rank 0, expand (call 1): rank 2 has died"
        assert expected in text


def wait_for_others(channel: Connection, shares: list[Any]):
    """Rank 0 waits in a call that rank 1 never makes."""
    comm = join(shares, 60.0)
    if comm.rank == 1:
        channel.send("waiting")
        channel.recv()
        return
    channel.send("waiting")
    try:
        comm.expand(torch.zeros(comm.num_owned))
    except KeyboardInterrupt as error:
        channel.send(describe(error))
        channel.recv()


def test_an_interrupt_is_heard_while_waiting():
    with Ranks(2, wait_for_others, PAIR.shares()) as ranks:
        ranks.told()
        time.sleep(0.3)  # until rank 0 is deep in its call; earlier would be right, too
        ranks.signal(0, signal.SIGINT)
        kind, _, _ = ranks.told([0])[0]
        assert kind == "KeyboardInterrupt"


def leave_in_the_set_up(channel: Connection, how: str):
    """Rank 0 goes or stays away, rank 2 hears of it and goes, rank 1 waits for rank 2 alone."""
    from dgcl.ranks.context import context

    if how == "late":
        context.control = None
        dgcl.init(timeout=10.0)
    control = context.require_control()
    channel.send("here")
    channel.recv()
    try:
        if control.rank == 0:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "leave":
                control.leave("was stopped by MemoryError: no more")
            channel.recv()
        elif control.rank == 2:
            control.exchange(None)
        else:
            control.broadcast(None, src=2)
    except CommError as error:
        channel.send(describe(error))
        channel.recv()


@pytest.mark.parametrize(
    "how, clause",
    [
        ("kill", r"rank 0 has died or left \(.*\)"),
        slow("leave", r"rank 0 was stopped by MemoryError: no more"),
        slow("late", r"rank 0 has not come \(.*longer timeout\)"),
    ],
)
def test_who_left_first_is_named_by_those_who_saw_another_leave(how: str, clause: str):
    with Ranks(3, leave_in_the_set_up, how) as ranks:
        ranks.told()
        ranks.tell("go", [0])
        if how == "kill":
            ranks.processes[0].join()
        ranks.tell("go", [2])
        expected = "CommTimeoutError" if how == "late" else "PeerLostError"
        kind, text, _ = ranks.told([2])[2]
        assert kind == expected
        assert re.fullmatch(f"rank 2: exchange over the control group failed: {clause}", text), text
        ranks.tell("go", [1])
        kind, text, _ = ranks.told([1])[1]
        assert kind == expected
        pattern = f"rank 1: broadcast over the control group failed: {clause}, says rank 2"
        assert re.fullmatch(pattern, text), text


# In threads: what a rank does to the others.


def caught(
    world: Any, function: Any, timeout: float = 60.0, channel: str = "auto"
) -> list[BaseException | None]:
    """What each rank's ``function(comm)`` raises."""
    barrier = threading.Barrier(world.world_size)

    def run(comm: Communicator) -> BaseException | None:
        try:
            function(comm)
        except Exception as error:
            barrier.wait()  # nobody leaves before all have failed
            return error
        barrier.wait()
        return None

    return on_threads(world, run, timeout, channel)


channels = pytest.mark.parametrize("channel", ["auto", "collective"])


@channels
def test_a_rank_that_leaves_early_is_named(channel: str):
    def run(comm: Communicator):
        comm.expand(comm.owned_ids)
        if comm.rank == 1:
            comm.close()
        else:
            comm.expand(comm.owned_ids)

    first, gone, *_ = caught(LINE, run, channel=channel)
    assert gone is None
    assert isinstance(first, PeerLostError)
    assert "rank 1 has closed its communicator, and stage" in str(first)


def test_a_rank_that_did_its_part_and_left_is_not_missed():
    """It sends its rows and closes between this rank's last look at its rows and that at its state."""
    looks, left = threading.Event(), threading.Event()

    def run(comm: Communicator):
        if comm.rank == 1:
            looks.wait(60)
            comm.expand(comm.owned_ids)
            comm.close()
            left.set()
            return
        peers = comm.transport.runtime.peers

        def look():
            looks.set()
            left.wait(60)

        peers.reported_failure = look  # type: ignore[method-assign]
        assert torch.equal(comm.expand(comm.owned_ids), local_ids(comm))

    assert caught(make_world([(1, 0)], [0, 1], 2), run) == [None, None]


def test_a_rank_whose_layer_raises_stops_the_others():
    """The error of the layer is what the caller of launch gets; the other ranks' consequences are notes."""

    def run(comm: Communicator):
        comm.expand(comm.owned_ids)
        if comm.rank == 2:
            raise ZeroDivisionError("in a layer")
        comm.expand(comm.owned_ids)

    with pytest.raises(ZeroDivisionError, match="in a layer") as raised:
        on_threads(LINE, run)
    notes = "\n".join(raised.value.__notes__)
    assert "raised on rank 2" in notes
    for rank in (0, 1, 3):  # each hears of it from whom it looks at first, in the same words
        assert re.search(rf"rank {rank}: CommError: rank {rank} stops because .* rank 2: stopped by Z", notes)


def late(rank: int) -> Callable[[Communicator], None]:
    """A call to which a rank comes when another one has ended it."""
    ended = threading.Event()

    def run(comm: Communicator):
        if comm.rank == rank:
            ended.wait(60)
        try:
            comm.expand(comm.owned_ids)
        finally:
            ended.set()

    return run


@channels
def test_a_rank_that_is_late_is_named_with_stage_and_rows(channel: str):
    errors = caught(PAIR, late(1), 0.3, channel)
    assert isinstance(errors[0], CommTimeoutError)
    not_taken = {"auto": "rank 1 is not ready to receive 2 rows", "collective": "2 rows not taken by rank 1"}[
        channel
    ]
    assert str(errors[0]) == (
        "rank 0, expand (call 1): waited 0.3 s in vain: stage 0: 1 row missing from rank 1 (it has not begun this"
        f" call); stage 0: {not_taken} (it has not begun this call). If ranks may be that late, give"
        " build_comm_info a longer timeout"
    )
    assert isinstance(errors[1], CommTimeoutError)
    assert "rank 1 stops because rank 0 reports: rank 0, expand (call 1): waited" in str(errors[1])


def test_a_rank_that_has_not_begun_is_named_before_those_that_wait_as_well():
    """On the line 0-1-2-3, rank 0 gets the rows of the late rank 3 from rank 1, which waits for rank 2, and so on."""
    world = make_world([(3, 0), (3, 2), (0, 3)], range(4), 4, "line")
    # Once one has given up, rank 3 comes, and a rank that waits for nobody else may yet finish.
    said = [str(error) for error in caught(world, late(3), timeout=2.0) if error is not None]
    assert said
    for text in said:
        first = text.split("waited 2 s in vain: ")[1].split(";")[0]
        assert re.search(r"rank 3 .*\(it has not begun this call\)|and waits for rank 3\)", first), text


@pytest.mark.slow
def test_progress_puts_the_deadline_off():
    """Rank 0 gets rows of ranks 1 to 4 one after the other; each is in time, all together take longer."""
    world = make_world([(rank, 0) for rank in range(1, 5)], range(5), 5)
    done = [threading.Event() for _ in range(5)]

    def run(comm: Communicator):
        if comm.rank > 0:
            done[comm.rank - 1].wait(60)
            time.sleep(1.5)
        else:
            done[0].set()
        comm.expand(comm.owned_ids)
        done[comm.rank].set()

    assert caught(world, run, timeout=5.5) == [None] * 5


def test_memory_that_is_not_there_stops_the_others_at_once():
    def run(comm: Communicator):
        if comm.rank == 1:
            comm.transport.runtime.pool._file.grow = no_memory  # type: ignore[method-assign]
        comm.expand(torch.zeros(comm.num_owned, 1 << 20))

    def no_memory(num_bytes: int) -> Any:
        raise MemoryError("cannot allocate")

    errors = caught(PAIR, run)
    assert isinstance(errors[1], MemoryError)
    assert isinstance(errors[0], CommError)
    assert "rank 0 stops because rank 1 reports: rank 1 is out of memory: cannot allocate" in str(errors[0])


def test_a_failed_call_gives_no_block_back_to_a_peer():
    """A late writer still has the failed call's address: nobody may be given that memory again."""

    def run(comm: Communicator):
        comm.control.limit = math.inf
        if comm.rank == 1:
            comm.control.exchange(None)
            return
        with pytest.raises(CommTimeoutError):
            comm.expand(comm.owned_ids)
        comm.control.exchange(None)
        with pytest.raises(CommTimeoutError, match="unusable"):
            comm.expand(comm.owned_ids)

    on_threads(PAIR, run, timeout=0.2)

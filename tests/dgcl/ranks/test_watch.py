"""Ranks that die or stop in set-up while nobody waits for them, and what their children keep open."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

import dgcl
from dgcl.errors import CommError
from dgcl.ranks.connections import open_connections
from dgcl.ranks.context import context
from dgcl.ranks.control import Call
from dgcl.ranks.watch import Watch
from tests.support.processes import Ranks, describe
from tests.support.samples import named, slow

pytestmark = pytest.mark.xdist_group("alone")

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
LONG = 240.0


def play(channel: Connection):
    """One scene after another, each on a control plane of its own."""
    while True:
        scene, *args = channel.recv()
        try:
            channel.send(scene(channel, *args))
        except CommError as error:
            channel.send(describe(error))


def sits(seconds: float):
    """Work in small steps of Python, as planners do."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


def partitions(channel: Connection):
    """Rank 0 partitions for minutes; rank 1 says when it waits for rank 0."""
    control = context.require_control()
    with pytest.MonkeyPatch.context() as patch:
        if control.rank == 0:
            patch.setattr("dgcl.build.prepare_inputs", lambda *args, **options: sits(LONG))
        patch.setattr("dgcl.build.precompile.prepare", lambda: channel.send("waits"))
        dgcl.build_comm_info(EDGES, "uniform", part=[0, 0, 1, 2])


def forks(channel: Connection) -> int:
    """A child that lives for minutes, as a data loader does."""
    child = os.fork()
    if child == 0:
        sits(LONG)
        os._exit(0)
    return child


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(3, play) as made:
        yield made


def test_a_death_is_noticed_while_rank_0_partitions():
    """By the rank that waits for rank 0, and by rank 0 itself; although a child of the dead rank lives."""
    with Ranks(3, play) as ranks:
        dies_while_rank_0_partitions(ranks)


def dies_while_rank_0_partitions(ranks: Ranks):
    ranks.tell((forks,), [2])
    child = ranks.told([2])[2]
    try:
        ranks.tell((partitions,))
        assert ranks.told([1, 2]) == {1: "waits", 2: "waits"}
        ranks.signal(2, signal.SIGKILL)
        for rank, (kind, text, _) in ranks.told([1, 0]).items():
            assert kind == "PeerLostError", text
            assert f"rank {rank}" in text
            assert "rank 2 has died or left" in text
    finally:
        os.kill(child, signal.SIGKILL)


def swap(channel: Connection, rounds: list[dict[int, list[int]]]) -> Any:
    """Rounds of messages, from each rank to these ranks; rank 0 is the first to give up."""
    rank = context.require_control().rank
    context.control = None
    dgcl.init(timeout=6 + 3 * rank)
    control = context.require_control()
    with control.watched():
        for number, sends in enumerate(rounds):
            sources = [source for source, to in sends.items() if rank in to]
            control._swap(Call("swap", 0, ""), dict.fromkeys(sends.get(rank, []), number), sources)
    return "done"


ALL = {0: [1, 2], 1: [0, 2], 2: [0, 1]}


@pytest.mark.slow
@named(
    "rounds",
    {
        "all wait for it": [ALL, ALL],
        # Rank 2 gives rank 0 its message and not rank 1; rank 0 goes on, and waits for rank 1, which waits for rank 2.
        "one waits for another that waits": [{2: [0]}, {**ALL, 2: [1]}, {1: [0]}],
    },
)
def test_who_is_late_is_named_and_not_who_waits_for_it(rounds: list[Any], ranks: Ranks):
    """Rank 2 takes part in all rounds but those after the first."""
    ranks.tell((swap, rounds), [0, 1])
    ranks.tell((swap, rounds[:1]), [2])
    told = ranks.told()
    assert told[2] == "done"
    for rank in (0, 1):
        kind, text, _ = told[rank]
        assert kind == "CommTimeoutError", text
        assert "failed: rank 2 has not come" in text


def waits_in(call: str, comm: Any, off: Any = None) -> Any:
    """A collective of the communicator, or one that is made on the control plane of it."""
    rows = torch.ones(comm.num_owned, 3)
    calls: dict[str, Any] = {
        "Offload.layer": lambda: off.layer(torch.nn.Linear(3, 3), rows, aggregate="sum"),
        "all_reduce_sum": lambda: comm.all_reduce_sum(rows.sum()),
        "sync_gradients": lambda: comm.all_reduce_sum(torch.ones(1 << 15)),
        "collect": lambda: comm.collect(rows, dst=1),
        "dispatch_features": lambda: comm.dispatch_features(torch.ones(4, 3) if comm.rank == 0 else None),
        "aggregator": lambda: comm.aggregator("max"),
    }
    return calls[call]()


def leaves(channel: Connection, call: str, how: str, edges: str) -> Any:
    """Rank 2 leaves the communicator, or is stopped, and its process lives; the others are in a collective."""
    context.control = None
    dgcl.init()
    comm = dgcl.build_comm_info(
        EDGES, "uniform", part=[0, 0, 1, 2], strategy=edges, timeout=8.0 if how == "stop" else LONG
    )
    waits_in("all_reduce_sum", comm)
    off = dgcl.Offload(comm, chunks=1) if call == "Offload.layer" else None
    if comm.rank < 2:
        return waits_in(call, comm, off)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        comm.close() if how == "close" else comm.fail("a test")
    return channel.recv()


LEFT = {
    "close": "rank 2 has closed its communicator",
    "fail": "rank 2 reports: rank 2: a test",
    "stop": "rank 2",
}


@pytest.mark.parametrize(
    "call, edges, how",
    [
        *(("all_reduce_sum", "halo", how) for how in LEFT),
        *(
            slow(call, edges, how)
            for call, edges, how in (
                ("Offload.layer", "halo", "stop"),
                ("Offload.layer", "halo", "close"),
                ("sync_gradients", "halo", "stop"),
                ("collect", "halo", "close"),
                ("dispatch_features", "halo", "fail"),
                ("aggregator", "cover", "close"),
            )
        ),
    ],
)
def test_who_leaves_is_named_in_every_collective(call: str, edges: str, how: str, ranks: Ranks):
    """Within the communicator's timeout where it is stopped, else at once; init's timeout is half an hour."""
    ranks.tell((leaves, call, how, edges))
    told = ranks.told([0, 1])
    if how == "stop":
        ranks.signal(2, signal.SIGCONT)
    ranks.tell("go on", [2])
    assert ranks.told([2])[2] == "go on"
    for rank, (_, text, _) in told.items():
        assert LEFT[how] in text, text
        assert f"rank {rank}" in text


def children(channel: Connection) -> dict[str, list[str]]:
    """Which of the rank's connections a fork and a program that it starts have, of those that it made itself."""
    context.control = None
    dgcl.init()
    control: Any = context.require_control()
    ours = [f"socket:[{one.inode}]" for one in control._connections.values()]
    assert len(ours) == 2
    program = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, " ".join(f"socket:[{one.inode}]" for one in open_connections()).encode())
        os._exit(0)
    os.close(writer)
    forked = os.read(reader, 1 << 16).decode()
    os.close(reader)
    os.wait()
    control.barrier()  # it still works
    assert "pipe" in program.stdout
    return {
        "fork": [one for one in ours if one in forked],
        "program": [one for one in ours if one in program.stdout],
    }


def test_children_have_none_of_the_connections(ranks: Ranks):
    ranks.tell((children,))
    assert list(ranks.told().values()) == [{"fork": [], "program": []}] * 3


def test_a_watch_interrupts_only_what_it_is_told_to():
    """A connection that breaks: what is called is left; what comes afterwards is not."""
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    before = open_connections()
    here = socket.create_connection(server.getsockname())
    there = server.accept()[0]
    one = next(c for c in open_connections() - before if c.descriptor == here.fileno())
    lost: list[int] = []
    watch = Watch({7: one}, lost.append, lambda: None, 60.0)
    there.close()
    with pytest.raises(ConnectionError, match="gone"):
        watch.call(lambda: sits(LONG), lambda: ConnectionError("gone"))
    assert lost == [7]
    assert watch.call(lambda: "on", lambda: ConnectionError("gone")) == "on"
    watch.end()
    for each in (server, here):
        each.close()

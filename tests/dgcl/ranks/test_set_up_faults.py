"""Faults before and after a job: ranks that never come, Ctrl-C in set-up, programs and forks that end, failures."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dgcl
import dgcl.nn
from dgcl.prepare.shares import prepare_inputs
from dgcl.ranks.context import _tell_peers, context
from tests.dgcl.ranks.support_set_up_faults import TIMEOUT, run_ranks
from tests.support.processes import Ranks
from tests.support.rank_pool import RankPool
from tests.support.samples import named, slow

pytestmark = pytest.mark.xdist_group("alone")

GRAPH = "torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), part=[0, 0, 1, 1]"


INIT = """
open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").close()
while len(os.listdir(sys.argv[1])) < int(sys.argv[2]):
    time.sleep(0.01)
try:
    dgcl.init(timeout=float(sys.argv[3]))
except dgcl.CommError as error:
    print("told:", error)
"""
STOPPED = """
from dgcl.ranks.rendezvous import Waiting
def stop(waiting):
    if waiting._store and waiting._store.check(["attempts of 0", "attempts of 1"]):
        raise KeyboardInterrupt
Waiting.check = stop
dgcl.init()
"""
KILLED = """
import torch.distributed as dist
from dgcl.ranks.rendezvous import Attempt
{} = lambda *_, **keywords: os.kill(os.getpid(), 9)
dgcl.init()
"""


@named(
    "programs, timeout, words",
    {
        "the rank that keeps the store": slow(
            {1: INIT, 2: INIT}, 4, "rank 0, which keeps the ranks' store at 127.0.0.1"
        ),
        "one is killed before they have met": slow(
            {0: INIT, 1: INIT, 2: KILLED.format("Attempt.join")}, 10 * TIMEOUT, "rank 2 has died"
        ),
        "one is stopped, and rank 0 ends at once": slow(
            {0: INIT + "os._exit(0)", 1: INIT, 2: STOPPED}, 10 * TIMEOUT, "rank 2 was stopped by KeyboardInterrupt in"
        ),
        "and while they connect": slow(
            {0: KILLED.format("dist.init_process_group"), 1: INIT, 2: INIT}, 10 * TIMEOUT, "rank 0 has died"
        ),
    },
)  # fmt: skip
def test_init_ends_within_its_timeout(programs: dict[int, str], timeout: int, words: str, tmp_path: Path):
    """Half an hour, torch's own limit, is far beyond that of this test. Those that come begin together."""
    together = list(programs.values()).count(INIT)
    size = 3 + list(programs.values()).count(STOPPED)  # one does not come then
    for rank, (status, printed) in run_ranks(
        size, programs, str(tmp_path), str(together), str(timeout)
    ).items():
        if programs[rank] is INIT:
            assert status == 0, printed
            assert words in printed.split("told:")[1]


def stopped_in_set_up() -> str:
    """Rank 1 is stopped by Ctrl-C before it has done anything; afterwards both go on."""
    control = context.require_control()
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    with pytest.MonkeyPatch.context() as patch:
        if control.rank == 1:

            def stop(*_: Any):
                raise KeyboardInterrupt

            patch.setattr("dgcl.build.open_devices", stop)
        try:
            dgcl.build_comm_info(edges, "uniform", part=[0, 0, 1, 1])
        except KeyboardInterrupt:
            told = "stopped"
        except dgcl.CommError as error:
            told = str(error)
    dgcl.init()
    comm = dgcl.build_comm_info(edges, "uniform", part=[0, 0, 1, 1])
    assert comm.expand(comm.owned_ids).tolist() == [*comm.owned_ids.tolist(), *comm.halo_ids.tolist()]
    comm.close()
    return told


def test_an_interrupt_in_set_up_is_told(rank_pool: Callable[[int], RankPool]):
    told = rank_pool(2).run(stopped_in_set_up)
    assert "rank 1 was stopped by KeyboardInterrupt in build_comm_info" in told[0]
    assert told[1] == "stopped"


ENDS = f"""
import atexit
def wait():  # runs last: the process itself ends only after its peer has heard, or two minutes later
    for _ in range(1200):
        if os.path.exists(sys.argv[1]):
            return
        time.sleep(0.1)
    print("the peer has not heard")
atexit.register(wait)
dgcl.init()
comm = dgcl.build_comm_info({GRAPH})
comm.expand(torch.ones(2, 1))
raise ValueError("a mistake of the user's")
"""
WAITS = f"""
dgcl.init()
comm = dgcl.build_comm_info({GRAPH}, timeout=300)
comm.expand(torch.ones(2, 1))
try:
    comm.expand(torch.ones(2, 1))
except dgcl.CommError as error:
    print("told:", type(error).__name__, error)
open(sys.argv[1], "w").close()
"""


@pytest.mark.slow
def test_a_program_that_ends_tells_its_peers_first(tmp_path):
    found = run_ranks(2, {0: WAITS, 1: ENDS}, str(tmp_path / "heard"))
    assert found[0][0] == 0, found[0][1]
    assert "told: PeerLostError" in found[0][1]
    assert "a mistake of the user's" in found[1][1]
    assert "the peer has not heard" not in found[1][1]


FORKS = f"""
dgcl.init()
comm = dgcl.build_comm_info({GRAPH})
child = os.fork()
if child == 0:
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("child:", os.waitstatus_to_exitcode(status))
for _ in range(3):
    out = comm.expand(comm.owned_ids)
comm.control.barrier()
print("rows:", out.tolist())
"""


@pytest.mark.slow
def test_a_fork_that_ends_is_not_the_rank():
    found = run_ranks(2, dict.fromkeys(range(2), FORKS))
    for rank, (status, printed) in found.items():
        assert status == 0, printed
        assert "child: 0" in printed
        assert f"rows: {[[0, 1, 3], [2, 3, 1]][rank]}" in printed


def resources() -> tuple[int, int, int]:
    """Open files of ours, mappings of ours, and threads."""
    files = 0
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink():
            files += "memfd:dgcl" in os.readlink(entry)
    with open("/proc/self/maps") as maps:
        return files, sum("memfd:dgcl" in line for line in maps), threading.active_count()


def fail_once(kept: list[BaseException]):
    """A failure as users keep it: the error, and in its frames a tensor that autograd made from an exchange."""
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    comm = dgcl.build_comm_info(edges, "uniform", part=[0, 0, 1, 1], timeout=40)
    rows = torch.ones(2, 3, requires_grad=True)
    held = dgcl.graph_allgather(rows)
    try:
        if comm.rank == 1:
            comm.fail("a test")
        loss = dgcl.graph_allgather(held[:2])
        loss.sum()
    except dgcl.CommError as error:
        kept.append(error)
    assert kept
    comm.close()


@pytest.mark.parametrize("times", [5, slow(100)])
def test_failed_communicators_are_freed(times: int):
    dgcl.launch(fail_once, 2, [])
    gc.collect()
    before = resources()
    for _ in range(times):
        dgcl.launch(fail_once, 2, [])
    gc.collect()
    assert resources() == before


def another() -> dgcl.Communicator:
    return dgcl.build_comm_info(
        torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), "uniform", part=[0, 0, 1, 2], timeout=2
    )


def in_time(channel: Any, step: str, odd: Callable[[], None]):
    """A step of set-up, which rank 1 does not reach, or plans for longer than the timeout; what comes of it."""
    comm = another()
    comm.all_reduce_sum(torch.ones(1))
    steps: dict[str, Callable[[], object]] = {
        "aggregator": lambda: comm.aggregator("sum"),
        "offload": lambda: dgcl.Offload(comm, chunks=1),
        "another communicator": another,
        "copies": lambda: dgcl.nn.sum_shared(torch.ones(2, 1), torch.arange(2)),
        "connecting": lambda: comm.control.new_group(),
    }
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1 and step == "connecting":
            patch.setattr("dgcl.ranks.group_control.make_group", lambda *_: odd())
        elif comm.rank == 1 and odd is stop_here:
            odd()
        elif comm.rank == 0 and odd is take_long:
            patch.setattr("dgcl.build.prepare_inputs", lambda *a, **k: (odd(), prepare_inputs(*a, **k))[1])
        try:
            steps[step]()
            channel.send("done")
        except dgcl.CommError as error:
            channel.send(str(error))


def stop_here():
    os.kill(os.getpid(), signal.SIGSTOP)


def take_long():
    time.sleep(5)


@named(
    "step, odd, words",
    {
        "aggregator": ("aggregator", stop_here, "rank 1 has not come (waited 2 s"),
        "offload": slow("offload", stop_here, "rank 1 has not come (waited 2 s"),
        "another communicator": slow("another communicator", stop_here, "rank 1 has not come (waited 2 s"),
        "copies": slow("copies", stop_here, "rank 1 has not come (waited 2 s"),
        "connecting": slow("connecting", stop_here, "rank 1 had come, but shows no sign of life"),
        "a rank that plans": slow("another communicator", take_long, "done"),
    },
)
def test_set_up_on_a_communicator_waits_for_its_timeout(step: str, odd: Callable[[], None], words: str):
    """init's is a minute."""
    with Ranks(3, in_time, step, odd) as ranks:
        for text in ranks.told([0, 2]).values():
            assert words in text


def ends_after_an_offload(channel: Any, wait: str):
    """Rank 0 ends after an exchange of an offload has failed there; what rank 1 hears, which waits for it."""
    comm = another()
    off = dgcl.Offload(comm, chunks=1)
    comm.control.barrier()
    if comm.rank == 0:
        off._transport.fail(dgcl.CommError("rank 2 was late"))
        _tell_peers()
        channel.recv()
    with pytest.raises(dgcl.CommError) as caught:
        comm.all_reduce_sum(torch.ones(1)) if wait == "sum" else comm.expand(torch.ones(comm.num_owned))
    channel.send(str(caught.value))


@named("wait", {"in a sum": "sum", "in an exchange": slow("rows")})
def test_the_end_of_a_rank_says_why_its_offload_failed(wait: str):
    with Ranks(3, ends_after_an_offload, wait) as ranks:
        assert "rank 2 was late" in ranks.told([1])[1]

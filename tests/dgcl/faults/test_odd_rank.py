"""One rank does something else than the others: what all of them say, on each tier, in threads and in processes."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dgcl
import dgcl.nn
from dgcl.communicator import Communicator
from dgcl.errors import CommError, CommTimeoutError
from dgcl.ranks.group_control import GroupControl
from tests.support.collective_ranks import apart
from tests.support.plans import make_world, random_world
from tests.support.rank_pool import RankPool
from tests.support.ranks import hurry, join, local_ids
from tests.support.samples import sampled

pytestmark = pytest.mark.xdist_group("alone")

ANY_TREES = random_world(3, 3, "random-1", num_nodes=30, num_edges=150)
#: Rows travel both ways, one way alone, or along a line; and which rank is the odd one.
WORLDS = {
    "0 to 1": (make_world([(0, 1)], [0, 1], 2), 1),
    "1 to 0": (make_world([(1, 0)], [0, 1], 2), 1),
    "both ways": (make_world([(0, 1), (1, 0)], [0, 1], 2), 1),
    "line": (random_world(3, 3, "line"), 0),
    "any trees": (ANY_TREES, 2),
}
PATIENT = 300.0
CHANNELS = "auto", "collective"

Act = Callable[[Communicator], object]


def expand(width: int, dtype: torch.dtype = torch.float32) -> Act:
    return lambda comm: comm.expand(torch.zeros(comm.num_owned, width, dtype=dtype))


def fold(width: int) -> Act:
    return lambda comm: comm.fold(torch.zeros(comm.num_local, width))


def start(comm: Communicator) -> object:
    return comm.expand_async(torch.zeros(comm.num_owned, 3)).wait()


def accuracy(comm: Communicator):
    logits = torch.eye(4)[torch.arange(comm.num_owned) % 4]
    dgcl.nn.accuracy(logits, torch.zeros(comm.num_owned, dtype=torch.int64), comm=comm)


def allgather(comm: Communicator):
    dgcl.graph_allgather(torch.ones(comm.num_owned, 3), comm)


def loss(comm: Communicator):
    dgcl.nn.loss(F.mse_loss, comm=comm)(torch.ones(comm.num_owned), torch.zeros(comm.num_owned))


def collect(comm: Communicator):
    comm.collect(torch.ones(comm.num_owned))


def repeat(comm: Communicator):
    """Calls that begin when the odd rank has done what it does."""
    comm.control.barrier()
    for _ in range(100):
        expand(3)(comm)


def repeat_after_all(comm: Communicator):
    """Nobody's rows come before the odd rank has dropped its call, which could otherwise be over by then."""
    comm.control.barrier()
    repeat(comm)


def drop(comm: Communicator):
    comm.expand_async(torch.zeros(comm.num_owned, 3))


def fail(comm: Communicator):
    comm.fail("stopped")


IN_ACCURACY, IN_ALLGATHER = "is in accuracy (control call ", "in graph_allgather"
ADVICE = "very rank must make the same calls"
#: What the odd rank does, what the others do, the class of everybody's error, and what is said in each.
CASES: dict[str, tuple[Act, Act, str, tuple[str, ...]]] = {
    "width": (
        expand(128),
        expand(64),
        "DisagreementError",
        (
            "is in call 3: expand of rows of 512 bytes, torch.float32 (width 128)",
            "is in call 3: expand of rows of 256 bytes, torch.float32 (width 64)",
            ADVICE,
        ),
    ),
    "dtype": (expand(4), expand(4, torch.int32), "DisagreementError", ("torch.float32", "torch.int32")),
    "verb": (expand(4), fold(4), "DisagreementError", ("expand of rows of 16", "fold of rows of 16")),
    "no width": (expand(0), expand(1), "DisagreementError", ("rows of 0 bytes", "rows of 4 bytes")),
    "started": (start, expand(4), "DisagreementError", ("rows of 12 bytes", "rows of 16 bytes")),
    "in a collective": (accuracy, allgather, "DisagreementError", (IN_ACCURACY, IN_ALLGATHER)),
    "in collect": (collect, allgather, "DisagreementError", ("is in collect (control call ", IN_ALLGATHER)),
    "no fold": (accuracy, fold(3), "DisagreementError", (IN_ACCURACY, "fold", "call 3")),
    "in an exchange": (allgather, accuracy, "DisagreementError", (IN_ACCURACY, IN_ALLGATHER)),
    "two collectives": (loss, accuracy, "DisagreementError", ("is in mse_loss (control call ", IN_ACCURACY)),
    "drops": (drop, repeat_after_all, "CommError", ("dropped and nobody waited",)),
    "fails": (fail, repeat, "CommError", ("stopped",)),
}


IN_CALLS = [case for case, (_, _, _, words) in CASES.items() if "rows of" in words[0]]
ONE_WAY, BOTH_WAYS = list(WORLDS)[:2], list(WORLDS)[2:]


def play(case: str, world: str, channel: str) -> tuple[str, str, list[int]]:
    """Calls of all, then one that differs: this rank's error, and the calls in which it sent something."""
    (shares, odd), (first, then, _, _) = (WORLDS[world][0].shares(), WORLDS[world][1]), CASES[case]
    sent: list[int] = []
    comm: Any = join(shares, PATIENT, channel)
    if channel == "collective":
        agreement = comm.transport.agreement
        compare = agreement._compare

        def agreed(call: Any) -> bool:
            result: bool = compare(call)
            sent.append(call.number)  # it goes on to send rows
            return result

        agreement._compare = agreed
    for _ in range(2):
        kept = comm.expand(comm.owned_ids)
        accuracy(comm)
    kind, text = "no error", ""
    try:
        if comm.rank == odd:
            first(comm)
        then(comm)
    except Exception as error:
        kind, text = type(error).__name__, str(error)
    with suppress(CommError):
        comm.control.barrier()  # nobody leaves before all have failed
    if "control call" not in text:
        with pytest.raises(CommError, match=r"unusable since an earlier .* failed"):
            comm.expand(comm.owned_ids)
    comm.close()
    if isinstance(comm.control, GroupControl):
        dgcl.init()
        fresh = join(shares, PATIENT, channel)
        assert torch.equal(fresh.expand(fresh.owned_ids), local_ids(fresh))
        fresh.close()
    assert torch.equal(kept, local_ids(comm))
    return kind, text, sent


def judge(results: list[tuple[str, str, list[int]]], case: str, channel: str):
    _, _, kind, words = CASES[case]
    for rank, (error, text, _) in enumerate(results):
        assert error == kind, text
        assert f"rank {rank}" in text
        assert all(part in text for part in words), text
    if channel == "collective" and case in IN_CALLS:
        assert any(3 not in sent for _, _, sent in results), "both sent rows"


@pytest.mark.parametrize(
    "channel, world, case",
    [
        *sampled(CHANNELS, ONE_WAY, IN_CALLS, keep=lambda *places: sum(places) % 2 == 0),
        *sampled(CHANNELS, BOTH_WAYS, CASES, keep=lambda *places: sum(places) % 2 == 0),
    ],
)
def test_threads(channel: str, world: str, case: str):
    judge(dgcl.launch(play, WORLDS[world][0].world_size, case, world, channel), case, channel)


@pytest.mark.parametrize(
    "before, channel, case",
    [
        *sampled([()], CHANNELS, CASES, keep=lambda *places: sum(places) % 8 == 0),
        *sampled([(apart, 1)], ["collective"], IN_CALLS, keep=lambda *places: sum(places) % 8 == 0),
    ],
)
def test_processes(before: tuple[Any, ...], channel: str, case: str, rank_pool: Callable[[int], RankPool]):
    judge(rank_pool(3).run(*before, play, case, "line", channel), case, channel)


@pytest.mark.slow
def test_where_another_thread_may_come_the_deadline_tells():
    """Rank 0 waits in a collective in its main thread, and another of its threads has made calls, too."""

    comes = threading.Event()

    def run() -> str:
        comm = join(ANY_TREES.shares())
        if comm.rank == 0:
            thread = threading.Thread(target=comm.control.has_one_caller)
            thread.start()
            thread.join()
        with pytest.raises(CommError) as caught:
            (hurried if comm.rank else announced)(comm)
        return f"{type(caught.value).__name__}: {caught.value}"

    def announced(comm: Communicator):
        comes.set()
        accuracy(comm)

    def hurried(comm: Communicator):
        comes.wait(60)
        hurry(comm.transport.runtime, 3.0)  # rank 0, which waits alone, waits longer
        allgather(comm)

    _, *others = dgcl.launch(run, 3)
    for text in others:
        assert text.startswith(CommTimeoutError.__name__), text
        assert "rank 0 is in accuracy (control call 1), which this rank has not begun" in text, text
        assert "longer timeout" not in text, text


@pytest.mark.slow
def test_a_slow_rank_is_waited_for():
    """Ranks that make the same calls may be in a collective while another is still in the exchange before it."""

    def run():
        comm = join(ANY_TREES.shares())
        for step in range(20):
            if comm.rank == step % 3:
                time.sleep(0.05)
            allgather(comm)
            accuracy(comm)
            if comm.rank == (step + 1) % 3:
                time.sleep(0.05)
            collect(comm)

    dgcl.launch(run, 3)

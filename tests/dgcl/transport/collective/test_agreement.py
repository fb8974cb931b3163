"""Ranks that make different calls, come late, leave or raise: who is named, and that nothing wrong travels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dgcl
import dgcl.nn
from dgcl.communicator import Communicator
from dgcl.errors import CommError
from tests.dgcl.rank_pool import RankPool
from tests.dgcl.support_plans import make_world, random_world
from tests.dgcl.support_ranks import join
from tests.dgcl.transport.collective.test_transport import apart
from tests.samples import named

pytestmark = pytest.mark.xdist_group("alone")

#: Vertex 0 on rank 0, vertex 1 on rank 1: rows travel both ways, or one way alone.
WORLDS = {
    "both ways": make_world([(0, 1), (1, 0)], [0, 1], 2),
    "0 to 1": make_world([(0, 1)], [0, 1], 2),
    "1 to 0": make_world([(1, 0)], [0, 1], 2),
    "line of 3": random_world(3, 3, "line"),
}

Call = Callable[[Communicator], object]


def expand(width: int, dtype: torch.dtype = torch.float32) -> Call:
    return lambda comm: comm.expand(torch.zeros(comm.num_owned, width, dtype=dtype))


def fold(comm: Communicator) -> object:
    return comm.fold(torch.zeros(comm.num_local, 4))


def start(comm: Communicator) -> object:
    return comm.expand_async(torch.zeros(comm.num_owned, 3)).wait()


#: What rank 0 does, what the others do, and what is said of each.
DIFFERENT: dict[str, tuple[Call, Call, str, str]] = {
    "width": (expand(4), expand(8), "rows of 16 bytes", "rows of 32 bytes"),
    "dtype": (expand(4), expand(4, torch.int32), "torch.float32", "torch.int32"),
    "verb": (expand(4), fold, "expand of rows", "fold of rows"),
    "no width": (expand(0), expand(1), "rows of 0 bytes", "rows of 4 bytes"),
    "started": (start, expand(4), "rows of 12 bytes", "rows of 16 bytes"),
}


def caught(world: str, function: Call, timeout: float = 60.0) -> tuple[str, str, list[int]]:
    """What this rank's ``function(comm)`` raises, and the calls in which it sent something."""
    sent: list[int] = []
    comm: Any = join(WORLDS[world].shares(), timeout, "collective")
    post, transport = comm.transport.wire.post, comm.transport

    def noted(*args: Any) -> Any:
        sent.append(transport._number)
        return post(*args)

    transport.wire.post = noted
    kind, text = "", ""
    try:
        function(comm)
    except Exception as error:
        kind, text = type(error).__name__, str(error)
    comm.control.barrier()  # nobody leaves before all have failed
    return kind, text, sent


def disagree(world: str, case: str) -> tuple[str, str, list[int]]:
    zero, others, _, _ = DIFFERENT[case]

    def run(comm: Communicator) -> None:
        expand(2)(comm)
        (others if comm.rank else zero)(comm)

    return caught(world, run)


def judge(results: list[tuple[str, str, list[int]]], case: str) -> None:
    assert [kind for kind, _, _ in results] == ["DisagreementError"] * len(results), results
    for _, text, _ in results:
        for part in ("is in call 2", *DIFFERENT[case][2:]):
            assert part in text
    assert any(2 not in sent for _, _, sent in results), "both sent rows"


@pytest.mark.parametrize("case", DIFFERENT)
@pytest.mark.parametrize("world", WORLDS)
def test_ranks_that_make_different_calls_both_hear_of_both(world: str, case: str) -> None:
    judge(dgcl.launch(disagree, WORLDS[world].world_size, world, case), case)


@named("apart_or_not", {"shared pages": (), "no shared memory": (apart,)})
@pytest.mark.parametrize("case", DIFFERENT)
def test_processes_hear_of_both_and_live(
    case: str, apart_or_not: tuple[Any, ...], rank_pool: Callable[[int], RankPool]
) -> None:
    for _ in range(2):
        judge(rank_pool(3).run(*apart_or_not, disagree, "line of 3", case), case)


raised = threading.Event()  # by the other rank


def late(comm: Communicator) -> None:
    if comm.rank == 1:
        raised.wait(60)
    expand(1)(comm)


def leaves(comm: Communicator) -> None:
    expand(1)(comm)
    if comm.rank == 1:
        comm.close()
    else:
        expand(1)(comm)


def drops(comm: Communicator) -> None:
    if comm.rank == 1:
        comm.expand_async(torch.zeros(comm.num_owned, 3))
    expand(3)(comm)


def changes(comm: Communicator) -> None:
    x = torch.zeros(comm.num_owned, 3)
    pending = comm.expand_async(x)
    if comm.rank == 1:
        x += 1
    pending.wait()


def counts_alone(comm: Communicator) -> None:
    if comm.rank == 1:
        dgcl.nn.accuracy(torch.eye(2)[:1], torch.zeros(1, dtype=torch.int64), comm=comm)
    else:
        expand(3)(comm)


DROPPED = "rank 1: rows of a started exchange were dropped"
WAITED = "waited 0.5 s in vain: stage 0: 1 row missing from rank 1 (it has not begun this call)"


@named(
    "function, timeout, zero, one",
    {
        "late": (
            late,
            0.5,
            f"CommTimeoutError: rank 0, expand (call 1): {WAITED}",
            f"because rank 0 reports: rank 0, expand (call 1): {WAITED}",
        ),
        "leaves": (
            leaves,
            60.0,
            "rank 0, expand (call 2): rank 1 has closed its communicator, and stage 0",
            "",
        ),
        "drops": (drops, 60.0, DROPPED, DROPPED),
        "changes": (changes, 60.0, "", "RuntimeError: rows were changed in place"),
        "in a collective": (counts_alone, 60.0, "rank 1 is in accuracy", "rank 1 is in accuracy"),
    },
)
def test_what_one_rank_does_is_said_on_both(function: Call, timeout: float, zero: str, one: str) -> None:
    over = threading.Barrier(2)
    raised.clear()

    def run() -> str:
        comm = join(WORLDS["both ways"].shares(), timeout, "collective")
        try:
            function(comm)
            return ""
        except (CommError, RuntimeError) as error:
            raised.set()
            return f"{type(error).__name__}: {error}"
        finally:
            over.wait(60)

    results = dgcl.launch(run, 2)
    assert zero in results[0]
    assert one in results[1]
    assert bool(results[1]) == bool(one)


def test_a_failed_communicator_refuses_and_a_fresh_one_works(rank_pool: Callable[[int], RankPool]) -> None:
    assert rank_pool(3).run(fail_and_go_on) == [True] * 3


def repeat(comm: Communicator) -> None:
    while True:
        comm.expand(comm.owned_ids)


def fail_and_go_on() -> bool:
    shares = WORLDS["line of 3"].shares()
    comm = join(shares, 60.0, "collective")
    kept = comm.expand(comm.owned_ids)
    copy = kept.clone()
    if comm.rank == 1:
        comm.fail("stopped")
    with pytest.raises(CommError, match="rank 1: stopped"):
        repeat(comm)
    with pytest.raises(CommError, match="unusable since an earlier call failed"):
        comm.expand(comm.owned_ids)
    comm.close()
    with pytest.raises(ValueError, match="closed"):
        comm.expand(comm.owned_ids)
    fresh = join(shares, 60.0, "collective")
    return torch.equal(fresh.expand(fresh.owned_ids), copy) and torch.equal(kept, copy)

import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

import dgcl
from dgcl.errors import CommError, CommTimeoutError, PeerLostError
from dgcl.ranks.abort_reasons import AbortReason, AbortReasons
from dgcl.ranks.context import context
from dgcl.ranks.control import Call, Control, SingleControl
from dgcl.ranks.deadlines import in_time
from dgcl.ranks.object_messages import GroupMessages
from dgcl.ranks.thread_control import ThreadControl, ThreadRendezvous
from tests.support.rank_pool import RankPool


def collectives():
    """Every collective, with values that tell who gave them."""
    control = context.require_control()
    rank, world_size = control.rank, control.world_size
    last = world_size - 1
    for step in range(5):
        everyone = [(r, step, "x" * r) for r in range(world_size)]
        mine = everyone[rank]
        assert control.exchange(mine) == everyone
        assert control.broadcast(mine) == everyone[0]
        assert control.broadcast(mine, src=last) == everyone[last]
        assert control.scatter(everyone if rank == 0 else None) == mine
        assert control.scatter(everyone[::-1] if rank == last else None, src=last) == everyone[last - rank]
        assert control.gather(mine) == (everyone if rank == 0 else None)
        assert control.gather(mine, dst=last) == (everyone if rank == last else None)
        assert control.exchange(None) == [None] * world_size
        control.barrier()


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_collectives_among_threads(world_size: int):
    dgcl.launch(collectives, world_size)


def test_collectives_among_processes(rank_pool: Callable[[int], RankPool]):
    rank_pool(3).run(collectives)


def test_one_rank_alone_needs_nobody():
    control: Control = SingleControl()
    assert (control.rank, control.world_size) == (0, 1)
    assert control.exchange(5) == control.gather(5) == [5]
    assert control.scatter([5]) == control.broadcast(5) == 5


# Threads that do not come.


def meet(
    world_size: int, timeout: float, *ranks: Callable[[ThreadControl, ThreadRendezvous], Any]
) -> list[Any]:
    """What each thread returns or raises."""
    rendezvous = ThreadRendezvous(world_size, timeout)
    results: list[Any] = [None] * world_size

    def run(rank: int):
        try:
            results[rank] = ranks[rank](ThreadControl(rendezvous, rank), rendezvous)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return results


def comes(control: ThreadControl, rendezvous: ThreadRendezvous) -> list[Any]:
    return control.exchange(control.rank)


def leaves(control: ThreadControl, rendezvous: ThreadRendezvous):
    rendezvous.leave(control.rank, "has returned")


def test_a_thread_that_has_left_is_named_at_once():
    results = meet(3, 60.0, comes, leaves, comes)
    for rank in (0, 2):
        assert isinstance(results[rank], PeerLostError)
        assert str(results[rank]) == f"rank {rank}: the ranks cannot meet: rank 1 has returned"


def test_threads_that_do_not_come_are_named_after_the_deadline():
    gave_up = threading.Semaphore(0)

    def waits(control: ThreadControl, rendezvous: ThreadRendezvous) -> list[Any]:
        try:
            return control.exchange(control.rank)
        finally:
            gave_up.release()

    def stays_away(control: ThreadControl, rendezvous: ThreadRendezvous):
        assert all(gave_up.acquire(timeout=60) for _ in range(2))

    results = meet(3, 0.2, waits, stays_away, waits)
    kinds = sorted(type(results[rank]).__name__ for rank in (0, 2))
    assert kinds[0] in ("CommTimeoutError", "PeerLostError")
    late = next(results[rank] for rank in (0, 2) if isinstance(results[rank], CommTimeoutError))
    assert "ranks [1] have not come to exchange within 0.2 s" in str(late)


def test_who_comes_after_the_others_gave_up_is_told():
    gave_up = threading.Event()

    def waits(control: ThreadControl, rendezvous: ThreadRendezvous) -> list[Any]:
        try:
            return control.exchange(control.rank)
        finally:
            gave_up.set()

    def comes_late(control: ThreadControl, rendezvous: ThreadRendezvous) -> Any:
        assert gave_up.wait(60)
        return control.exchange(1)

    results = meet(2, 0.2, waits, comes_late)
    assert isinstance(results[0], CommTimeoutError)
    assert isinstance(results[1], PeerLostError)
    assert "rank 0 has given up waiting" in str(results[1])


def test_leaving_after_a_round_does_not_disturb_it():
    """A thread may leave while others are still on their way out of the last round."""

    def comes_and_leaves(control: ThreadControl, rendezvous: ThreadRendezvous) -> list[Any]:
        values: list[Any] = []
        for _ in range(20):
            values = control.exchange(control.rank)
        rendezvous.leave(control.rank, "has returned")
        return values

    for _ in range(20):
        assert meet(4, 20.0, *[comes_and_leaves] * 4) == [[0, 1, 2, 3]] * 4


def test_rounds_of_hurried_and_slow_threads_keep_their_values_apart():
    def run():
        control = context.require_control()
        chance = random.Random(control.rank)
        for step in range(100):
            if chance.random() < 0.1:
                time.sleep(0.002)
            assert control.exchange((control.rank, step)) == [(rank, step) for rank in range(4)]

    dgcl.launch(run, 4)


def test_a_control_group_that_was_closed_says_why_and_what_to_do():
    class Group:
        pass

    group: Any = Group()
    held = weakref.ref(group)
    messages = GroupMessages(group, 0, AbortReasons(dist.HashStore()))
    del group
    messages.close(AbortReason(1, "rank 1 has died"))
    assert held() is None, "nothing may hold the connections any more"
    messages.leave("was stopped later")
    with pytest.raises(CommError, match=r"is closed since rank 1 has died; call dgcl\.init\(\) again"):
        messages.swap(Call("exchange", 0, ""), {}, [1])


@pytest.mark.parametrize("outcome", ["value", "error", "never"])
def test_a_step_that_is_given_up(outcome: str):
    release = threading.Event()

    def step() -> int:
        if outcome == "error":
            raise ValueError("not this one")
        if outcome == "never":
            release.wait()
        return 7

    if outcome == "value":
        assert in_time(step, 60.0) == 7
    elif outcome == "error":
        with pytest.raises(ValueError, match="not this one"):
            in_time(step, 60.0)
    else:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            in_time(step, 0.05)
        release.set()


# What ranks say when they leave.


def test_a_reason_is_read_by_others_and_belongs_to_its_group():
    store = dist.HashStore()
    one, other = (AbortReasons(dist.PrefixStore(name, store)) for name in ("one", "other"))
    assert one.read(2) is None
    said = AbortReason(0, 'rank 0 was stopped by OSError: "no" \N{SNOWMAN}')
    one.post(2, said)
    assert one.read(2) == said
    assert one.read(0) is None
    assert other.read(2) is None


class BrokenStore(dist.HashStore):
    """The store of a job whose keeper has died, or whose host does not answer."""

    def __init__(self, answer: Callable[[], None]):
        super().__init__()
        self._answer = answer

    def set(self, key: str, value: str):
        self._answer()

    def check(self, keys: list[str]) -> bool:
        self._answer()
        return False


def dies():
    raise dist.DistNetworkError("Broken pipe")


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_store_that_is_gone_is_said_and_not_waited_for(how: str):
    is_over, answered = threading.Event(), []

    def hangs():
        is_over.wait(60)
        answered.append(None)

    reasons = AbortReasons(BrokenStore(dies if how == "dies" else hangs))
    reasons.post(0, AbortReason(0, "rank 0 has returned"))
    with pytest.raises(ConnectionError, match="does not answer"):
        reasons.read(1)
    assert answered == [], "the store was waited for"
    is_over.set()

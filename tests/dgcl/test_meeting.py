"""dgcl.meeting: who has met has met the same attempts of the others, whoever gave up and came again before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from dgcl.control import GroupControl
from dgcl.errors import CommError, CommTimeoutError, DisagreementError
from dgcl.group_messages import GroupMessages
from dgcl.meeting import Attempt, meet
from dgcl.subgroups import make_group, next_store
from tests.dgcl.rank_pool import RankPool


def come(store: dist.Store, place: int, size: int, timeout: float, purpose: str = "init") -> int | CommError:
    try:
        return meet(store, place, size, purpose, timeout, threading.Event())
    except CommError as error:
        return error


def test_ranks_that_retry_at_different_times_meet() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        failed = list(pool.map(lambda place: come(store, place, 3, 0.2 + 0.4 * place), (0, 1)))
    assert all(isinstance(error, CommTimeoutError) for error in failed)
    assert str(failed[0]) == "rank 2 has not come within 0.2 s"
    assert str(failed[1]) == "rank 0 has given up waiting, rank 2 has not come within 0.6 s"
    late = come(store, 2, 3, 0.05)
    assert "rank 0 has given up waiting, rank 1 has given up waiting" in str(late)
    for _ in range(2):  # having met, they can meet again, under another number
        with ThreadPoolExecutor(3) as pool:
            numbers = list(pool.map(lambda place: come(store, place, 3, 60.0), (2, 0, 1)))
        assert isinstance(numbers[0], int)
        assert len(set(numbers)) == 1
    with ThreadPoolExecutor(3) as pool:
        assert numbers[0] not in pool.map(lambda place: come(store, place, 3, 60.0), (1, 2, 0))


def test_different_purposes_are_named_on_all() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(lambda place: come(store, place, 2, 60.0, ("init", "network")[place]), (0, 1)))
    assert [type(error) for error in errors] == [DisagreementError, DisagreementError]
    assert {str(error) for error in errors} == {"rank 0 is at init and rank 1 at network"}


def test_a_meeting_that_nobody_waits_for_is_left() -> None:
    store, given_up = dist.HashStore(), threading.Event()
    given_up.set()
    with pytest.raises(CommError, match="nobody waits"):
        meet(store, 0, 2, "init", 60.0, given_up)
    assert "rank 0 has given up waiting" in str(come(store, 1, 2, 0.01))


def retry(members: list[int]) -> None:
    """The last of these ranks misses a first meeting, the others give up at different times; then all come."""
    if dist.get_rank() not in members:
        return
    group = dist.distributed_c10d._get_default_group()
    if len(members) < group.size():
        group = dist.new_group(members, use_local_synchronization=True)
    rank, last = dist.get_rank(group), len(members) - 1
    store = dist.PrefixStore(f"gave up {members}", dist.distributed_c10d._get_default_store())
    if rank < last:
        with pytest.raises(
            CommTimeoutError, match=rf"cannot connect to each other: .*rank {last} has not come"
        ):
            GroupControl(group, 0.5 + rank)
        store.set(str(rank), "")
    else:
        store.wait([str(other) for other in range(last)])
    for _ in range(2):
        control = GroupControl(group, 120.0)
        assert control.exchange((rank, members)) == [(other, members) for other in range(len(members))]
        control.leave("is done")


@pytest.mark.parametrize("members", [[0, 1, 2], [2, 1]], ids=["all", "some"])
def test_processes_that_retry_meet(rank_pool: Callable[[int], RankPool], members: list[int]) -> None:
    rank_pool(3).run(retry, members)


def crossed() -> None:
    """Ranks 0 and 1 make a group of both, rank 1 after one of ranks 1 and 2, in which rank 2 is late."""
    pairs = {0: [[0, 1]], 1: [[1, 2], [0, 1]], 2: [[1, 2]]}
    me = dist.get_rank()
    made = []
    for pair in pairs[me]:
        if me == 2:
            time.sleep(0.5)
        store = next_store(pair, pair.index(me), "a test", 60.0, threading.Event())
        made.append(
            GroupMessages(make_group(pair, pair.index(me), store, 60.0, is_part=True), pair.index(me))
        )
    for pair, messages in zip(pairs[me], made, strict=True):
        other = 1 - pair.index(me)
        assert messages.swap("a test", {other: (me, pair)}, [other]) == {other: (pair[other], pair)}


def test_groups_of_other_ranks_do_not_mix(rank_pool: Callable[[int], RankPool]) -> None:
    rank_pool(3).run(crossed)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(("step", "step", "give up", "vanish"))), max_size=60
    ),
)
def test_whatever_the_order_all_have_met_the_same_attempts(size: int, events: list[tuple[int, str]]) -> None:
    """Ranks step, give up and come again, or vanish and come again, in any order; in the end all come and stay."""
    store = dist.HashStore()
    attempts: list[Attempt | None] = [None] * size
    tickets = [0] * size
    met: dict[int, dict[int, int]] = {}  # number -> place -> which attempt of that place

    def step(place: int) -> int | None:
        if attempts[place] is None:
            attempts[place] = Attempt(store, place, size, "init")
            tickets[place] += 1
        attempt = attempts[place]
        assert attempt is not None
        number = attempt.step()
        if number is not None:
            assert place not in met.setdefault(number, {}), "called twice"
            met[number][place] = tickets[place]
            attempts[place] = None
        return number

    for place, event in events:
        if place >= size:
            continue
        if event == "step":
            step(place)
            continue
        attempt, attempts[place] = attempts[place], None
        if attempt is not None and event == "give up":
            attempt.give_up()
    # A meeting that some have reached and others left is over, too: these find nobody to connect to.
    for place in range(size):
        attempts[place] = None
    last: list[int | None] = [None] * size
    for _ in range(2 * size + 2):
        for place in reversed(range(size)):
            if last[place] is None:
                last[place] = step(place)
    complete = [number for number, places in met.items() if len(places) == size]
    assert complete, met
    # Nobody has met an attempt that came after another meeting of the same rank.
    for place in range(size):
        mine = [(number, places[place]) for number, places in met.items() if place in places]
        assert sorted(mine) == sorted(mine, key=lambda pair: pair[1])
        assert len({ticket for _, ticket in mine}) == len(mine)

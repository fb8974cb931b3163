"""dgcl.ranks.rendezvous: ranks in one round have met the same attempts, whoever gave up and came again before."""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import dgcl
from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.ranks import group_control
from dgcl.ranks.abort_reasons import AbortReasons
from dgcl.ranks.context import context
from dgcl.ranks.control import Call
from dgcl.ranks.gloo_groups import make_group, next_store
from dgcl.ranks.group_control import GroupControl
from dgcl.ranks.object_messages import GroupMessages
from dgcl.ranks.rendezvous import Attempt, Waiting, meet
from tests.support.rank_pool import RankPool
from tests.support.samples import named

pytestmark = pytest.mark.xdist_group("alone")

TEST = Call("exchange", 1, "a test")


def come(store: dist.Store, place: int, size: int, timeout: float, purpose: str = "init") -> int | CommError:
    try:
        return meet(store, place, size, purpose, timeout, Waiting())
    except CommError as error:
        return error


def test_ranks_that_retry_at_different_times_meet():
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        failed = list(pool.map(lambda place: come(store, place, 3, 0.2 + place), (0, 1)))
    assert all(isinstance(error, CommTimeoutError) for error in failed)
    assert str(failed[0]) == "rank 2 has not come within 0.2 s"
    assert str(failed[1]) == "rank 2 has not come, rank 0 has given up waiting within 1.2 s"
    late = come(store, 2, 3, 0.05)
    assert "rank 0 has given up waiting, rank 1 has given up waiting" in str(late)
    for _ in range(2):  # having met, they can meet again, under another number
        with ThreadPoolExecutor(3) as pool:
            numbers = list(pool.map(lambda place: come(store, place, 3, 60.0), (2, 0, 1)))
        assert isinstance(numbers[0], int)
        assert len(set(numbers)) == 1
    with ThreadPoolExecutor(3) as pool:
        assert numbers[0] not in pool.map(lambda place: come(store, place, 3, 60.0), (1, 2, 0))


def test_different_purposes_are_named_on_all():
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(lambda place: come(store, place, 2, 60.0, ("init", "network")[place]), (0, 1)))
    assert [type(error) for error in errors] == [DisagreementError, DisagreementError]
    assert {str(error) for error in errors} == {"rank 0 is at init and rank 1 at network"}


def test_a_rendezvous_that_nobody_waits_for_is_left():
    store, waiting = dist.HashStore(), Waiting()
    waiting.set()
    with pytest.raises(CommError, match="nobody waits"):
        meet(store, 0, 2, "init", 60.0, waiting)
    assert "rank 0 has given up waiting" in str(come(store, 1, 2, 0.01))


@named(
    "dead, places, clause",
    {
        "called": (2, (0, 1), "rank 2 had come, but has died or given up since, and has not joined"),
        "caller": (0, (1, 2), "rank 0 had come, but did not call the others"),
    },
)
def test_who_came_and_died_is_named_and_replaced(dead: int, places: tuple[int, int], clause: str):
    store = dist.HashStore()
    Attempt(store, dead, 3, "init")
    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(lambda place: come(store, place, 3, 0.5), places))
    assert [type(error) for error in errors] == [CommTimeoutError] * 2
    assert all(clause in str(error) for error in errors), errors
    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(lambda place: come(store, place, 3, 60.0), (0, 1, 2)))) == 1


def test_a_rank_that_meets_twice_at_once_is_told():
    store = dist.HashStore()
    first = Attempt(store, 1, 2, "init")
    assert first.step() is None
    second = Attempt(store, 1, 2, "init")
    with pytest.raises(CommError, match=r"rank 1 meets these ranks twice at once, in two threads"):
        first.step()
    first.give_up()
    number = Attempt(store, 0, 2, "init").step()
    assert number is not None
    assert second.step() == number


def retry(members: list[int]):
    """The last of these ranks misses a first rendezvous, the others give up at different times; then all come."""
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


@pytest.mark.slow
@named("members", {"all": [0, 1, 2], "some": [2, 1]})
def test_processes_that_retry_meet(rank_pool: Callable[[int], RankPool], members: list[int]):
    rank_pool(3).run(retry, members)


def crossed():
    """Ranks 0 and 1 make a group of both, rank 1 after one of ranks 1 and 2, in which rank 2 is late."""
    pairs = {0: [[0, 1]], 1: [[1, 2], [0, 1]], 2: [[1, 2]]}
    me = dist.get_rank()
    made = []
    for pair in pairs[me]:
        if me == 2:
            time.sleep(0.5)
        store = next_store(pair, pair.index(me), "a test", 60.0, Waiting())
        group, reasons = make_group(store, pair.index(me), 2, 60.0), AbortReasons(store)
        made.append(GroupMessages(group, pair.index(me), reasons))
    for pair, messages in zip(pairs[me], made, strict=True):
        other = 1 - pair.index(me)
        assert messages.swap(TEST, {other: (me, pair)}, [other]) == {other: (pair[other], pair)}


def test_groups_of_other_ranks_do_not_mix(rank_pool: Callable[[int], RankPool]):
    rank_pool(3).run(crossed)


def wait_for_all(step: str):
    """Until every rank has come to this step, by the store alone."""
    store = dist.PrefixStore(f"step {step}", dist.distributed_c10d._get_default_store())
    store.set(str(dist.get_rank()), "")
    store.wait([str(rank) for rank in range(dist.get_world_size())])


def in_other_orders():
    """Rank 0 comes to all first, rank 1 to the pair; both are told, and all meet afterwards."""
    me = dist.get_rank()
    missing = {0: "rank 1 has not come|were not within", 1: "rank 0 has not come", 2: "rank 1 has not come"}

    def come_to_mine():
        if me == 1:
            next_store([0, 1], 1, "dgcl.init", 1.0, Waiting())
        else:
            GroupControl(None, 1.0)

    wait_for_all("begin")
    with pytest.raises(CommTimeoutError, match=missing[me]):
        come_to_mine()
    wait_for_all("gave up")  # who still waited here would meet those who have come again
    assert GroupControl(None, 60.0).exchange(me) == [0, 1, 2]


def after_a_failure():
    """What the error says helps: dgcl.init() once more."""
    control = context.require_control()
    me = control.rank
    if me == 1:
        control.leave("was stopped by a test")
    with pytest.raises(CommError, match=r"rank 1 was stopped by a test"):
        control.barrier()
    with pytest.raises(CommError, match=r"call dgcl\.init\(\) again"):
        control.barrier()
    dgcl.init()
    fresh = context.require_control()
    assert fresh.exchange(me) == [0, 1, 2]
    dgcl.init()
    assert context.control is fresh, "nothing has failed"


def interrupted():
    """Ctrl-C while rank 1 waits for rank 2, which does not come, and then while all connect to each other."""
    me = dist.get_rank()
    for where in ("before they meet", "while they connect"):
        wait_for_all(where)
        if me == 2 and where == "before they meet":
            wait_for_all(f"over: {where}")
            continue
        with pytest.MonkeyPatch.context() as patch:
            if me == 2:
                patch.setattr(group_control, "make_group", lambda *_: time.sleep(60.0))
            if me == 1:
                threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt if me == 1 else PeerLostError) as caught:
                GroupControl(None, 300.0)
        if me != 1:
            assert "rank 1 was stopped by KeyboardInterrupt in dgcl.init" in str(caught.value)
        wait_for_all(f"over: {where}")
    assert GroupControl(None, 60.0).exchange(me) == [0, 1, 2]


def in_threads():
    """Two threads of each rank, with a control plane each, make groups at once, not in step."""
    me = dist.get_rank()
    controls = [GroupControl(None, 60.0) for _ in range(2)]

    def make(which: int):
        time.sleep(0.02 * ((me + which) % 3))
        for _ in range(5):
            messages = GroupMessages(controls[which].new_group()[0], me, AbortReasons(dist.HashStore()))
            others = [other for other in range(3) if other != me]
            got = messages.swap(TEST, dict.fromkeys(others, (me, which)), others)
            assert got == {other: (other, which) for other in others}

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, range(2)))


def many_times():
    """What a control plane holds ends with it."""
    held = []
    for count in range(40):
        control = GroupControl(None, 60.0)
        control.barrier()
        if count in (9, 39):
            held.append([len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")])
    assert all(last <= first for first, last in zip(*held, strict=True)), held


@pytest.mark.parametrize("scenario", [in_other_orders, after_a_failure, interrupted, in_threads, many_times])
def test_processes_meet(rank_pool: Callable[[int], RankPool], scenario: Callable[[], None]):
    rank_pool(3).run(scenario)


@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(("step", "step", "give up", "vanish"))), max_size=60
    ),
)
def test_whatever_the_order_all_have_met_the_same_attempts(size: int, events: list[tuple[int, str]]):
    """Ranks step, give up and come again, or vanish and come again, in any order; in the end all come and stay."""
    store = dist.HashStore()
    attempts: list[Attempt | None] = [None] * size
    tokens = [0] * size
    met: dict[int, dict[int, int]] = {}  # number -> place -> which attempt of that place

    def step(place: int) -> int | None:
        if attempts[place] is None:
            attempts[place] = Attempt(store, place, size, "init")
            tokens[place] += 1
        attempt = attempts[place]
        assert attempt is not None
        number = attempt.step()
        if number is not None:
            assert place not in met.setdefault(number, {}), "in two rounds"
            met[number][place] = tokens[place]
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
    # A round that some have reached and others left is over, too: these find nobody to connect to.
    for place in range(size):
        attempts[place] = None
    last: list[int | None] = [None] * size
    for _ in range(2 * size + 2):
        for place in reversed(range(size)):
            if last[place] is None:
                last[place] = step(place)
    complete = [number for number, places in met.items() if len(places) == size]
    assert complete, met
    # Nobody has met an attempt that came after another round of the same rank.
    for place in range(size):
        mine = [(number, places[place]) for number, places in met.items() if place in places]
        assert sorted(mine) == sorted(mine, key=lambda pair: pair[1])
        assert len({token for _, token in mine}) == len(mine)

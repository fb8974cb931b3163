"""Exchanges of several communicators under way at once: started and waited for in any order, they all end."""

import copy
import gc
import threading
from collections.abc import Callable

import pytest

import dgcl
from dgcl.communicator import Communicator
from dgcl.errors import CommError, DisagreementError
from dgcl.ranks.context import context
from dgcl.transport.common.control_page import ControlPage
from tests.support.crossed_calls import PAIR, both, count_looks, expand
from tests.support.plans import Tree, World, make_world
from tests.support.ranks import join, local_ids
from tests.support.samples import named


def through(*ranks: int) -> Callable[[int, list[int], int, int], list[tuple[Tree, int]]]:
    """A tree that goes from rank to rank."""
    path = [(ranks[stage], ranks[stage + 1], stage) for stage in range(len(ranks) - 1)]
    return lambda source, dests, count, world_size: [(path, count)]


#: Rank 0's row goes to both others: over rank 1, or over rank 2.
STAR, OWNERS = [(0, 1), (0, 2)], [0, 1, 2]
OVER_ONE = make_world(STAR, OWNERS, 3, through(0, 1, 2))
OVER_TWO = make_world(STAR, OWNERS, 3, through(0, 2, 1))


def start(comm: Communicator) -> Callable[[], bool]:
    pending = comm.expand_async(comm.owned_ids)
    return lambda: bool((pending.wait() == comm.halo_ids).all())


@named("crossed_starts", {"started alike": False, "started crossed": True})
@named("worlds", {"1-2": (OVER_ONE, OVER_TWO), "2-1": (OVER_TWO, OVER_ONE)})
def test_they_may_be_waited_for_in_any_order(worlds: tuple[World, World], crossed_starts: bool):
    """Ranks 1 and 2 each wait for what the other has to pass on in the exchange that it waits for last; rank 0 comes
    when both have waited for some time."""
    waited = [threading.Event(), threading.Event()]

    def run() -> bool:
        comms = [join(world.shares(), 60.0) for world in worlds]
        rank = comms[0].rank
        if rank == 0:
            assert all(event.wait(50) for event in waited)
        else:
            count_looks(comms[rank - 1], 3, waited[rank - 1])
        order = [0, 1] if rank == 2 and crossed_starts else [1, 0]
        finish = {number: start(comms[number]) for number in order}
        first = max(rank - 1, 0)
        return finish[first]() and finish[1 - first]()

    assert all(dgcl.launch(run, 3))


@named("another_plane", {"one control plane": False, "a process group each": True})
def test_one_that_was_started_is_carried_on_while_its_rank_is_in_another_call(another_plane: bool):
    """Rank 1 wants the rows of the exchange that rank 0 has started before it comes to the call that rank 0 is in."""
    waits = threading.Event()

    def run() -> bool:
        one = join(PAIR.shares(), 60.0)
        if another_plane:
            context.control = copy.copy(context.require_control())
        two = join(PAIR.shares(), 60.0)
        if one.rank == 0:
            count_looks(two, 3, waits)
            finish = start(one)
            return expand(two) and finish()
        waits.wait(50)
        return expand(one) and expand(two)

    assert all(dgcl.launch(run, 2))


def test_a_call_that_was_only_started_is_no_proof_of_another_order():
    """Rank 1 has started a call that rank 0 comes to later, and has not begun yet the one that rank 0 is in."""
    looked = threading.Event()

    def run() -> bool:
        one, two = both(60.0)
        one.transport.runtime.alone = two.transport.runtime.alone = lambda: True
        if one.rank == 0:
            count_looks(one, 4, looked)
            return expand(one) and expand(two)
        finish = start(two)
        looked.wait(50)
        return expand(one) and finish()

    assert all(dgcl.launch(run, 2))


def test_a_started_exchange_is_told_from_one_that_is_waited_for_whenever_it_is_looked_at(
    monkeypatch,
):
    """Rank 1 starts both and waits for the second. Rank 0, in the first, sees the second begun; it is held up there
    until rank 1 has begun the first and waits."""
    began, looked = threading.Event(), threading.Event()
    stuck_call = vars(ControlPage)["stuck_call"].fget

    def held_up(control_page: ControlPage) -> int:
        if context.require_control().rank == 0:
            began.set()
            assert looked.wait(50)
        return int(stuck_call(control_page))

    def run() -> bool:
        one, two = both(60.0)
        one.transport.runtime.alone = two.transport.runtime.alone = lambda: True
        if one.rank == 0:
            return expand(one) and expand(two)
        finish_two = start(two)
        assert began.wait(50)
        finish_one = start(one)
        count_looks(two, 1, looked)
        return finish_two() and finish_one()

    monkeypatch.setattr(ControlPage, "stuck_call", property(held_up))
    assert all(dgcl.launch(run, 2))


def test_a_peer_with_other_threads_is_not_accused():
    """Rank 0 has one thread; rank 1 waits in the second communicator in a helper, and comes to the first later."""
    looked = threading.Event()

    def run() -> bool:
        one, two = both(60.0)
        if one.rank == 0:
            one.transport.runtime.alone = two.transport.runtime.alone = lambda: True
            count_looks(one, 4, looked)
            return expand(one) and expand(two)
        results: list[bool] = []
        helper = threading.Thread(target=lambda: results.append(expand(two)))
        helper.start()
        looked.wait(50)
        results.append(expand(one))
        helper.join()
        return results == [True, True]

    assert all(dgcl.launch(run, 2))


def test_calls_in_different_orders_are_found_while_others_are_under_way():
    def run() -> str:
        spare, (one, two) = join(PAIR.shares(), 600.0), both(600.0)
        for comm in (spare, one, two):
            comm.transport.runtime.alone = lambda: True
        finish = start(spare)
        first, second = (one, two) if one.rank == 0 else (two, one)
        with pytest.raises(DisagreementError) as caught:
            _ = expand(first), expand(second)
        assert finish(), "what was started before is as good as any"
        return str(caught.value)

    zero, one = dgcl.launch(run, 2)
    assert "expand (call 1) is in expand of communicator 2" in zero
    assert "rank 1 has begun call 1 of communicator 3" in zero
    assert "rank 0 has begun call 1 of communicator 2" in one


def test_a_thread_may_take_up_what_another_one_carries_on():
    """The rank's main thread is in one call and lends a hand to another, which a helper waits for."""

    def run() -> bool:
        one, two = both(60.0)
        results: list[bool] = []
        for _ in range(20):
            finish = start(one)
            helper = threading.Thread(target=lambda end=finish: results.append(end()))
            helper.start()
            results.append(expand(two))
            helper.join()
        return results == [True] * 40 and bool((expand(one), local_ids(two).numel()))

    assert all(dgcl.launch(run, 2))


def test_rows_of_a_dropped_exchange_stay_while_it_may_be_carried_on():
    def run() -> tuple[bool, bool, str]:
        comm = join(PAIR.shares(), 60.0)
        if comm.rank == 1:
            comm.control.exchange(None)
            with pytest.raises(CommError) as caught:
                expand(comm)
            return True, True, str(caught.value)
        rows = comm.owned_ids
        pending = comm.expand_async(rows)
        call = comm.transport.runtime.under_way
        assert call is not None
        assert call.rows is not None
        kept = call.rows.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        del rows, pending
        gc.collect()
        lent = comm.transport.runtime.assist()
        comm.control.exchange(None)
        return kept, not lent, "dropped"

    assert all(kept and idle and "dropped" in said for kept, idle, said in dgcl.launch(run, 2))

"""Two communicators whose calls the ranks make in different orders; and programs that only look like it."""

import re
import threading

import pytest

import dgcl
from dgcl.errors import CommError, DisagreementError
from dgcl.ranks.context import context
from tests.support.crossed_calls import OTHER, PAIR, both, count_looks, expand
from tests.support.ranks import join
from tests.support.samples import named, slow

pytestmark = pytest.mark.xdist_group("alone")


@named("used", {"in use": True, "new": slow(False)})
def test_calls_in_different_orders_are_an_error_on_both_sides_at_once(used: bool):
    def run() -> str:
        one, two = both(600.0)
        if used:
            assert expand(one)
            assert expand(two)
        one.transport.runtime.alone = two.transport.runtime.alone = lambda: True
        first, second = (one, two) if context.require_control().rank == 0 else (two, one)
        with pytest.raises(DisagreementError) as caught:
            _ = expand(first), expand(second)
        return str(caught.value)

    zero, one = dgcl.launch(run, 2)
    call = 2 if used else 1
    assert f"rank 0, expand (call {call}) is in expand of communicator 1" in zero
    assert f"rank 1 has begun call {call} of communicator 2" in zero
    assert f"rank 1, expand (call {call}) is in expand of communicator 2" in one
    assert f"rank 0 has begun call {call} of communicator 1" in one
    assert f"where rank 1 has begun {'1' if used else 'none'}" in one


def test_a_rank_that_looked_just_before_the_other_left_is_told_of_the_order():
    """Rank 1 sees no crossing yet; before it looks on, rank 0 has found it, and has closed both communicators."""
    left = threading.Event()

    def run() -> str:
        one, two = both(600.0)
        one.transport.runtime.alone = two.transport.runtime.alone = lambda: True
        first = (one, two)[one.rank]
        if one.rank == 1:
            failure_detector = two.transport.runtime
            look_elsewhere = failure_detector._elsewhere

            def too_early(*rest: object, **more: object) -> str:
                failure_detector._elsewhere = look_elsewhere  # type: ignore[method-assign]
                left.wait(50)
                return ""

            failure_detector._elsewhere = too_early  # type: ignore[method-assign, assignment]
        with pytest.raises(DisagreementError, match="communicators in different orders") as caught:
            expand(first)
        if one.rank == 0:
            one.close()
            two.close()
            left.set()
        return str(caught.value)

    dgcl.launch(run, 2)


@named("used", {"in use": True, "new": False})
def test_where_other_threads_may_come_the_deadline_tells_the_order(used: bool):
    def run() -> str:
        one, two = join(PAIR.shares(), 2.0), join(OTHER.shares(), 2.0)
        if used:
            assert expand(one)
            assert expand(two)
        one.transport.runtime.alone = two.transport.runtime.alone = lambda: False
        first = one if context.require_control().rank == 0 else two
        with pytest.raises(CommError) as caught:
            expand(first)
        return f"{type(caught.value).__name__}: {caught.value}"

    said = dgcl.launch(run, 2)
    pattern = r"CommTimeoutError: .*rank \d has begun call \d of communicator \d .*, where rank \d has begun (none|1)"
    assert any(re.search(pattern, text) for text in said), said


def test_threads_may_make_the_calls_of_a_communicator_each():
    """Rank 0 waits in the first, whose call rank 1 has not begun; rank 1 waits in the second in another thread."""
    waiting = [threading.Event(), threading.Event()]

    def run():
        one, two = both(60.0)
        rank = one.rank
        mine, others = (one, two) if rank == 0 else (two, one)
        results: list[bool] = []

        def elsewhere():
            """This rank's calls on the communicator in which the other rank waits: late."""
            results.append(expand(others))
            waiting[1 - rank].wait(50)
            results.append(expand(others))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        results.append(expand(mine))
        count_looks(mine, 3, waiting[rank])
        results.append(expand(mine))
        thread.join()
        assert results == [True] * 4

    dgcl.launch(run, 2)


def test_communicators_built_and_used_by_one_thread_may_then_go_to_a_thread_each():
    """Rank 0 waits in call 2 of the first; rank 1's helper has begun call 2 of the second, its main thread waits until
    rank 0 has looked around several times; rank 0's helper comes after that."""
    looked = threading.Event()

    def run():
        one, two = both(60.0)
        assert expand(one)
        assert expand(two)
        began = threading.Event()
        results: list[bool] = []

        def helper():
            if two.rank == 0:
                looked.wait(50)
            began.set()
            results.append(expand(two))

        thread = threading.Thread(target=helper)
        thread.start()
        if one.rank == 0:
            count_looks(one, 5, looked)
        else:
            began.wait(50)
            looked.wait(50)
        results.append(expand(one))
        thread.join()
        assert results == [True, True]

    dgcl.launch(run, 2)


def test_a_failed_communicator_that_is_still_held_says_nothing_about_its_successor():
    """Rank 1 began a call of it that rank 0 did not; rank 0 then waits in the next one for a late rank 1."""
    looked = threading.Event()

    def run():
        old, spare = both(60.0)
        assert expand(old)
        if old.rank == 0:
            old.fail("out of memory")
        else:
            with pytest.raises(CommError, match="out of memory"):
                expand(old)
        new = join(PAIR.shares(), 60.0)
        for comm in (old, spare, new):
            comm.transport.runtime.alone = lambda: True
        if new.rank == 0:
            count_looks(new, 5, looked)
        else:
            looked.wait(50)
        assert expand(new)
        assert expand(spare)

    dgcl.launch(run, 2)


def test_one_communicator_may_be_used_while_an_exchange_of_another_is_under_way():
    def run():
        one, two = both(60.0)
        for _ in range(50):
            pending = one.expand_async(one.owned_ids)
            assert expand(two)
            assert (pending.wait() == one.halo_ids).all()

    dgcl.launch(run, 2)

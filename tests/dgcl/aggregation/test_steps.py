"""Steps that compiled code carries out at once do what they do one by one, and fail as they do.

==============================  ===============================================================================
what                            judged by
==============================  ===============================================================================
results, there and back         the same bits as one by one, for placements, windows, types, weights, relays,
                                ranks without rows, threads; some ranks one way and some the other
Python calls                    as many for 12 windows as for 3
a rank that fails, dies, is     every other rank names it, in a call of the compiled code
interrupted, leaves, disagrees
==============================  ===============================================================================
"""

import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dgcl
from dgcl.aggregation import grouped_edges as edge_sums
from dgcl.aggregation import step_execution
from dgcl.aggregation.block import Block
from dgcl.errors import CommError
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.step_list import StepList
from tests.dgcl.aggregation.support_aggregator import CASE_BY_NAME, PLACEMENTS, connect, features
from tests.dgcl.aggregation.support_windows import WAYS, most_windows
from tests.dgcl.support_plans import random_world
from tests.dgcl.support_ranks import join
from tests.samples import slow


def runtime_of(comm: dgcl.Communicator) -> Runtime:
    found: Runtime = comm.transport.runtime  # type: ignore[attr-defined]
    return found


class Counted:
    """How often steps were carried out at once, by thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._here = threading.local()
        real = StepList.run

        def run(steps: StepList, *given: Any, **options: Any) -> Any:
            self._here.number = self.number + (not options)
            return real(steps, *given, **options)

        monkeypatch.setattr(StepList, "run", run)

    @property
    def number(self) -> int:
        found: int = getattr(self._here, "number", 0)
        return found


def there_and_back(comm: dgcl.Communicator, aggregate: Any, width: int, dtype: torch.dtype) -> bytes:
    x = comm.dispatch_features(features(comm.num_nodes, width, dtype=dtype)).requires_grad_()
    y = aggregate(x)
    (gradient,) = torch.autograd.grad((y**2).sum(), x)
    return y.detach().numpy().tobytes() + gradient.numpy().tobytes()  # type: ignore[no-any-return]


def both_ways(comm: dgcl.Communicator, options: dict[str, Any], counted: Counted):
    """For each reduction, type and width: one by one, then at once, then attended on some ranks and not on others."""
    runtime = runtime_of(comm)
    weight = torch.linspace(0.5, 1.5, comm.local.num_edges)
    for reduce, dtype, width, weighted in (
        ("sum", torch.float32, 33, False),
        ("mean", torch.float64, 1, False),
        ("sum", torch.float64, 4, True),
    ):
        aggregate = comm.aggregator(reduce, edge_weight=weight.to(dtype) if weighted else None, **options)
        one_by_one = there_and_back(comm, aggregate, width, dtype)
        before = counted.number
        for repeat in range(4):
            runtime.one_step = repeat < 2 or (comm.rank + repeat) % 2 == 0
            assert there_and_back(comm, aggregate, width, dtype) == one_by_one
        runtime.one_step = True
        assert counted.number == before + 8


@pytest.mark.sample(3)
@pytest.mark.parametrize("edges", PLACEMENTS)
@pytest.mark.parametrize("way", WAYS)
def test_the_same_bits_as_one_by_one(way, edges, monkeypatch):
    counted = Counted(monkeypatch)

    def on_rank():
        for name in ("hub", "directed"):
            comm = connect(CASE_BY_NAME[name], 4, edges)
            both_ways(comm, most_windows(name, WAYS[way]), counted)
            comm.close()

    dgcl.launch(on_rank, 4)


@pytest.mark.parametrize("trees", [slow("line"), "random-1"])
def test_rows_that_are_relayed_and_a_rank_without_rows(trees, monkeypatch):
    counted = Counted(monkeypatch)
    world = random_world(3, 4, trees, empty=(2,))

    def on_rank():
        for way in WAYS:
            comm = join(world.shares())
            both_ways(comm, WAYS[way], counted)
            comm.close()

    dgcl.launch(on_rank, 4)


def test_sums_by_several_threads(monkeypatch):
    monkeypatch.setattr(edge_sums, "_LEAST", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    counted = Counted(monkeypatch)
    threads, real = set(), edge_sums.in_threads

    def noted(run: Callable[[int, int], None], *rest: Any):
        def run_noted(begin: int, end: int):
            threads.add(threading.get_ident())
            run(begin, end)

        real(run_noted, *rest)

    monkeypatch.setattr(edge_sums, "in_threads", noted)

    def on_rank():
        for way in ("whole", "5"):
            both_ways(connect(CASE_BY_NAME["hub"], 2, "cover"), WAYS[way], counted)

    dgcl.launch(on_rank, 2)
    assert len(threads) > 2


def count_calls(windows: int) -> tuple[int, int]:
    """Python calls of an aggregation and of its adjoint; the fewest of several, in which no peer was late."""
    comm = connect(CASE_BY_NAME["hub"], 2, "cover")
    operation = comm.aggregator(windows=windows).operation
    x, found = comm.dispatch_features(features(26, 3)), []
    for each in (operation, operation.transposed):
        samples = []
        for _ in range(20):
            number = 0

            def count(frame: Any, event: str, what: Any):
                nonlocal number
                number += event == "call"

            sys.setprofile(count)
            try:
                each.run(x, comm.transport)
            finally:
                sys.setprofile(None)
            samples.append(number)
        found.append(min(samples))
    return found[0], found[1]


def test_windows_cost_no_call_of_python():
    for few, many in zip(dgcl.launch(count_calls, 2, 3), dgcl.launch(count_calls, 2, 12), strict=True):
        assert few == many
        assert max(many) < 60


class Fault:
    """What a rank does in one of its sums, which it makes one by one."""

    def __init__(self, happens: Callable[[], None]):
        self._happens, self._here, self._real = happens, threading.local(), Block.sum

    def arm(self, place: int):
        """In sum number ``place`` of this rank."""
        self._here.left = place

    def patch(self, patch: pytest.MonkeyPatch):
        def count(block: Block, *given: Any, **kinds: Any):
            left = getattr(self._here, "left", -1)
            if left == 0:
                self._happens()
            self._here.left = left - 1
            self._real(block, *given, **kinds)

        repeated = step_execution._repeated
        patch.setattr(Block, "sum", count)
        patch.setattr(
            step_execution,
            "_repeated",
            lambda *given: None if hasattr(self._here, "left") else repeated(*given),
        )


def fail_later(fault: Fault, options: dict[str, Any], place: int, backward: bool, timeout: float = 60.0):
    """Rank 1 fails; the others have compiled code carry out their steps."""
    comm = connect(CASE_BY_NAME["hub"], 3, "cover", timeout=timeout)
    x = comm.dispatch_features(features(26, 2)).requires_grad_()
    aggregate = comm.aggregator(**options)
    for _ in range(3):
        aggregate(x).sum().backward()
    y = aggregate(x) if backward else x.sum()
    if comm.rank == 1:
        fault.arm(place)
    for _ in range(3):  # ranks that need no row of rank 1's are stopped by a later call
        if backward:
            y.sum().backward(retain_graph=True)
        else:
            aggregate(x)


def raise_an_error():
    raise ZeroDivisionError("in a window")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("options, place", [({"windows": 3}, 0), ({"windows": 3}, 4), ({}, 2)], ids=str)
def test_an_exception_of_another_rank_is_named(options, place, backward, monkeypatch):
    fault = Fault(raise_an_error)
    fault.patch(monkeypatch)
    with pytest.raises(ZeroDivisionError, match="in a window") as raised:
        dgcl.launch(fail_later, 3, fault, options, place, backward)
    notes = "\n".join(raised.value.__notes__)
    for rank in (0, 2):
        told = rf"rank {rank}: CommError: rank {rank} stops because .*rank 1: stopped by ZeroDivisionError"
        assert re.search(told, notes)


def test_ctrl_c_while_compiled_code_waits_is_told(monkeypatch):
    """Rank 0 is interrupted where it waits for rank 1, which is in a sum."""
    waiting, interrupted, from_steps = threading.Event(), threading.Event(), []

    def wait_for_the_interrupt():
        waiting.set()
        assert interrupted.wait(60)

    def interrupt(runtime: Runtime, *given: Any):
        if runtime.rank == 0 and waiting.is_set() and not interrupted.is_set():
            from_steps.append("_go_on" in [frame.name for frame in traceback.extract_stack()])
            interrupted.set()
            raise KeyboardInterrupt
        real(runtime, *given)

    def on_rank() -> str:
        try:
            fail_later(fault, {"windows": 3}, 1, False)
        except KeyboardInterrupt:
            return "interrupted"
        except CommError as error:
            return str(error)
        return "nothing"

    fault, real = Fault(wait_for_the_interrupt), Runtime._check_failures
    fault.patch(monkeypatch)
    monkeypatch.setattr(Runtime, "_check_failures", interrupt)
    first, *others = dgcl.launch(on_rank, 3)
    assert first == "interrupted"
    assert from_steps == [True]
    for said in others:
        assert re.search("rank 0 left (expand|fold) of exchange .* at stage 0: KeyboardInterrupt", said)


def test_a_rank_that_makes_another_call_is_named():
    def on_rank() -> str:
        comm = connect(CASE_BY_NAME["hub"], 2, "halo")
        x = comm.dispatch_features(features(26, 2))
        aggregate = comm.aggregator(windows=3)
        for _ in range(3):
            aggregate(x)
        try:
            comm.expand(x) if comm.rank == 1 else aggregate(x)
        except CommError as error:
            return str(error)
        return "nothing"

    for said in dgcl.launch(on_rank, 2):
        assert "window 1 of 3" in said
        assert "expand" in said


def end_in_a_window(folder: str, how: str, backward: bool):
    """Rank 1 is killed, or stopped for longer than the timeout; the others write down what they are told."""

    def end():
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        subprocess.Popen(["sh", "-c", f"sleep 8; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    fault = Fault(end)
    with pytest.MonkeyPatch.context() as patch:
        fault.patch(patch)
        try:
            fail_later(fault, {"windows": 3}, 4, backward, 60.0 if how == "killed" else 3.0)
        except CommError as error:
            rank = dgcl.current_communicator().rank
            Path(folder, f"rank-{rank}").write_text(str(error))
            raise


@pytest.mark.slow
@pytest.mark.parametrize("how, backward", [("killed", False), ("killed", True), ("stopped", False)])
def test_a_rank_that_ends_in_a_window_is_named(tmp_path, how, backward, forked_ranks):
    with pytest.raises((CommError, RuntimeError)):
        dgcl.launch(end_in_a_window, 3, str(tmp_path), how, backward, ranks="processes")
    for rank in (0, 2):
        assert "rank 1" in Path(tmp_path, f"rank-{rank}").read_text()

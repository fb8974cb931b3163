"""Steps that compiled code carries out at once do what they do one by one, and fail as they do.

==============================  ===============================================================================
what                            judged by
==============================  ===============================================================================
results, there and back         the same bits as one by one, for placements, windows, types, weights, relays,
                                ranks without rows, threads; some ranks one way and some the other
Python calls                    as many for 12 windows as for 3
a rank that is interrupted, or  every other rank names it, in a call of the compiled code; of ranks that fail
disagrees                       or die there tells ``test_failures.py``
==============================  ===============================================================================
"""

import re
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dgcl
from dgcl.aggregation import grouped_edges as edge_sums
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.step_list import StepList
from tests.dgcl.aggregation.support_failures import Fault, fail_at
from tests.dgcl.aggregation.support_windows import WAYS, most_windows
from tests.support.aggregator import CASE_BY_NAME, PLACEMENTS, connect, features
from tests.support.plans import random_world
from tests.support.ranks import join, said
from tests.support.samples import slow


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
            return said(lambda: fail_at(fault, "sum", {"windows": 3}, 1, backward=False, calls_before=3))
        except KeyboardInterrupt:
            return "interrupted"

    fault, real = Fault(wait_for_the_interrupt, monkeypatch), Runtime._check_failures
    monkeypatch.setattr(Runtime, "_check_failures", interrupt)
    first, *others = dgcl.launch(on_rank, 3)
    assert first == "interrupted"
    assert from_steps == [True]
    for text in others:
        assert re.search("rank 0 left (expand|fold) of exchange .* at stage 0: KeyboardInterrupt", text)


def test_a_rank_that_makes_another_call_is_named():
    def on_rank() -> str:
        comm = connect(CASE_BY_NAME["hub"], 2, "halo")
        x = comm.dispatch_features(features(26, 2))
        aggregate = comm.aggregator(windows=3)
        for _ in range(3):
            aggregate(x)
        return said(lambda: comm.expand(x) if comm.rank == 1 else aggregate(x))

    for text in dgcl.launch(on_rank, 2):
        assert "window 1 of 3" in text
        assert "expand" in text

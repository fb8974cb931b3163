"""Lists of steps take few Python calls, and give the same whether Python sees their calls or not.

| case | judged by |
| --- | --- |
| a call without gradient | Python functions entered, counted by the interpreter; an upper bound |
| calls of several dtypes, shapes and verbs in turns, results kept, plain and attended | each other, bit for bit |
| a closed communicator, other rows, another thread | the error |
| more kinds of calls than are remembered | their number |
"""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import dgcl
from dgcl.communicator import Communicator
from dgcl.transport.shared_memory.step_list import StepList
from tests.support.plans import World, random_world
from tests.support.ranks import on_threads, same_bits
from tests.support.samples import named

WORLDS = {
    "one rank": random_world(0, 1),
    "two": random_world(1, 2),
    "relays": random_world(3, 4, "hub"),
    "empty parts": random_world(8, 5, "random-1", empty=(0, 3)),
}
KINDS = [
    (dtype, shape)
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32)
    for shape in ((3,), (2, 5))
]
MOST_CALLS = {"expand": 14, "fold": 16, "graph_allgather": 17, "fold_halo": 25}


def entered(call: Callable[[], object]) -> list[str]:
    """Names of the Python functions that a call enters, compiled ones included."""
    names: list[str] = []

    def note(frame: FrameType, event: str, argument: Any):
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names[1:]  # without the function that makes the call


@named("world", {"one rank": WORLDS["one rank"], "two": WORLDS["two"]})
@pytest.mark.parametrize("verb", MOST_CALLS)
def test_a_call_enters_few_python_functions(world: World, verb: str):
    def run(comm: Communicator) -> list[str]:
        rows = torch.randn(comm.num_local if verb == "fold" else comm.num_owned, 4)
        halo = torch.zeros(comm.num_halo, 4)
        calls: dict[str, Callable[[], object]] = {
            "expand": lambda: comm.expand(rows),
            "fold": lambda: comm.fold(rows),
            "graph_allgather": lambda: dgcl.graph_allgather(rows, comm),
            "fold_halo": lambda: comm.fold_halo(halo, rows),
        }
        calls[verb]()
        # A rank that waits long comes back to Python; in the shortest of many calls none does.
        return min((entered(calls[verb]) for _ in range(50)), key=len)

    for names in on_threads(world, run):
        assert "_go_on" not in names, names
        assert len(names) <= MOST_CALLS[verb], names


@named("world", WORLDS)
def test_plain_and_attended_calls_in_turns_give_the_same(world: World):
    def run(comm: Communicator):
        generator = torch.Generator().manual_seed(comm.rank)
        kept = []
        for turn in range(4):
            comm.transport.runtime.one_step = turn > 0  # type: ignore[attr-defined]
            for dtype, shape in KINDS:
                drawn = torch.randint(
                    0, 9, (comm.num_local, *shape), generator=generator.manual_seed(comm.rank)
                )
                rows = drawn.to(dtype)
                own, halo = rows[: comm.num_owned], rows[comm.num_owned :]
                kept.append((comm.expand(own), comm.fold(rows), comm.fold_halo(halo, own.clone())))
        first = kept[: len(KINDS)]
        for number, results in enumerate(kept):  # all are alive until now: no buffer served two of them
            for result, expected in zip(results, first[number % len(KINDS)], strict=True):
                assert same_bits(result, expected), number

    on_threads(world, run)


def test_a_call_that_cannot_be_made_is_an_error():
    def run(comm: Communicator):
        rows = torch.randn(comm.num_owned, 4)
        for _ in range(3):
            comm.expand(rows)
        with pytest.raises(ValueError, match="rows must have num_owned"):
            comm.expand(torch.randn(comm.num_owned + 1, 4))
        held, go_on = threading.Event(), threading.Event()

        def hold():
            comm.transport.runtime.holder["thread"] = threading.get_ident()  # type: ignore[attr-defined]
            held.set()
            go_on.wait()

        other = threading.Thread(target=hold)
        other.start()
        held.wait()
        with pytest.raises(ValueError, match="another thread is in a call"):
            comm.expand(rows)
        go_on.set()
        other.join()
        comm.transport.runtime.holder.clear()  # type: ignore[attr-defined]
        assert comm.expand(rows).shape == (comm.num_local, 4)
        comm.close()
        with pytest.raises(ValueError, match="this communicator is closed"):
            comm.expand(rows)

    on_threads(WORLDS["one rank"], run)


def test_kinds_of_calls_without_end_are_not_remembered(monkeypatch):
    made = []
    prepare = StepList.__init__

    def noted(self: StepList, *given: Any, **options: Any):
        made.append(given)
        prepare(self, *given, **options)

    monkeypatch.setattr(StepList, "__init__", noted)

    def run(comm: Communicator) -> int:
        for width in [*range(1, 300), *range(1, 300)]:
            comm.expand(torch.zeros(comm.num_owned, width))
        return len(comm.transport._lists)  # type: ignore[attr-defined]

    (known,) = on_threads(WORLDS["one rank"], run)
    assert known <= 256 < len(made)

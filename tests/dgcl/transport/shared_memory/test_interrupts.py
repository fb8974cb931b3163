"""Ctrl-C between any two steps of Python inside a call: whoever counts on this rank hears of it."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import dgcl
from dgcl.autograd import pending
from dgcl.communicator import Communicator
from dgcl.transport.common import life_cycle
from dgcl.transport.shared_memory import executor, started, step_list, transport
from dgcl.transport.shared_memory.engine import WAITING
from tests.support.plans import make_world
from tests.support.ranks import join
from tests.support.samples import slow

ALONE = make_world([(0, 1), (1, 2)], [0, 0, 0], 1)
_FILES = {module.__file__ for module in (executor, pending, started, life_cycle, step_list, transport)}


class _Interrupts:
    """Raises KeyboardInterrupt at the n-th step of the interpreter in the runtime's own modules."""

    def __init__(self, step: int):
        self._left = step
        self.struck = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in _FILES or frame.f_code.co_name == "__del__":
            return None  # an exception in a finaliser goes nowhere
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and not self.struck:
            self._left -= 1
            if self._left == 0:
                self.struck = True
                raise KeyboardInterrupt
        return self


def wait_in_vain(comm: Communicator, times: int):
    """Have the next ``times`` looks of the engine find nothing to do."""
    runtime = comm.transport.runtime
    advance, left = runtime.advance, [times]

    def look(*given: Any) -> int:
        left[0] -= 1
        return WAITING if left[0] >= 0 else advance(*given)

    runtime.advance = look  # type: ignore[method-assign, assignment]


def expand(comm: Communicator):
    comm.expand(torch.ones(comm.num_owned, 2))


def fold(comm: Communicator):
    comm.fold(torch.ones(comm.num_local, 2))


def halo_rows(comm: Communicator):
    comm.expand_async(torch.ones(comm.num_owned, 2)).wait()


def fold_halo(comm: Communicator):
    comm.fold_halo(torch.ones(comm.num_halo, 2), torch.ones(comm.num_owned, 2))


@pytest.mark.parametrize("stride", [8, slow(1)])
@pytest.mark.parametrize(
    "call, one_step",
    [
        pytest.param(call, one_step, id=f"{'plain' if one_step else 'attended'} {call.__name__}")
        for call in (expand, fold, halo_rows, fold_halo)
        for one_step in (False, True)
    ],
)
def test_an_interrupt_at_any_step_is_told_or_leaves_nothing_to_tell(
    call: Callable[[Communicator], None], one_step: bool, stride: int
):
    """Daily every eighth step, of another remainder in each call."""
    least = 100 if not one_step else 50  # steps of Python
    shares = ALONE.shares()

    def run() -> list[str]:
        said = []
        step = -len(call.__name__) % stride
        while True:
            step += stride
            comm = join(shares)
            comm.transport.runtime.one_step = one_step
            call(comm)
            interrupts = _Interrupts(step)
            sys.settrace(interrupts)
            try:
                call(comm)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            runtime = comm.transport.runtime
            failure = runtime._failure
            task = runtime.tasks[call in (fold, fold_halo)]
            done = bool(task.sent.all() and task.received.all()) and runtime.under_way is None
            assert failure is not None or done, f"step {step}: peers would wait until the deadline"
            said.append(str(failure))
            comm.close()
            if not interrupts.struck:
                return said

    (said,) = dgcl.launch(run, 1)
    assert len(said) > least // stride, "not every step was tried"
    assert sum("KeyboardInterrupt()" in text for text in said) > least // 2 // stride


@pytest.mark.slow
def test_an_interrupt_while_a_hand_is_lent_leaves_what_was_started_as_it_was():
    shares = ALONE.shares()

    def run() -> int:
        step = 0
        while True:
            step += 1
            comm, started = join(shares), join(shares, 5.0)
            rows = torch.full((started.num_owned, 2), float(step))
            wait_in_vain(started, 1)
            pending = started.expand_async(rows)
            wait_in_vain(comm, 2)
            interrupts = _Interrupts(step)
            sys.settrace(interrupts)
            try:
                expand(comm)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            assert pending.wait().shape == (0, 2), f"step {step}"
            started.close()
            comm.close()
            if not interrupts.struck:
                return step

    (steps,) = dgcl.launch(run, 1)
    assert steps > 200, "not every step was tried"


@pytest.mark.parametrize("calls_before", [0, 2])
def test_who_is_interrupted_before_a_call_begins_names_that_call(calls_before: int):
    def run() -> str:
        comm = join(ALONE.shares())
        for _ in range(calls_before):
            expand(comm)

        def interrupted(num_bytes: int) -> Any:
            raise KeyboardInterrupt

        comm.transport.runtime.pool.take = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            expand(comm)
        return str(comm.transport.runtime._failure)

    assert dgcl.launch(run, 1) == [f"rank 0 left before call {calls_before + 1}: KeyboardInterrupt()"]

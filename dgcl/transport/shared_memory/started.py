"""Expand and fold of halo rows alone, with separate start and wait, between which a rank can compute.

A whole expand returns owned and halo rows as one tensor, so it copies the owned ones. Here an expand returns only halo
rows, and a fold adds to owned rows in place, so no other rows are touched. The start sends everything whose receiver is
ready; the wait sends the rest. No thread works in between: with one rank per core no core is free for it.
Called by `transport`. Free to change while rows and sums are right, and changed, dropped or forked ones raise
(`tests/dgcl/autograd/test_pending.py`), several may be waited for in any order
(`tests/dgcl/autograd/test_started_exchanges.py`), and an interrupted start is told
(`tests/dgcl/transport/shared_memory/test_interrupts.py`).
"""

import sys
from collections.abc import Callable

from torch import Tensor

from dgcl.errors import CommError
from dgcl.transport import base
from dgcl.transport.row_checks import version_of
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.step_list import Run, StepList


class _Started:
    """A list of steps that has stopped before its wait.

    If it is dropped then, the communicator fails, because peers would wait for this rank. The rows must not change
    until the wait is over.
    """

    _over = True
    _run: Run | None = None

    def __init__(self, runtime: Runtime, steps: StepList, rows: Tensor) -> None:
        self._runtime, self._steps, self._source = runtime, steps, rows
        before = runtime.under_way
        try:
            self._run = steps.run(materialised(rows), started=True)
            self._over = False
        except BaseException:
            if runtime.under_way is not None and runtime.under_way is not before:
                runtime.fail(CommError(f"rank {runtime.rank}: the start of an exchange was interrupted"))
            raise

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not exiting() and not self._over and self._is_missed():
            self._runtime.abandon("dropped and nobody waited for them")

    def _is_missed(self) -> bool:
        """Whether peers would miss what is still to be done."""
        return True


class StartedExpand(_Started, base.StartedExpand):
    """An expand of halo rows that is under way."""

    def __init__(self, runtime: Runtime, steps: StepList, rows: Tensor) -> None:
        self._version = version_of(rows)
        super().__init__(runtime, steps, rows)

    def wait(self) -> Tensor:
        """Wait for the halo rows and return them, ``(num_halo, *F)``.

        Raises:
            CommError: A peer is lost, late, or makes another call.
            ValueError: The communicator was closed meanwhile, or this process is a fork of the rank's.
            RuntimeError: The rows were changed in place meanwhile.
        """
        self._runtime.check_unchanged(self._source, self._version)
        assert self._run is not None
        self._steps.finish(self._run)
        self._over = True
        return self._run.result

    def _is_missed(self) -> bool:
        return self._run is not None and not self._steps.is_done(self._run)


class StartedFold(_Started, base.StartedFold):
    """A fold of halo rows that is under way, or, ``at_once``, one that happens in the wait."""

    def __init__(self, runtime: Runtime, steps: StepList, rows: Tensor, at_once: bool) -> None:
        self._steps, self._rows = steps, rows
        if not at_once:
            super().__init__(runtime, steps, rows)

    def wait(self, into: Tensor) -> Tensor:
        """Add the arriving rows to ``into``, ``(num_owned, *F)``, in place, in a fixed order; return ``into``.

        Raises:
            CommError, ValueError: As :meth:`StartedExpand.wait`.
        """
        sums = into.contiguous()
        if self._run is None:
            self._steps.run(materialised(self._rows), sums)
        else:
            self._steps.finish(self._run, sums)
            self._over = True
        return into if sums is into else into.copy_(sums)


def materialised(rows: Tensor) -> Tensor:
    """The rows, contiguous, with lazy conjugation and negation carried out: memory holds their values."""
    return rows.resolve_conj().resolve_neg().contiguous()

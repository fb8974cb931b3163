"""Transport of ranks on the CPUs of one host: moves tensors' rows through shared memory.

For each verb, exchange, shape and type it prepares a list of steps once (:mod:`dgcl.transport.shared_memory.step_list`)
and remembers up to 256 of them; a caller that makes more begins anew.
Called by `dgcl/transport/connect`, `dgcl/transport/cuda/host_agreement` and `dgcl/calibration/timing`. Free to change
while expands copy every bit, folds are within their bound, and results stay valid
(`tests/dgcl/transport/shared_memory/test_executor.py`), and lists stay few
(`tests/dgcl/transport/shared_memory/test_step_list.py`).
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dgcl.program.rank_program import Program
from dgcl.transport.base import Expanded, Transport
from dgcl.transport.common.calls import VERBS
from dgcl.transport.common.dtypes import as_tensor
from dgcl.transport.describe import label_exchange
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.started import StartedExpand, StartedFold, materialised
from dgcl.transport.shared_memory.step_list import StepList
from dgcl.transport.steps import EXPAND, FIRST, FOLD, FOLDED, GIVEN, RESULT, Begin, Step, Wait

#: Lists of steps that a communicator remembers; who makes more begins anew.
MOST_LISTS = 256


class SharedMemoryTransport(Transport):
    """Moves rows through memory that the ranks of a host share.

    Attributes:
        runtime: Executes the programs.
        bytes_sent: ``(E, 2, P)`` int64, by exchange, verb and peer.
    """

    fixed = ""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.runtime = runtime
        self.bytes_sent = runtime.bytes_sent
        self._lists: dict[object, StepList] = {}
        self._known = self._lists.get

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_owned, *F)`` owned rows to ``(num_local, *F)`` owned and halo rows."""
        steps = self._known((EXPAND, exchange, rows.shape, rows.dtype)) or self.whole(EXPAND, exchange, rows)
        return steps.run(rows if rows.is_contiguous() else rows.contiguous())

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_local, *F)`` rows, only read, to the ``(num_owned, *F)`` sums over all ranks that hold them."""
        steps = self._known((FOLD, exchange, rows.shape, rows.dtype)) or self.whole(FOLD, exchange, rows)
        return steps.run(rows if rows.is_contiguous() else rows.contiguous())

    def whole(self, verb: int, exchange: int, rows: Tensor) -> StepList:
        """The steps of an expand or a fold of owned and halo rows together, for rows like these."""
        key, program = (verb, exchange, rows.shape, rows.dtype), self.runtime.programs[exchange]
        begin = Begin(verb, exchange, GIVEN, RESULT if verb == EXPAND else FOLDED, whole=True)
        result = RESULT, program.num_local if verb == EXPAND else program.num_owned
        label = label_exchange(program, VERBS[verb], rows)
        return self._known(key) or self._remember(key, rows, begin, result, label)

    def _halo(self, verb: int, exchange: int, rows: Tensor, purpose: int) -> StepList:
        """The steps of an expand or a fold of halo rows alone."""
        key = verb, exchange, rows.shape, rows.dtype, purpose
        known = self._known(key)
        if known is None:
            begin = Begin(verb, exchange, GIVEN, FIRST if verb == EXPAND else FOLDED, purpose)
            result = (FIRST, self.runtime.programs[exchange].num_halo) if verb == EXPAND else None
            known = self._remember(key, rows, begin, result)
        return known

    def _remember(
        self,
        key: object,
        rows: Tensor,
        begin: Begin,
        result: tuple[int, int] | None,
        label: str = "",
    ) -> StepList:
        if len(self._lists) >= MOST_LISTS:
            self._lists.clear()
        steps: list[Step] = [begin, Wait(begin)]
        self._lists[key] = step_list = StepList(
            self.runtime, steps, rows.shape[1:], rows.dtype, result=result, label=label
        )
        return step_list

    def begin_expand(
        self, rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedExpand | Expanded:
        """Start an expand that returns only halo rows; with ``wait`` the caller waits at once.

        ``purpose`` (:data:`dgcl.transport.steps.FOR_SUM`) is compared where calls of ranks are.
        """
        steps = self._halo(EXPAND, exchange, rows, purpose)
        return Expanded(steps.run(materialised(rows))) if wait else StartedExpand(self.runtime, steps, rows)

    def begin_fold(
        self, halo_rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedFold:
        """Start a fold of ``(num_halo, *F)`` halo rows only; with ``wait`` the caller waits at once."""
        steps = self._halo(FOLD, exchange, halo_rows, purpose)
        return StartedFold(self.runtime, steps, halo_rows, wait)

    def sequence(
        self, steps: Sequence[Step], width: int, dtype: torch.dtype, windows: tuple[int, int] | None
    ) -> StepList | None:
        """What carries out steps that repeat; None: they are carried out one by one."""
        if dtype not in (torch.float32, torch.float64) or not width:
            return None
        return StepList(self.runtime, steps, (width,), dtype, windows=windows)

    def add_exchanges(self, programs: Mapping[str, Program], counted: int, first: int | None = None) -> int:
        """As :meth:`dgcl.transport.base.Transport.add_exchanges`."""
        if first is not None:
            self._lists.clear()
        return self.runtime.add_exchanges(programs, counted, first)

    def describe(self) -> list[str]:
        """For each rank how rows travel to and from it, and why."""
        peers = range(self.runtime.peers.world_size)
        return [
            "this rank" if p == self.runtime.rank else "shared memory: each maps the other's" for p in peers
        ]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor from the pool; its memory returns to the pool when its storage dies."""
        self.runtime.check_present()
        block = self.runtime.pool.allocate(math.prod(shape) * dtype.itemsize)
        return as_tensor(self.runtime.pool, block, shape, dtype)

    # For benchmarks.

    def fill_free(self, byte: int) -> None:
        """Overwrite all free memory of the pool, so that a read of memory that was never written is noticed."""
        self.runtime.pool.fill_free(byte)

"""Base class of transports, which move rows between ranks, and the path of a call through the files.

A transport carries out *expand* (owned rows to the ranks that need them) and *fold* (its adjoint, sums back to the
owners); ``connect.py`` chooses which. A new one inherits from :class:`Transport` and is compared bit by bit with
``collective/``, which runs wherever torch.distributed does. The comment below follows a call through all files.
Called by `connect`, `rounding`, `dgcl/communicator`, `dgcl/autograd/operators`, `dgcl/aggregation/step_execution` and
others. Free to change while all transports give the same bits (`tests/dgcl/transport/collective/test_transport.py`,
`tests/dgcl/transport/cuda/test_communicator.py`).
"""

# From ``dgcl.graph_allgather(rows)`` to the copy and back, with the files in order:
#
# 1. ``api.py`` takes the current communicator; ``communicator.py`` (``expand``) finds the exchange's number and checks
#    the rows; ``autograd/operators.py`` records the fold as the backward and calls ``comm.transport.expand``.
# 2. ``shared_memory/transport.py`` finds the list of steps for this verb, exchange, shape and type, or prepares it
#    (``step_table.py`` from ``transport/steps.py``; ``tasks.py`` has the schedule of ``program/rank_program.py`` for
#    the engine).
# 3. ``shared_memory/step_list.py`` takes call lock and memory (``common/life_cycle.py``, ``common/pool.py``), and hands
#    the list to compiled code: ``interpreter.py`` goes through the steps, ``engine.py`` sends and waits,
#    ``kernels/rows.py`` copies and adds. The result is a tensor over the memory that peers have written to.
# 4. What takes long comes back to Python, to ``shared_memory/executor.py``: segments to map, deadlines, failures
#    (``common/failure_detector.py``, which reads ``common/control_page.py`` of ``common/peers.py``).
#
# ``collective/`` does 2 and 3 by torch operations, ``cuda/`` by kernels; ``connect.py`` chooses.

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.program.rank_program import Program
from dgcl.ranks.control import Listener
from dgcl.transport.common.life_cycle import LifeCycle
from dgcl.transport.steps import Step


class StartedExpand(Protocol):
    """An expand of halo rows that is under way."""

    def wait(self) -> Tensor:
        """``(num_halo, *F)``; called once."""


class StartedFold(Protocol):
    """A fold of halo rows that is under way."""

    def wait(self, into: Tensor) -> Tensor:
        """Add what arrives to ``into``, ``(num_owned, *F)`` and of the rows' type, in place; called once."""


class StepList(Protocol):
    """Steps that one call of compiled code carries out, for rows of one width and type.

    Attributes:
        num_partial: Rows of PARTIAL, which the caller gives where sums are written there; else None.
    """

    num_partial: int | None

    def run(self, rows: Tensor, out: Tensor, partial: Tensor | None = None) -> Tensor:
        """Carry them out, and return ``out``."""


class Transport:
    """Moves the rows of one rank's exchanges; as it stands, by calls that are carried out in one piece.

    Every call is collective: all ranks make the same calls, of the same exchange, dtype and row shape, in one order.
    ``exchange`` is an exchange's number, its place among those of the communicator. Rows are dense tensors on the
    transport's device that were checked before (:mod:`dgcl.transport.row_checks`).

    Errors: :class:`~dgcl.errors.CommError` for what peers did. After one the transport is unusable. ``ValueError``
    where it was closed, has another call under way, or is used in a fork of its process.

    Args:
        life: Its life cycle.

    Attributes:
        bytes_sent: ``(E, 2, P)`` int64: bytes written to each peer so far, by exchange and verb (expand, fold).
        fixed: Why exchanges cannot be replaced by others; "" where they can be.
    """

    bytes_sent: np.ndarray
    fixed = "this transport carries out whole calls"

    def __init__(self, life: LifeCycle) -> None:
        self._life = life

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_owned, *F)`` owned rows to ``(num_local, *F)`` owned and halo rows."""
        raise NotImplementedError

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_local, *F)`` rows, only read, to the ``(num_owned, *F)`` sums over all ranks that hold them.

        The rows are of a summable type that is not complex.
        """
        raise NotImplementedError

    def begin_expand(
        self, rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedExpand:
        """Start an expand that returns only halo rows; with ``wait`` the caller waits at once.

        ``purpose`` (:data:`dgcl.transport.steps.FOR_SUM`) is compared where calls of ranks are.
        """
        return Expanded(self.expand(rows.resolve_conj().resolve_neg(), exchange)[len(rows) :])

    def begin_fold(
        self, halo_rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedFold:
        """Start a fold of ``(num_halo, *F)`` halo rows only; with ``wait`` the caller waits at once."""
        return _FoldToCome(self, halo_rows, exchange)

    def sequence(
        self, steps: Sequence[Step], width: int, dtype: torch.dtype, windows: tuple[int, int] | None
    ) -> StepList | None:
        """What carries out steps that repeat at once; None: they are carried out one by one.

        Args:
            steps: The steps.
            width, dtype: Of rows.
            windows: Rows that FIRST and SECOND have place for, in one piece of memory; None: there are no windows.
        """
        return None

    def add_exchanges(self, programs: Mapping[str, Program], counted: int, first: int | None = None) -> int:
        """Add exchanges, whose bytes count as another one's; return the first one's number. Collective, between calls.

        Args:
            programs: By their names in messages.
            counted: The exchange as whose bytes theirs count.
            first: The first of those whose places they take; None: they are added behind the last.

        Raises:
            ValueError: This transport cannot, as each call would copy the owned rows, and nothing would be summed while
                a window travels; on every rank.
        """
        raise ValueError(
            "windows, and maxima over ranks, need calls that can be started and waited for, and this communicator's"
            " transport carries out whole calls, as between GPUs that write into each other's memory; leave windows"
            ' out, or build the communicator with channel="collective"'
        )

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor in the memory of the calls' buffers, free for others when its storage dies."""
        raise NotImplementedError

    def describe(self) -> list[str]:
        """For each rank how rows travel to and from it, and why."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until the device has finished all calls, and raise their errors; on the CPU calls return when done."""

    def record_stream(self, rows: Tensor, stream: int) -> None:
        """Declare that a result is read, and may die, on another stream of the device than that of the calls."""

    @property
    def control_calls(self) -> Listener | None:
        """What sees, in calls of the control plane, that a rank has left this transport."""
        return self._life

    @property
    def failure(self) -> CommError | None:
        """Why it is unusable; None if it is not, or was closed."""
        return self._life.failure

    def fail(self, error: CommError) -> None:
        """Make the transport unusable and tell the peers why."""
        self._life.fail(error)

    def close(self) -> None:
        """Close the transport. Idempotent, not collective; results of earlier calls stay valid."""
        self._life.close()


class Around(Transport):
    """A transport around another one, whose is all that it does not do by itself.

    Args:
        transport: The other one.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport._life)
        self.transport = transport
        for name in (
            "bytes_sent", "fixed", "empty", "describe", "synchronize", "record_stream", "fail", "close",
        ):  # fmt: skip
            setattr(self, name, getattr(transport, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["transport"], name)


class Expanded(StartedExpand):
    """The halo rows of an expand that is done."""

    def __init__(self, halo_rows: Tensor) -> None:
        self._halo_rows = halo_rows

    def wait(self) -> Tensor:
        """``(num_halo, *F)``."""
        return self._halo_rows


class _FoldToCome(StartedFold):
    """A fold that happens at the wait, with zeros for the owned rows."""

    def __init__(self, transport: Transport, halo_rows: Tensor, exchange: int) -> None:
        self._transport, self._halo_rows, self._exchange = transport, halo_rows, exchange

    def wait(self, into: Tensor) -> Tensor:
        rows = torch.cat([torch.zeros_like(into), self._halo_rows])
        return into.add_(self._transport.fold(rows, self._exchange))

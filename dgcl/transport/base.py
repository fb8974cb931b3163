"""The transport interface: what a communicator needs of the object that carries out its exchanges.

Shared memory, collectives of torch, CUDA (between devices of one machine) and every baseline
of :mod:`dgcl.bench` are transports. A communicator holds one transport, and nothing else that moves rows.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.program.model import Program
from dgcl.ranks.control import Control, Listener
from dgcl.transport.memory import MemoryReport
from dgcl.transport.steps import Step


class StartedExpand(Protocol):
    """An expand of halo rows that is under way."""

    def wait(self) -> Tensor:
        """``(num_halo, *F)``; called once."""


class StartedFold(Protocol):
    """A fold of halo rows that is under way."""

    def wait(self, into: Tensor, fresh: Tensor | None = None) -> Tensor:
        """Add what arrives to ``into``, ``(num_owned, *F)`` and of the rows' type, in place; called once.

        Args:
            into: The rows.
            fresh: ``(m,)`` int64, ascending: the rows for which something arrives, one row each, if ``into`` holds
                nothing yet at them: they are written, and not read. None: everything is added.
        """


class StepList(Protocol):
    """Steps that one call of compiled code carries out, for rows of one width and type.

    Attributes:
        num_partial: Rows of PARTIAL, which the caller gives where sums are written there; else None.
    """

    num_partial: int | None

    def run(self, rows: Tensor, out: Tensor, partial: Tensor | None = None) -> Tensor:
        """Carry them out, and return ``out``."""


class Transport(Protocol):
    """Moves the rows of one rank's exchanges.

    Every call is collective: all ranks make the same calls, of the same exchange, dtype and row shape, in one order.
    ``exchange`` is an exchange's number, its place among those of the communicator. Rows are dense tensors on the
    transport's device that were checked before (:mod:`dgcl.transport.row_checks`).

    Errors: :class:`~dgcl.errors.CommError` for what peers did. After one the transport is unusable. ``ValueError``
    where it was closed, has another call under way, or is used in a fork of its process.

    Attributes:
        bytes_sent: ``(E, 2, P)`` int64: bytes written to each peer so far, by exchange and verb (expand, fold).
        fixed: Why exchanges cannot be replaced by others; "" where they can be.
    """

    bytes_sent: np.ndarray
    fixed: str

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_owned, *F)`` owned rows to ``(num_local, *F)`` owned and halo rows."""

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_local, *F)`` rows, only read, to the ``(num_owned, *F)`` sums over all ranks that hold them.

        The rows are of a summable type that is not complex.
        """

    def begin_expand(
        self, rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedExpand:
        """Start an expand that returns only halo rows; with ``wait`` the caller waits at once.

        ``purpose`` (:data:`dgcl.transport.steps.FOR_SUM`) is compared where calls of ranks are.
        """

    def begin_fold(
        self, halo_rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedFold:
        """Start a fold of ``(num_halo, *F)`` halo rows only; with ``wait`` the caller waits at once."""

    def sequence(
        self, steps: Sequence[Step], width: int, dtype: torch.dtype, windows: tuple[int, int] | None
    ) -> StepList | None:
        """What carries out steps that repeat at once; None: they are carried out one by one.

        Args:
            steps: The steps.
            width, dtype: Of rows.
            windows: Rows that FIRST and SECOND have place for, in one piece of memory; None: there are no windows.
        """

    def add_exchanges(self, programs: Mapping[str, Program], counted: int, first: int | None = None) -> int:
        """Add exchanges, whose bytes count as another one's; return the first one's number. Collective, between calls.

        Args:
            programs: By their names in messages.
            counted: The exchange as whose bytes theirs count.
            first: The first of those whose places they take; None: they are added behind the last.

        Raises:
            ValueError: This transport cannot; on every rank.
        """

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor in the memory of the calls' buffers, free for others when its storage dies."""

    def describe(self) -> list[str]:
        """For each rank how rows travel to and from it, and why."""

    def memory(
        self,
        widths: Sequence[int | tuple[int, int]],
        dtype: torch.dtype,
        *,
        training: bool = True,
        input_grad: bool = False,
        constants: Sequence[int] = (),
        wire: torch.dtype | None = None,
    ) -> MemoryReport:
        """Predict the bytes of buffers and tables; see :func:`dgcl.transport.memory.predict_memory`."""

    def synchronize(self) -> None:
        """Wait until the device has finished all calls, and raise their errors."""

    def record_stream(self, rows: Tensor, stream: int) -> None:
        """Declare that a result is read, and may die, on another stream of the device than that of the calls."""

    @property
    def control_calls(self) -> Listener | None:
        """What sees, in calls of the control plane, that a rank has left this transport."""

    @property
    def failure(self) -> CommError | None:
        """Why it is unusable; None if it is not, or was closed."""

    def fail(self, error: CommError) -> None:
        """Make the transport unusable and tell the peers why."""

    def close(self) -> None:
        """Close the transport. Idempotent, not collective; results of earlier calls stay valid."""


class HoldsTransports:
    """What a communicator is to those who close it, or look why it failed.

    Attributes:
        rank, control: This rank, and its control plane.
        transport, side_transports: What moves its rows, and those of its offloads.
    """

    rank: int
    control: Control
    transport: Transport
    side_transports: WeakSet[Transport]

    def end(self, failure: CommError | None) -> None:
        """Close it, because of a failure if there is one: who waits for rows of this rank hears whose fault it is."""
        failure = failure or self.control.lost()
        for transport in (self.transport, *self.side_transports):
            if failure is not None:
                transport.fail(failure)
            transport.close()

    @property
    def failure(self) -> CommError | None:
        """Why it, or one of its offloads, is unusable; None if all can be used, or were closed."""
        every = (self.transport, *self.side_transports)
        return next((failure for each in every if (failure := each.failure) is not None), None)

    def fail(self, reason: str) -> None:
        """Tell the peers that this rank will not go on, so that they stop waiting for it at once."""
        for transport in (self.transport, *self.side_transports):
            transport.fail(CommError(f"rank {self.rank}: {reason}"))


class WholeCalls:
    """Start and wait for transports whose calls cannot be split: each call is carried out in one piece.

    A class that inherits from it defines ``expand`` and ``fold``.
    """

    fixed = "this transport carries out whole calls"

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """As :meth:`Transport.expand`."""
        raise NotImplementedError

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """As :meth:`Transport.fold`."""
        raise NotImplementedError

    def sequence(
        self, steps: Sequence[Step], width: int, dtype: torch.dtype, windows: tuple[int, int] | None = None
    ) -> StepList | None:
        """None: one by one."""
        return None

    def add_exchanges(self, programs: Mapping[str, Program], counted: int, first: int | None = None) -> int:
        """Refuse: each call would copy the owned rows, and nothing would be summed while a window travels."""
        raise ValueError(
            "windows, and maxima over ranks, need calls that can be started and waited for, and this communicator's"
            " transport carries out whole calls, as between GPUs that write into each other's memory; leave windows"
            ' out, or build the communicator with channel="collective"'
        )

    def begin_expand(
        self, rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedExpand:
        """Expand now; the wait returns the halo rows of the result."""
        return Expanded(self.expand(rows.resolve_conj().resolve_neg(), exchange)[len(rows) :])

    def begin_fold(
        self, halo_rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> StartedFold:
        """Fold at the wait, with zeros for the owned rows."""
        return _FoldToCome(self, halo_rows, exchange)


class Expanded:
    """The halo rows of an expand that is done."""

    def __init__(self, halo_rows: Tensor) -> None:
        self._halo_rows = halo_rows

    def wait(self) -> Tensor:
        """``(num_halo, *F)``."""
        return self._halo_rows


class _FoldToCome:
    def __init__(self, transport: WholeCalls, halo_rows: Tensor, exchange: int) -> None:
        self._transport, self._halo_rows, self._exchange = transport, halo_rows, exchange

    def wait(self, into: Tensor, fresh: Tensor | None = None) -> Tensor:
        if fresh is not None:
            into.index_fill_(0, fresh, 0)
        rows = torch.cat([torch.zeros_like(into), self._halo_rows])
        return into.add_(self._transport.fold(rows, self._exchange))

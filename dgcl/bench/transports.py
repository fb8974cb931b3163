"""The measured transports: ways to call a plan, and the base class of transports without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from dgcl.autograd.pending import fold_halo
from dgcl.bench.patterns import POISON
from dgcl.errors import CommError
from dgcl.transport.base import WholeCalls
from dgcl.transport.memory import MemoryReport
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.results import as_tensor
from dgcl.transport.shared_memory.transport import SharedMemoryTransport

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


class Measured(Protocol):
    """A way to move rows between the ranks of a communicator, in its numbering: owned rows, then halo rows.

    Both verbs are collective and see dense CPU tensors that were checked before. With an attribute ``halo_only`` that
    is true, an expand returns halo rows alone, and a fold adds to the owned rows that it is given.
    """

    def expand(self, rows: Tensor) -> Any:
        """``(num_owned, *F)`` to ``(num_local, *F)``."""

    def fold(self, rows: Tensor) -> Any:
        """``(num_local, *F)``, which is only read, to the sums ``(num_owned, *F)`` over all ranks."""

    def poison(self) -> None:
        """Overwrite all memory that a later call may hand out or read without having written it."""


class Baseline(WholeCalls):
    """A transport that wraps another one: it uses its numbering and pool, and moves rows with it.

    Baselines override ``expand`` and ``fold``, and what else they change.

    Attributes:
        comm: The communicator.
        planned: Its own transport, which executes its plans.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.planned = planned_transport(comm)
        self.bytes_sent = self.planned.bytes_sent

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Along the plan's trees."""
        return self.planned.expand(rows, exchange)

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Back along the plan's trees."""
        return self.planned.fold(rows, exchange)

    def describe(self) -> list[str]:
        """As the communicator's own transport."""
        return self.planned.describe()

    def memory(
        self, widths: Sequence[int | tuple[int, int]], dtype: torch.dtype, **kinds: Any
    ) -> MemoryReport:
        """What the plans would take."""
        return self.planned.memory(widths, dtype, **kinds)

    def synchronize(self) -> None:
        """Nothing: calls return when they are carried out."""

    def record_stream(self, rows: Tensor, stream: int) -> None:
        """Nothing: there are no streams."""

    @property
    def failure(self) -> CommError | None:
        """Why the communicator's own transport is unusable."""
        return self.planned.failure

    def fail(self, error: CommError) -> None:
        """Tell the peers that this rank has stopped."""
        self.planned.fail(error)

    def close(self) -> None:
        """Close the communicator's own transport. Idempotent, not collective."""
        self.planned.close()

    def poison(self) -> None:
        """Overwrite all free blocks of the communicator's pool."""
        self.planned.fill_free(POISON)

    def result_rows(self, count: int, like: Tensor) -> Tensor:
        """``(count, *F)`` out of the communicator's pool, which gets it back when the storage dies.

        So baselines pay no more for the memory of their results than the plans do.
        """
        return self.planned.empty((count, *like.shape[1:]), like.dtype)


def planned_transport(comm: Communicator) -> SharedMemoryTransport:
    """The transport that executes a communicator's plans on the host, whatever moves its rows now."""
    transport = comm.transport
    while isinstance(transport, Baseline):
        transport = transport.planned
    assert isinstance(transport, SharedMemoryTransport), type(transport)
    return transport


class _PlannedCalls:
    """A way to call a communicator's plan."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._planned = comm, planned_transport(comm)

    def poison(self) -> None:
        """Overwrite all free blocks of the communicator's pool."""
        self._planned.fill_free(POISON)


class RuntimeCalls(_PlannedCalls):
    """The runtime alone: rows in, a block of the pool out.

    What :class:`Baseline` takes longer is what tensors cost; they are made by :meth:`finish`, which is not timed.
    """

    def expand(self, rows: Tensor) -> tuple[Block, tuple[int, ...], torch.dtype]:
        """A block with owned and halo rows."""
        runtime = self._planned.runtime
        kind = row_type(rows.dtype, rows.shape[1])
        block = runtime.expand_buffer(kind)
        runtime.expand(block, kind, rows.data_ptr())
        return block, (self._comm.num_local, rows.shape[1]), rows.dtype

    def fold(self, rows: Tensor) -> tuple[Block, tuple[int, ...], torch.dtype]:
        """A block with the sums."""
        block = self._planned.runtime.fold(rows.data_ptr(), row_type(rows.dtype, rows.shape[1]))
        return block, (self._comm.num_owned, rows.shape[1]), rows.dtype

    def finish(self, result: tuple[Block, tuple[int, ...], torch.dtype]) -> Tensor:
        """What the others return."""
        return as_tensor(self._planned.runtime.pool, *result)


class OperatorCalls(_PlannedCalls):
    """A communicator's plan called as models call it: by the differentiable operators.

    Inputs need gradients. The time beyond :class:`Baseline` is the cost of autograd."""

    def expand(self, rows: Tensor) -> Tensor:
        """``graph_allgather``, recorded by autograd."""
        return self._comm.expand(rows.requires_grad_()).detach()

    def fold(self, rows: Tensor) -> Tensor:
        """The sum over ranks, recorded by autograd."""
        return self._comm.fold(rows.requires_grad_()).detach()


class HaloCalls(_PlannedCalls):
    """The plan, moving halo rows alone (:mod:`dgcl.transport.shared_memory.started`).

    An expand returns ``(num_halo, *F)``; a fold adds to the first ``num_owned`` of the rows that it is given.
    """

    halo_only = True

    def expand(self, rows: Tensor) -> Tensor:
        """Halo rows."""
        return self._planned.begin_expand(rows, wait=True).wait()

    def fold(self, rows: Tensor) -> Tensor:
        """Owned rows, with what arrived for them added."""
        num_owned = self._comm.num_owned
        return fold_halo(self._comm, rows[num_owned:], rows[:num_owned])


def calls_of(comm: Communicator) -> Baseline:
    """What moves the rows of a communicator, to be measured."""
    return comm.transport if isinstance(comm.transport, Baseline) else Baseline(comm)


class Scratch:
    """Tensors that calls of the same width share, so that no call pays for new memory."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}

    def rows(self, count: int, like: Tensor) -> Tensor:
        """``(count, *F)`` with the F and dtype of ``like``."""
        key = ((count, *like.shape[1:]), like.dtype)
        if key not in self._tensors:
            self._tensors[key] = torch.empty(key[0], dtype=key[1])
        return self._tensors[key]

    def poison(self) -> None:
        """Overwrite them all."""
        for tensor in self._tensors.values():
            tensor.view(torch.uint8).fill_(POISON)

"""One interface for everything that can expand and fold rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from dgcl.autograd.pending import StartedExpand, fold_halo
from dgcl.bench.patterns import POISON
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.pool import Block

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


class Exchange(Protocol):
    """A way to move rows between the ranks of a communicator, in its numbering: owned rows, then halo rows.

    Both verbs are collective and see dense CPU tensors that were checked before.
    """

    def expand(self, rows: Tensor) -> Tensor:
        """``(num_owned, *F)`` to ``(num_local, *F)``."""

    def fold(self, rows: Tensor) -> Tensor:
        """``(num_local, *F)``, which is only read, to the sums ``(num_owned, *F)`` over all ranks."""

    def poison(self) -> None:
        """Overwrite all memory that a later call may hand out or read without having written it."""

    def close(self) -> None:
        """Give up what it holds. Idempotent, not collective."""


class PlannedExchange:
    """What the communicator's own plan does."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def expand(self, rows: Tensor) -> Tensor:
        """Along the plan's trees."""
        return self._comm._expand_planned(rows)

    def fold(self, rows: Tensor) -> Tensor:
        """Back along the plan's trees."""
        return self._comm._fold_planned(rows)

    def poison(self) -> None:
        """All free blocks of the communicator's pool."""
        poison_pool(self._comm)

    def close(self) -> None:
        """Nothing of its own."""


class ExecutorExchange:
    """The executor alone: rows in, a block of the pool out. What :class:`PlannedExchange` takes longer is what
    tensors cost; they are made by :meth:`finish`, which is not timed."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def expand(self, rows: Tensor) -> tuple[Block, tuple[int, ...], torch.dtype]:
        """A block with owned and halo rows."""
        comm, runtime = self._comm, self._comm._runtime
        kind = row_type(rows.dtype, rows.shape[1])
        block = runtime.expand_buffer(kind)
        runtime.expand(block, kind, rows.data_ptr())
        return block, (comm.num_local, rows.shape[1]), rows.dtype

    def fold(self, rows: Tensor) -> tuple[Block, tuple[int, ...], torch.dtype]:
        """A block with the sums."""
        comm = self._comm
        block = comm._runtime.fold(rows.data_ptr(), row_type(rows.dtype, rows.shape[1]))
        return block, (comm.num_owned, rows.shape[1]), rows.dtype

    def finish(self, result: tuple[Block, tuple[int, ...], torch.dtype]) -> Tensor:
        """What the others return."""
        return self._comm._as_tensor(*result)

    def poison(self) -> None:
        """All free blocks of the communicator's pool."""
        poison_pool(self._comm)

    def close(self) -> None:
        """Nothing of its own."""


class OperatorExchange:
    """A communicator's own plan, called as models call it: through the differentiable operators, with inputs
    that need gradients. What it takes longer than :class:`PlannedExchange` is what autograd costs."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def expand(self, rows: Tensor) -> Tensor:
        """``graph_allgather``, recorded by autograd."""
        return self._comm.expand(rows.requires_grad_()).detach()

    def fold(self, rows: Tensor) -> Tensor:
        """The sum over ranks, recorded by autograd."""
        return self._comm.fold(rows.requires_grad_()).detach()

    def poison(self) -> None:
        """All free blocks of the communicator's pool."""
        poison_pool(self._comm)

    def close(self) -> None:
        """Nothing of its own."""


class HaloExchange:
    """The plan, moving halo rows alone (:mod:`dgcl.autograd.pending`): expand returns ``(num_halo, *F)``, and fold adds to
    the first ``num_owned`` of the rows that it is given, in place."""

    halo_only = True

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def expand(self, rows: Tensor) -> Tensor:
        """Halo rows."""
        return StartedExpand(self._comm, rows, wait=True).finish()

    def fold(self, rows: Tensor) -> Tensor:
        """Owned rows, with what arrived for them added."""
        num_owned = self._comm.num_owned
        return fold_halo(self._comm, rows[num_owned:], rows[:num_owned])

    def poison(self) -> None:
        """All free blocks of the communicator's pool."""
        poison_pool(self._comm)

    def close(self) -> None:
        """Nothing of its own."""


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


def result_rows(comm: Communicator, count: int, like: Tensor) -> Tensor:
    """``(count, *F)`` out of the communicator's pool, which gets it back when the storage dies: baselines pay
    no more for the memory of their results than the plans do."""
    shape = (count, *like.shape[1:])
    block = comm._runtime.pool.allocate(math.prod(shape) * like.dtype.itemsize)
    return comm._as_tensor(block, shape, like.dtype)


def poison_pool(comm: Communicator) -> None:
    """Overwrite all free memory of a communicator's pool."""
    comm._runtime.pool.fill_free(POISON)

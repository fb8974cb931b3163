"""Base class of the transports that the bench measures, and one that moves the plan's halo rows alone.

`Baseline` by itself executes the communicator's plan. A subclass moves rows in another way, in the same order of rows
(owned, then halo) and with the same memory. ``poison`` overwrites that memory before a call that is checked.

Called by `baselines`, `lanes` and `measure`. Free to change while halo rows alone are as right as whole results, and
wrong rows of a subclass reach the check unchanged (`tests/dgcl/bench/test_measure.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from dgcl.autograd.pending import fold_halo
from dgcl.bench.patterns import POISON
from dgcl.transport.base import Around, Transport

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


class Baseline(Around):
    """A transport that wraps another one, with its numbering and memory, and moves rows by it.

    Baselines override ``expand`` and ``fold``, and what else they change. Both verbs are collective and see dense
    tensors that were checked before, in the communicator's numbering: owned rows, then halo rows.

    Attributes:
        comm: The communicator.
        planned: Its own transport, which executes its plans.
        halo_only: Whether an expand returns halo rows alone, and a fold adds to the owned rows that it gets.
    """

    planned: Transport
    halo_only = False
    control_calls = None

    def __init__(self, comm: Communicator) -> None:
        moves = comm.transport
        super().__init__(moves.planned if isinstance(moves, Baseline) else moves)
        self.comm, self.planned, self.fixed = comm, self.transport, Transport.fixed

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Along the plan's trees."""
        return self.planned.expand(rows, exchange)

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Back along the plan's trees."""
        return self.planned.fold(rows, exchange)

    def poison(self) -> None:
        """Overwrite the free blocks of the communicator's pool, where it has one on the host."""
        fill_free: Callable[[int], None] | None = getattr(self.planned, "fill_free", None)
        if fill_free is not None:
            fill_free(POISON)


def calls_of(comm: Communicator) -> Baseline:
    """What moves the rows of a communicator, to be measured."""
    return comm.transport if isinstance(comm.transport, Baseline) else Baseline(comm)


class HaloCalls(Baseline):
    """The plan, moving halo rows alone."""

    halo_only = True

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_halo, *F)`` halo rows."""
        return self.planned.begin_expand(rows, exchange, wait=True).wait()

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """The first ``num_owned`` of the rows, with what arrived for them added."""
        num_owned = self.comm.num_owned
        return fold_halo(self.comm, rows[num_owned:], rows[:num_owned])

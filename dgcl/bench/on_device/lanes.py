"""The candidates of a round on a device: exchanges of rows, and plain copies of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from dgcl.bench.flags import Flags
from dgcl.bench.on_device import patterns
from dgcl.bench.on_device.clock import Clock
from dgcl.bench.rounds import Sample
from dgcl.transport.steps import EXPAND

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


class Exchange(Protocol):
    """A way to move rows between ranks, in the numbering of a communicator."""

    def expand(self, rows: Tensor) -> Tensor:
        """``(num_owned, width)`` to ``(num_local, width)``."""

    def fold(self, rows: Tensor) -> Tensor:
        """``(num_local, width)`` to the sums ``(num_owned, width)``."""


class Rows:
    """Inputs and expected results of a sample, for the rows of one communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._rank, self._device = comm.rank, comm.device
        self.owned = comm.owned_ids.to(comm.device)
        self.local = torch.cat([comm.owned_ids, comm.halo_ids]).to(comm.device)
        held = torch.zeros(comm.world_size, comm.num_nodes, dtype=torch.bool)
        for rank, ids in enumerate(comm.control.exchange(torch.cat([comm.owned_ids, comm.halo_ids]))):
            held[rank, ids] = True
        self._holders = held[:, comm.owned_ids].to(comm.device)

    def make(self, width: int, dtype: torch.dtype, calls: int) -> tuple[list[Tensor], list[Tensor]]:
        """Memory for the inputs of both verbs."""
        sizes = (len(self.owned), len(self.local))
        owned, local = (
            [torch.empty(size, width, dtype=dtype, device=self._device) for _ in range(calls)]
            for size in sizes
        )
        return owned, local

    def fill(self, verb: int, rows: Tensor, call: int) -> None:
        """The input of a call."""
        if verb == EXPAND:
            patterns.fill_expand(rows, self.owned, call)
        else:
            patterns.fill_fold(rows, self.local, call, self._rank)

    def wrong(self, verb: int, found: Tensor, call: int) -> int:
        """Wrong elements of a result."""
        if verb == EXPAND:
            return patterns.wrong_expand(found, self.local, call)
        return patterns.wrong_fold(found, self.owned, self._holders, call)


class ExchangeLane:
    """Calls of an exchange, after one that is not timed and lets the ranks begin together."""

    def __init__(
        self, comm: Communicator, exchange: Exchange, rows: Rows, clock: Clock, flags: Flags
    ) -> None:
        self._comm, self._exchange, self._rows, self._clock, self._flags = (
            comm,
            exchange,
            rows,
            clock,
            flags,
        )
        self._inputs: tuple[list[Tensor], list[Tensor]] = ([], [])

    def prepare(self, width: int, dtype: torch.dtype, calls: int) -> None:
        """Inputs for both verbs."""
        self._inputs = self._rows.make(width, dtype, calls)

    def run(self, verb: int, first: int, calls: int) -> Sample:
        """Fill the inputs, synchronise the ranks, run, and check."""
        inputs, results = self._inputs[verb], list[Tensor]()
        for k in range(calls):
            self._rows.fill(verb, inputs[k], first + k)
        call = self._call(verb)

        def timed() -> None:
            for k in range(calls):
                results.append(call(inputs[k]))

        self._flags.barrier()
        warm = call(inputs[0])
        seconds = self._clock.seconds(timed)
        del warm
        wrong = sum(self._rows.wrong(verb, found, first + k) for k, found in enumerate(results))
        return Sample(0, round(1e9 * seconds), wrong)

    def host_seconds(self, calls: int) -> list[float]:
        """Host time of single expands while the device is idle."""
        found = []
        for _ in range(calls):
            self._flags.barrier()
            found.append(self._clock.host_seconds(lambda: self._exchange.expand(self._inputs[EXPAND][0])))
        return found

    def _call(self, verb: int) -> Callable[[Tensor], Tensor]:
        return self._exchange.expand if verb == EXPAND else self._exchange.fold


class CopyLane:
    """A copy within each device, of as many bytes as its ranks together write in a call.

    The first of its ranks makes it; the others do nothing.

    Args:
        rows: Rows that all ranks of the device write together; 0 on all but the first of them.
        device, clock, flags: Of the rank.
    """

    def __init__(self, rows: int, device: torch.device, clock: Clock, flags: Flags) -> None:
        self._rows, self._device, self._clock, self._flags = rows, device, clock, flags
        self._source = self._target = torch.empty(0)

    def prepare(self, width: int, dtype: torch.dtype, calls: int) -> None:
        """Allocate the memory and touch all of it."""
        size = self._rows * width * dtype.itemsize
        self._source = torch.ones(size, dtype=torch.uint8, device=self._device)
        self._target = torch.zeros_like(self._source)

    def run(self, verb: int, first: int, calls: int) -> Sample:
        """Run a copy; both verbs write about the same number of bytes."""
        del verb, first
        self._target.zero_()
        self._flags.barrier()

        def timed() -> None:
            for _ in range(calls):
                self._target.copy_(self._source)

        self._target.copy_(self._source)
        seconds = self._clock.seconds(timed) if self._rows else 0.0
        self._flags.barrier()
        return Sample(0, round(1e9 * seconds), int((self._target != 1).sum()))

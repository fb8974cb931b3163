"""Lanes, the candidates that ``dgcl bench`` times: checked exchanges of rows, and plain copies of as many bytes.

A lane (`turns.Lane`) has three steps, of which only the second is timed: fill the input and overwrite the memory that
results may come from, call, check. So a row that was not written cannot pass for one of an earlier call.

Called by `measure`. Free to change while one wrong bit, two exchanged rows, an unwritten row and the result of an
earlier call are each counted (`tests/dgcl/bench/test_measure.py`; on devices: `tests/dgcl/bench/test_on_device.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgcl.bench import patterns
from dgcl.bench.transports import Baseline
from dgcl.bench.turns import Lane
from dgcl.transport.steps import EXPAND

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


class Rows:
    """The vertices of a communicator's rows, and who holds them. Construction is collective.

    Attributes:
        owned, local: Global ids.
        holders: ``(P, num_owned)`` bool: the ranks that hold each owned row.
    """

    def __init__(self, comm: Communicator) -> None:
        owned, local = comm.owned_ids, torch.cat([comm.owned_ids, comm.halo_ids])
        held = [torch.isin(owned, ids) for ids in comm.control.exchange(local)]
        self.owned, self.local, self.holders = (
            each.to(comm.device) for each in (owned, local, torch.stack(held))
        )


class ExchangeLane(Lane):
    """Calls of one verb whose rows encode vertex, column and call.

    Args:
        comm: The communicator.
        exchange: What moves its rows.
        rows: Of the communicator.
        verb: EXPAND or FOLD.
        shape: Elements of a row, and calls of a sample at most.
        dtype: Of the elements.
    """

    def __init__(
        self,
        comm: Communicator,
        exchange: Baseline,
        rows: Rows,
        verb: int,
        shape: tuple[int, int],
        dtype: torch.dtype,
    ) -> None:
        self._comm, self._exchange, self._rows, self._verb = comm, exchange, rows, verb
        self._call = exchange.expand if verb == EXPAND else exchange.fold
        size, (width, calls) = len(rows.owned if verb == EXPAND else rows.local), shape
        self._inputs = [torch.empty(size, width, dtype=dtype, device=comm.device) for _ in range(calls)]
        self._results: list[Tensor] = []
        self._first = 0

    def prepare(self, first: int, calls: int) -> None:
        """Fill the inputs, and poison what outputs may be written to."""
        self._first, self._results = first, []
        for call, rows in enumerate(self._inputs[:calls], first):
            if self._verb == EXPAND:
                patterns.fill_expand(rows, self._rows.owned, call)
            else:
                patterns.fill_fold(rows, self._rows.local, call, self._comm.rank, self._comm.world_size)
        self._exchange.poison()
        if self._comm.device.type != "cpu":
            self._call(self._inputs[0])  # brings the streams of all devices into step

    def run(self, call: int) -> None:
        """One call."""
        self._results.append(self._call(self._inputs[call]))

    def check(self) -> int:
        """Wrong elements."""
        self._comm.synchronize()
        rows, wrong = self._rows, 0
        returned = rows.local[len(rows.owned) if self._exchange.halo_only else 0 :]
        for call, result in enumerate(self._results, self._first):
            if self._verb == EXPAND:
                wrong += patterns.wrong_expand(result, returned, call)
            else:
                wrong += patterns.wrong_fold(result, rows.owned, rows.holders, call)
        self._results = []
        return wrong


class CopyLane(Lane):
    """Plain copies of ``num_bytes`` in one piece: a speed limit for exchanges that write as many. Both verbs do.

    Each of the ``calls`` of a sample has memory of its own, as the results of exchanges have.
    """

    def __init__(self, num_bytes: int, calls: int, device: torch.device) -> None:
        self._source = torch.ones(calls, num_bytes, dtype=torch.uint8, device=device)
        self._target = torch.zeros_like(self._source)

    def prepare(self, first: int, calls: int) -> None:
        """Overwrite the copies."""
        self._target.zero_()

    def run(self, call: int) -> None:
        """One copy."""
        self._target[call].copy_(self._source[call])

    def check(self) -> int:
        """Bytes that were not copied."""
        return self._target.numel() - int(torch.count_nonzero(self._target))

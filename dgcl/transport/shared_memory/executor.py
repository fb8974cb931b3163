"""Executes a rank's programs: expand and fold on addresses.

One call, on one rank: take buffers from the pool; tell the senders where to write; let the engine run until all is
sent and all has arrived (:mod:`dgcl.transport.shared_memory.calls`). Nobody waits for a peer to *finish*: a call is
over for a rank when its own part is, and its buffers are safe from then on, because everything that was to be written
into them has been.
"""

from __future__ import annotations

import time
from typing import Final

from dgcl.kernels.copies import write_bytes
from dgcl.kernels.rows import STREAMED, sum_rows
from dgcl.transport.shared_memory.abort_guard import AbortGuard
from dgcl.transport.shared_memory.calls import CallRunner
from dgcl.transport.shared_memory.engine import EXPAND, FOLD
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.row_types import RowType

#: Bytes of own rows whose copy takes longer than a second call of the engine.
_LONG_COPY: Final = 256 << 10


class Runtime(CallRunner):
    """Executes the programs of one rank; arguments and attributes are those of the runner of calls."""

    def expand_buffer(self, row_type: RowType, exchange: int = 0) -> Block:
        """A block for the result of :meth:`expand`, which must hold the owned rows or be told where they are."""
        self.check_usable()
        return self.allocate(self.programs[exchange].num_local * row_type.row_bytes)

    def expand(self, rows: Block, row_type: RowType, own: int = 0, exchange: int = 0) -> None:
        """Fill the halo rows of a block whose first ``num_owned`` rows are the owned ones.

        Args:
            rows: The block, of ``num_local`` rows.
            row_type: What a row is.
            own: Address of owned rows that are still to be copied into the block; 0: they are there. They are
                copied once the peers know where to write.
            exchange: Number of the exchange.
        """
        program, task = self.programs[exchange], self.tasks[2 * exchange + EXPAND]
        relay = self.allocate(program.num_relay * row_type.row_bytes) if program.num_relay else None
        passing = relay or rows  # without relay rows nobody asks where they would go
        places = [(block.segment, block.offset) for block in (rows, passing)]
        own_bytes = program.num_owned * row_type.row_bytes if own else 0
        buffers = (rows.address, program.num_local, passing.address)
        sends_own = own_bytes >= _LONG_COPY and relay is None and self._network is None
        if sends_own:  # from where they are, so that others need not wait until they have been copied
            halo = rows.address + program.num_owned * row_type.row_bytes
            buffers = (own, program.num_owned, halo)
        with AbortGuard(self):
            if self._network is not None:  # which reads rows as soon as a call has begun
                write_bytes(rows.address, own, own_bytes)
                own_bytes = 0
            call = self.start(task, row_type, places, buffers)
            done = sends_own and self.run(call, wait=False)
            began = time.perf_counter_ns()
            write_bytes(rows.address, own, own_bytes)
            task.copied = time.perf_counter_ns() - began
            if not done:
                self.run(call)
            if relay is not None:
                self.pool.release(relay)
            self.record(call)

    def fold(self, rows: int, row_type: RowType, exchange: int = 0) -> Block:
        """Sum up what all ranks hold for this rank's owned rows.

        Args:
            rows: Address of this rank's ``num_local`` rows, which are only read.
            row_type: What a row is; it must be summable.
            exchange: Number of the exchange.

        Returns:
            A block with ``num_owned`` rows.
        """
        self.check_usable()
        program, task = self.programs[exchange], self.tasks[2 * exchange + FOLD]
        arrivals = self.allocate(program.num_arrivals * row_type.row_bytes)
        result = self.allocate(program.num_owned * row_type.row_bytes)
        buffers = (rows, program.num_local, arrivals.address)
        with AbortGuard(self):
            call = self.start(task, row_type, [(arrivals.segment, arrivals.offset)] * 2, buffers)
            self.run(call)
            sum_rows(
                row_type.sum_code,
                result.address,
                rows,
                0,
                program.num_owned,
                program.arrival_rows,
                program.arrival_slots,
                0,
                arrivals.address,
                row_type.row_bytes,
                STREAMED,
            )
            self.pool.release(arrivals)
            self.record(call)
        return result

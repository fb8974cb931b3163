"""Executes a rank's programs: expand and fold on addresses.

A call takes buffers from the pool, tells the senders where to write, and runs the engine until everything is sent and
has arrived (:mod:`dgcl.transport.shared_memory.calls`). No rank waits for a peer to *finish*. A call is over for a
rank when its own part is done. Its buffers are safe from then on, because every write into them has been made.
"""

from __future__ import annotations

import time
from typing import Final

from dgcl.errors import CommError
from dgcl.kernels.copies import write_bytes
from dgcl.kernels.rows import STREAMED, sum_rows
from dgcl.transport.shared_memory.abort_guard import AbortGuard
from dgcl.transport.shared_memory.calls import CallRunner
from dgcl.transport.shared_memory.engine import EXPAND, FOLD, read_word
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.row_types import RowType

#: From this many bytes on, copying own rows takes longer than a second call of the engine.
_LONG_COPY: Final = 256 << 10


class Runtime(CallRunner):
    """Executes the programs of one rank; arguments and attributes are those of :class:`CallRunner`."""

    @property
    def is_plain(self) -> bool:
        """Whether the next call may be carried out in one step."""
        return (
            self.one_step
            and self.under_way is None
            and self._failure is None
            and not self._closed
            and self._recorder is None
            and self._network is None
        )

    @property
    def failure(self) -> CommError | None:
        """Why the communicator is unusable; None if it is not, or is closed."""
        return None if self._closed else self._failure

    def stop(self, error: BaseException, number: int) -> None:
        """Tell the peers that a call in one step, or one of several, has failed, whose number may not be noted."""
        self.call_number = int(read_word(self._control_page.call_address))
        if isinstance(error, MemoryError) and self.call_number < number:
            error = CommError(f"rank {self.rank} is out of memory: {error}")
        self.give_up(error, max(number, self.call_number))

    def expand_buffer(self, row_type: RowType, exchange: int = 0) -> Block:
        """Allocate a block for the result of :meth:`expand`; the caller supplies the owned rows."""
        self.check_usable()
        return self.allocate(self.programs[exchange].num_local * row_type.row_bytes)

    def expand(self, rows: Block, row_type: RowType, own: int = 0, exchange: int = 0) -> None:
        """Fill the halo rows of a block whose first ``num_owned`` rows are the owned ones.

        Args:
            rows: The block, of ``num_local`` rows.
            row_type: The type of the rows.
            own: Address of owned rows still to be copied into the block; 0 if they are there already. They are copied
                after the peers were told where to write.
            exchange: Number of the exchange.
        """
        program, task = self.programs[exchange], self.tasks[2 * exchange + EXPAND]
        relay = self.allocate(program.num_relay * row_type.row_bytes) if program.num_relay else None
        passing = relay or rows  # without relay rows no peer reads this address
        places = [(block.segment, block.offset) for block in (rows, passing)]
        own_bytes = program.num_owned * row_type.row_bytes if own else 0
        buffers = (rows.address, program.num_local, passing.address)
        sends_own = own_bytes >= _LONG_COPY and relay is None and self._network is None
        if sends_own:  # send from the caller's rows, so that peers do not wait for the copy
            halo = rows.address + program.num_owned * row_type.row_bytes
            buffers = (own, program.num_owned, halo)
        with AbortGuard(self):
            if self._network is not None:  # the network reads rows as soon as a call has begun
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
        """Sum the rows of all ranks for this rank's owned rows.

        Args:
            rows: Address of this rank's ``num_local`` rows, which are only read.
            row_type: The type of the rows; it must be summable.
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

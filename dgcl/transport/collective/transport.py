"""Transport by collectives of torch.distributed: each stage of a plan is one ``all_to_all_single``.

It touches rows by torch operations alone, so it serves all devices, and ranks that share no memory; other transports
are compared with it. Between CPUs, messages of Gloo take the place of the collective, as they are faster (`wires.py`).
A call cannot be captured into a CUDA graph, because ranks agree on each.
Called by `dgcl/transport/connect`. Free to change while it gives the bits of shared memory in threads, processes and
between machines, and refuses a capture (`tests/dgcl/transport/collective/test_transport.py`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.program.rank_program import Program
from dgcl.transport.base import StartedExpand, StartedFold, Transport
from dgcl.transport.collective.agreement import Agreement
from dgcl.transport.collective.call import Call, add_layers, widened
from dgcl.transport.collective.stage_table import Tables
from dgcl.transport.common.calls import call_label, pack_tag
from dgcl.transport.common.dtypes import as_tensor, row_type
from dgcl.transport.describe import profiled
from dgcl.transport.row_checks import version_of
from dgcl.transport.steps import EXPAND, FOLD


class CollectiveTransport(Transport):
    """Moves rows by torch operations and collectives, on any device.

    Args:
        programs: This rank's programs by the names of their exchanges.
        agreement: Which call each rank is in, and the wire between them.
        device: Where rows are.
        why: Why this transport carries them, for people.

    Attributes:
        bytes_sent: ``(E, 2, P)`` int64, by exchange, verb and peer.
    """

    fixed = ""

    def __init__(
        self,
        programs: Mapping[str, Program],
        agreement: Agreement,
        device: torch.device,
        why: str,
    ) -> None:
        super().__init__(agreement)
        self.agreement, self.wire, self._device, self._why = agreement, agreement.wire, device, why
        self._tables: list[tuple[Tables, int]] = []  # and as whose bytes an exchange's count
        self.bytes_sent = np.zeros((len(programs), 2, agreement.control.world_size), np.int64)
        for number, (name, program) in enumerate(programs.items()):
            agreement.name_exchanges([name], number)
            self._add([program], number, number)

    def _add(self, programs: Collection[Program], counted: int, first: int) -> None:
        end = first + len(programs)
        self._tables[first:end] = [(Tables(program, self._device), counted) for program in programs]
        self.agreement.concern(tables.program for tables, _ in self._tables)

    def add_exchanges(self, programs: Mapping[str, Program], counted: int, first: int | None = None) -> int:
        """As :meth:`dgcl.transport.base.Transport.add_exchanges`."""
        first = len(self._tables) if first is None else first
        self.agreement.agree_to_add(programs, first)
        self._add(programs.values(), counted, first)
        return first

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_owned, *F)`` owned rows to ``(num_local, *F)`` owned and halo rows."""
        program = self._tables[exchange][0].program
        with profiled(program, "expand", rows), self.guard():
            result = self._rows(program.num_local, rows)
            call = self._begin(EXPAND, exchange, rows, result[program.num_owned :])
            result[: program.num_owned] = rows
            self.agreement.finish(call)
        return result

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_local, *F)`` rows, only read, to the ``(num_owned, *F)`` sums over all ranks that hold them."""
        program = self._tables[exchange][0].program
        with profiled(program, "fold", rows), self.guard():
            result = self._rows(program.num_owned, rows)
            arrivals = self._rows(program.num_arrivals, rows)
            call = self._begin(FOLD, exchange, rows[program.num_owned :], arrivals)
            result.copy_(rows[: program.num_owned])
            self.agreement.finish(call)
            self._add_arrivals(result, arrivals, exchange)
        return result

    def begin_expand(
        self, rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> Started:
        """As :meth:`dgcl.transport.base.Transport.begin_expand`."""
        with self.guard():
            halo = self._rows(self._tables[exchange][0].program.num_halo, rows)
            call = self._begin(EXPAND, exchange, rows, halo, purpose)
            return Started(self, call, rows, lambda *_: halo)

    def begin_fold(
        self, halo_rows: Tensor, exchange: int = 0, *, wait: bool = False, purpose: int = 0
    ) -> Started:
        """As :meth:`dgcl.transport.base.Transport.begin_fold`."""
        with self.guard():
            arrivals = self._rows(self._tables[exchange][0].program.num_arrivals, halo_rows)
            call = self._begin(FOLD, exchange, halo_rows, arrivals, purpose)

            return Started(self, call, halo_rows, lambda into: self._add_arrivals(into, arrivals, exchange))

    def _begin(self, verb: int, exchange: int, source: Tensor, target: Tensor, purpose: int = 0) -> Call:
        """Begin a call; its buffers are those of :class:`dgcl.transport.collective.stage_table.Tables`."""
        tables, counted = self._tables[exchange]
        width = math.prod(source.shape[1:])
        kind = row_type(source.dtype, width)
        buffers = [source.resolve_conj().resolve_neg().contiguous(), target]
        if verb == EXPAND:
            buffers.append(self._rows(tables.program.num_relay, source))
        flat = [
            rows.as_strided((len(rows), width), (width, 1))
            for rows in (*buffers, self._rows(tables.staged[verb], source))
        ]
        call = Call(
            self.agreement.next_call,
            call_label(exchange, verb, self.agreement.names),
            pack_tag(verb, kind, exchange, purpose),
            (tables.expand, tables.fold)[verb] if kind.row_bytes else (),
            flat[:-1],
            flat[-1],
            self.bytes_sent[counted, verb],
        )
        self.agreement.begin(call)
        return call

    def _add_arrivals(self, into: Tensor, arrivals: Tensor, exchange: int) -> Tensor:
        """Add what has arrived to owned rows, in place, in a fixed order."""
        layers = self._tables[exchange][0].own_layers
        sums = widened(into) if layers else into
        add_layers(sums, layers, arrivals)
        return into if sums is into else into.copy_(sums)

    def _rows(self, count: int, like: Tensor) -> Tensor:
        return self.empty((count, *like.shape[1:]), like.dtype)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor, on the CPU from the pool; its memory is free for others when its storage dies."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if self._device.type != "cpu" or not num_bytes:
            return torch.empty(shape, dtype=dtype, device=self._device)
        self.agreement.check_present()
        pool = self.agreement.pool
        return as_tensor(pool, pool.allocate(num_bytes), shape, dtype)

    def describe(self) -> list[str]:
        """For each rank how rows travel to and from it, and why."""
        return [f"collective, {self.wire.name}: {self._why}"] * self.agreement.control.world_size

    def synchronize(self) -> None:
        """Wait until the device has finished all calls, and raise what went wrong."""
        if self._device.type != "cpu":
            getattr(torch, self._device.type).synchronize(self._device)
        if self.failure is not None:
            self.agreement.check_usable()

    def record_stream(self, rows: Tensor, stream: int) -> None:
        """As :meth:`dgcl.transport.base.Transport.record_stream`."""
        if self._device.type == "cuda":
            rows.record_stream(torch.cuda.ExternalStream(stream))  # type: ignore[no-untyped-call]

    @contextmanager
    def guard(self, call: Call | None = None) -> Iterator[None]:
        """Around a call, or its rest: peers rely on this rank's part, so an error fails the communicator."""
        agreement = self.agreement
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"rank {agreement.rank}: a call cannot be captured into a CUDA graph, because ranks agree on each call;"
                " capture what lies between calls"
            )
        agreement.check_usable(call)
        number = agreement.next_call if call is None else call.number
        try:
            with torch.no_grad():
                yield
        except BaseException as error:
            if isinstance(error, MemoryError):
                agreement.fail(CommError(f"rank {agreement.rank} is out of memory: {error}"))
            agreement.give_up(error, number)
            raise
        finally:
            agreement.lock.release()


class Started(StartedExpand, StartedFold):
    """A call that was started; its rows must not change until it is over, and somebody must wait for it."""

    def __init__(
        self, transport: CollectiveTransport, call: Call, rows: Tensor, end: Callable[..., Tensor]
    ) -> None:
        self._transport, self._call, self._rows, self._end = transport, call, rows, end
        self._version = version_of(rows)

    def wait(self, into: Tensor | None = None) -> Tensor:
        """As :class:`dgcl.transport.base.StartedExpand` and :class:`dgcl.transport.base.StartedFold`."""
        transport = self._transport
        transport.agreement.check_unchanged(self._rows, self._version)
        with transport.guard(self._call):
            transport.agreement.finish(self._call)
            return self._end(into)

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if exiting() or "_version" not in self.__dict__:
            return
        if not self._call.over:
            self._transport.agreement.abandon("dropped and nobody waited for them")
        elif self._transport.agreement.under_way is self._call:
            self._transport.agreement.under_way = None  # nothing of it is left to do

"""What host lanes and messages between machines have in common: rows that leave by staging memory.

Rows for a peer whose memory cannot be written directly are gathered into staging memory of this rank. From there
copies (:mod:`dgcl.transport.cuda.lane_copies`) or messages (:mod:`dgcl.transport.cuda.groups`) on other streams bring
them on. Both add operations to the same prepared list, at the marks that :mod:`dgcl.transport.cuda.program` leaves
there, and both are given the addresses of a call's buffers, its *bases*, when it is enqueued: of the rows that peers
write, of relay rows, and of the staging memory.

**Queues.** A device takes work from few hardware queues (one with ``CUDA_DEVICE_MAX_CONNECTIONS=1``). In a queue all
streams that share it stand in the order in which the host enqueued, and what stands behind a wait waits, too, whatever
its stream. Two things keep ranks from waiting for each other in a circle:

1. *The order in which a call is enqueued.* Even if all streams of a rank shared one queue, every rank would do its
   operations in the order of (call, stage, phase), and what an operation waits for stands earlier in that order, at
   this rank and at all others. The phases of a stage are: wait for receivers and for arrivals of earlier stages,
   gather, signal; then rounds of slices (:mod:`dgcl.transport.cuda.lane_copies`), where round k puts slice k of every
   send into its slot, which wants round k - 2 at the receiver, and then takes slice k of every receive, which wants
   round k at the sender; then the group of messages, which wants the same group of its partners. By induction over
   that order all of it ends. Receivers announce themselves in the first phase of a call. Where phases follow each
   other in one stream with nothing of another stream between them, one kernel does them
   (:func:`dgcl.transport.cuda.program.fuse`), in the same order: it signals before it waits, so the argument holds.
2. *A level of priority for each role* (the numbers below; the watchdog's stream is above them), because streams of
   different priorities are given different queues. So roles overlap, as far as the device has levels (six today), and
   the watchdog's copies get past a wait. Nothing is wrong without it, only slower, and errors are less precise.

Ranks that are threads and share a device are not covered: one rank's wait may stand before another rank's work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, FLAG_THREADS, SignalWait, records
from dgcl.program.model import Program, Schedule
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.program import EXPAND, RankAddresses, staging_rows

#: Numbers of the streams in a prepared list, and their levels of priority: the caller's, copies to the host, copies
#: from it, messages.
MAIN: Final = 0
OUT: Final = 1
IN: Final = 2
NETWORK: Final = 3


@dataclass(frozen=True)
class CallKind:
    """A verb with a row size, as one rank executes it.

    Attributes:
        device, program, addresses: Of the rank.
        verb: EXPAND or FOLD.
        row_bytes: Size of a row.
        upload: Copies a table to the device, to stay there, and returns its address.
    """

    device: Device
    program: Program
    addresses: RankAddresses
    verb: int
    row_bytes: int
    upload: Callable[[np.ndarray], int]

    @property
    def schedule(self) -> Schedule:
        """The program's part for this verb."""
        return self.program.expand if self.verb == EXPAND else self.program.fold


class StagedRows:
    """Adds operations on other streams to a prepared list.

    Args:
        kind: The kind of call.
        prepared: The list.
        stream_waits: Whether the streams themselves wait for flags first, so that no waiting kernel holds the time
            slice of a process with which the device is shared.
    """

    def __init__(self, kind: CallKind, prepared: Prepared, stream_waits: bool = False) -> None:
        self._kind, self._prepared, self._schedule = kind, prepared, kind.schedule
        self._stream_waits = stream_waits
        out_of_reach = kind.addresses.staged | kind.addresses.partners
        self._staging = staging_rows(self._schedule, out_of_reach)

    def _sent(self, send: int) -> list[tuple[int, int, int]]:
        """Where a send's rows lie, for each of its two portions: (which base, first row, number of rows)."""
        first, second = self._schedule.send_count[send].tolist()
        row = self._staging[send]
        return [(2, row, first), (2, row + first, second)]

    def _received(self, receive: int) -> list[tuple[int, int, int]]:
        """Where a receive's rows go, as :meth:`_sent` says it; a fold's arrivals are one buffer."""
        places = zip(
            self._schedule.recv_to[receive].tolist(), self._schedule.recv_count[receive].tolist(), strict=True
        )
        return [
            (portion if self._kind.verb == EXPAND else 0, row, count)
            for portion, (row, count) in enumerate(places)
        ]

    def _record(self, stream: int) -> int:
        """A new event behind all that ``stream`` was given so far."""
        event = self._kind.device.driver.create_event()
        self._prepared.record_event(event, stream)
        return event

    def _follow(self, before: int, after: int) -> None:
        """Let stream ``after`` go on behind all that stream ``before`` was given so far."""
        self._prepared.wait_event(self._record(before), after)

    def _launch(self, kernel: str, parameters: Sequence[int], stream: int) -> None:
        self._prepared.launch(self._kind.device.kernels[kernel], 1, FLAG_THREADS, *parameters, stream=stream)

    def _wait(self, flag: dict[str, int], stream: int, state: int = 0) -> None:
        """Wait for a flag, with ``state`` instead of the rank's own."""
        if self._stream_waits:
            self._prepared.wait_value(flag["address"], flag["multiplier"], flag["offset"], stream)
        table = self._kind.upload(records(FLAG, [flag]))
        waits = SignalWait(state or self._kind.addresses.state, awaited=table, num_awaited=1)
        self._launch("signal_wait", waits, stream)

    def _signal(self, flag: dict[str, int], stream: int) -> None:
        """Set a flag behind all that the stream did before."""
        table = self._kind.upload(records(FLAG, [flag]))
        self._launch("signal_wait", SignalWait(self._kind.addresses.state, table, 1), stream)


def staged_row_counts(programs: Sequence[Program], peers: frozenset[int]) -> list[list[int]]:
    """Of each exchange the rows that leave for some peers in an expand and in a fold."""
    return [
        [
            int(schedule.send_count[np.isin(schedule.send_peer, list(peers))].sum())
            for schedule in (program.expand, program.fold)
        ]
        for program in programs
    ]


def rows_to_peers(programs: Sequence[Program]) -> np.ndarray:
    """``(E, 2, P)`` int64: rows that a call of each exchange and verb sends to each peer."""
    rows = np.zeros((len(programs), 2, programs[0].world_size), np.int64)
    for exchange, program in enumerate(programs):
        for verb, schedule in enumerate((program.expand, program.fold)):
            np.add.at(rows[exchange, verb], schedule.send_peer, schedule.send_count.sum(1))
    return rows

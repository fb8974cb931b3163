"""Messages between machines within a call: one group of all sends and receives per stage, on a stream of their own.

::

    the call's stream                            the network's stream
    announce, also into the outbox      ->       wait until the outbox says this call
                                                 group: partners exchange their outboxes (call, tag)
                                                 resolve: do they make the same call?
                                                 wait until that was answered
    for every stage:
        gather or sum into staging memory
        signal: handed                  ->       wait until this stage is handed
                                                 group: rows to and from partners, each with the sender's handed
    before what needs the rows         <-
        wait: the partner's done flag
    at the end                         <-

**No group waits in a circle.** Every rank makes its groups in the order of (call, stage), and a stage's group holds
all that the rank exchanges with partners in that stage; within a group no message waits for another. Say that all
groups and all transfers before (call, stage) are done, or will be. What a rank sends in this stage depends on arrivals
of earlier stages alone (``send_deps``), so every rank comes to hand it over, and puts its group into its stream. Both
ends of each message are then there, so all these groups end, and so on by induction. The first groups of a call depend
only on every rank's making the call, behind all of the call before.

**Agreement.** No message of rows is under way between ranks that make different calls: such messages may differ in
size, which NCCL does not forgive. So partners first tell each other their calls, in messages that are alike in all
calls. Where these differ, ``resolve`` stops the rank, as it does between neighbours; then nobody answers what the
network's stream waits for next, and no further group begins.

**Rows that were never written.** The host puts a call's groups into the stream before anything has run. A rank whose
kernels have stopped (a neighbour made another call) must not send what lies in its staging memory. Therefore the
network's stream waits with a state of its own, which stops only when the watchdog says so: behind its abort of the
wire. And a receiver does not take a group's end for the arrival of rows. With them comes a copy of the sender's count
of stages handed over; it lands on the sender's done line here, and is looked at as if the sender had written it. The
call's stream does not look before the group has ended, so a count that comes sooner than its rows does no harm, nor
one that has already gone on to a later stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, records
from dgcl.program.model import Program
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.program import (
    BEGUN,
    EXPAND,
    GROUPED,
    JOINED,
    MET,
    Launch,
    Wires,
    ready_flag,
    stage_flag,
    staging_rows,
)
from dgcl.transport.cuda.wire import Message, Wire

#: Number of the network's stream in a prepared list, behind those of :mod:`dgcl.transport.cuda.lane_copies`.
NETWORK: Final = 3

_MAIN: Final = 0
_THREADS: Final = 32
_WORD: Final = 8
_HELLO: Final = 16  # a line's call and tag

#: (peer, which base, offset to it, bytes); of a place that is the same in all calls, base -1.
_Piece = tuple[int, int, int, int]


@dataclass(frozen=True)
class Ends:
    """What a rank needs beside its :class:`~dgcl.transport.cuda.program.Wires` to send to partners.

    Attributes:
        wire: What carries the messages.
        stream: Where they are enqueued.
        state: A state for waits there, with the rank's abort word.
        greeted: The word that says that all partners make this call.
    """

    wire: Wire
    stream: int
    state: int
    greeted: int


class Groups:
    """Adds what belongs to groups to a prepared list, and enqueues them in between.

    Args:
        device, program, ends, wires: Of the rank.
        verb, row_bytes: Of the kind of call.
        prepared: The list.
        upload: Puts a table onto the device.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        verb: int,
        row_bytes: int,
        ends: Ends,
        wires: Wires,
        prepared: Prepared,
        upload: Callable[[np.ndarray], int],
    ) -> None:
        self._device, self._program, self._ends, self._wires = device, program, ends, wires
        self._prepared, self._upload = prepared, upload
        self._verb, self._row_bytes = verb, row_bytes
        self._schedule = program.expand if verb == EXPAND else program.fold
        self._staging = staging_rows(self._schedule, wires.staged | wires.partners)
        self._events: dict[int, int] = {}  # that a stage's group has ended
        # (place in the list before which it comes, sends, receives)
        self._groups: list[tuple[int, list[_Piece], list[_Piece]]] = []

    def add(self, mark: Launch) -> None:
        """What belongs to one of the marks in a list of launches."""
        if mark.kernel == BEGUN:
            self._greet()
        elif mark.kernel == GROUPED:
            self._exchange(mark.stage)
        elif mark.kernel == MET:
            self._prepared.wait_event(self._events[mark.parameters[0]], _MAIN)
        elif mark.kernel == JOINED:
            self._follow(NETWORK, _MAIN)

    def enqueue(self, streams: list[int], call: int, bases: tuple[int, int, int]) -> None:
        """Enqueue the list, and its groups where they belong.

        Args:
            streams, call: As :meth:`dgcl.kernels.cuda_launch.Prepared.enqueue` takes them.
            bases: Where peers' rows go, those that this rank only passes on, and rows on their way out.

        Raises:
            CudaError, CommError: An operation, or a group, was refused. Those before it run.
        """
        begin, places = 0, (*bases, 0)  # -1: offsets are addresses
        for place, sends, receives in self._groups:
            self._prepared.enqueue(streams, call, begin, place)
            there, here = (
                [Message(peer, places[base] + offset, num_bytes) for peer, base, offset, num_bytes in pieces]
                for pieces in (sends, receives)
            )
            self._ends.wire.group(there, here, streams[NETWORK])
            begin = place
        self._prepared.enqueue(streams, call, begin)

    def _greet(self) -> None:
        wires, ends = self._wires, self._ends
        partners = sorted(wires.partners)
        self._follow(_MAIN, NETWORK)
        self._launch("announce", 1, ends.state, 0, 0, 0, 0)  # to nobody: it counts the call
        self._wait({"address": wires.outbox, "multiplier": 1})
        hello = [(peer, -1, wires.outbox, _HELLO) for peer in partners]
        self._group(hello, [(peer, -1, int(wires.ready[peer]), _HELLO) for peer in partners])
        flags = self._upload(records(FLAG, [ready_flag(wires, peer) for peer in partners]))
        own = wires.state, wires.addresses
        self._launch("resolve", -(-len(partners) // _THREADS), *own, flags, len(partners), wires.words)
        greeted = {"address": ends.greeted, "multiplier": 1}
        self._launch("signal", 1, wires.state, self._upload(records(FLAG, [greeted])), 1)
        self._wait(greeted)

    def _exchange(self, stage: int) -> None:
        schedule, wires = self._schedule, self._wires
        sends: list[_Piece] = []
        receives: list[_Piece] = []
        for i in np.flatnonzero(schedule.send_stage == stage).tolist():
            peer = int(schedule.send_peer[i])
            if peer in wires.partners:
                row = self._staging[i]
                for count in schedule.send_count[i].tolist():
                    sends += self._piece(peer, 2, row, count)
                    row += count
                sends.append((peer, -1, wires.handed, _WORD))
        for i in np.flatnonzero(schedule.recv_stage == stage).tolist():
            peer = int(schedule.recv_peer[i])
            if peer in wires.partners:
                for portion, count in enumerate(schedule.recv_count[i].tolist()):
                    base = portion if self._verb == EXPAND else 0
                    receives += self._piece(peer, base, int(schedule.recv_to[i, portion]), count)
                receives.append((peer, -1, int(wires.done[peer]), _WORD))
        if sends:
            self._follow(_MAIN, NETWORK)
            self._wait(stage_flag(self._program, wires.handed, stage))
        self._group(sends, receives)
        self._events[stage] = event = self._device.driver.create_event()
        self._prepared.record_event(event, NETWORK)

    def _piece(self, peer: int, base: int, first_row: int, count: int) -> list[_Piece]:
        """Rows as a message; none where they have no bytes, as both ends know."""
        num_bytes = count * self._row_bytes
        return [(peer, base, first_row * self._row_bytes, num_bytes)] if num_bytes else []

    def _group(self, sends: list[_Piece], receives: list[_Piece]) -> None:
        self._groups.append((len(self._prepared), sends, receives))

    def _follow(self, before: int, after: int) -> None:
        event = self._device.driver.create_event()
        self._prepared.record_event(event, before)
        self._prepared.wait_event(event, after)

    def _wait(self, flag: dict[str, int]) -> None:
        self._launch("wait", 1, self._ends.state, self._upload(records(FLAG, [flag])), 1)

    def _launch(self, kernel: str, blocks: int, *parameters: int) -> None:
        threads = 1 if kernel == "wait" else _THREADS
        self._prepared.launch(self._device.kernels[kernel], blocks, threads, *parameters, stream=NETWORK)

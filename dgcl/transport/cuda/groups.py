"""Messages between machines: a stage's sends and receives are one NCCL group, on a stream of their own.

::

    the call's stream                            the network's stream
    announce, also into the outbox      ->       wait until the outbox holds this call
                                                 group: partners exchange their outboxes (call, tag)
                                                 compare: do they make the same call?
                                                 wait for the answer
    for every stage:
        gather or sum into staging memory
        signal: packed                  ->       wait until this stage is packed
                                                 group: rows to and from partners, each with the sender's count
    before what needs the rows         <-
        wait: the partner's done flag
    at the end                         <-

**Groups cannot deadlock.** Every rank enqueues its groups in the order of (call, stage), and a stage's group holds all
that the rank exchanges with partners in that stage; within a group no message waits for another. By induction: assume
that all groups and transfers before (call, stage) complete. What a rank sends in this stage depends on arrivals of
earlier stages alone, so every rank packs it and reaches its group. Both ends of each message are then
there, so all these groups complete. The first groups of a call depend only on every rank's making the call, behind the
whole previous call.

**Agreement.** Rows are sent only between ranks that make the same call: messages may differ in size otherwise, which is
undefined in NCCL. So partners first exchange their calls, in messages of one size. Where these differ, the comparison
stops the rank, as it does within a machine; then nothing sets the flag that the network's stream waits for next, and no
further group starts.

**Rows that were never written.** The host enqueues a call's groups before anything has run. A rank whose kernels have
stopped (a neighbour made another call) must not send what lies in its staging memory. Therefore the network's stream
waits with a state of its own, which stops only when the watchdog says so, after its abort of the channel. And a
receiver does not take a group's end for the arrival of rows: with them comes a copy of the sender's count of packed
stages, which lands on the sender's done line here and is checked as if the sender had written it. The call's stream
does not read it before the group has ended, so a count that arrives before its rows does no harm, nor one that is
already at a later stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, NUM_ENTERED, Begin, SignalWait, records
from dgcl.transport.cuda.message_channel import Message, MessageChannel
from dgcl.transport.cuda.program import (
    BEGUN,
    GROUPED,
    JOINED,
    RECEIVED,
    Launch,
    ready_flag,
    stage_flag,
)
from dgcl.transport.cuda.staged_rows import MAIN, NETWORK, CallKind, StagedRows

_WORD: Final = 8
_ANNOUNCEMENT_BYTES: Final = 16  # a line's call and tag

#: (peer, which base, offset to it, bytes); base -1 where the offset is an address, the same in all calls.
_Piece = tuple[int, int, int, int]


@dataclass(frozen=True)
class Endpoint:
    """What a rank needs beside its :class:`~dgcl.transport.cuda.program.RankAddresses` to send to partners.

    Attributes:
        channel: Carries the messages.
        stream: The stream on which they are enqueued.
        state: Address of a state for waits there, with the rank's abort word.
        agreed: Address of the word that says that all partners make this call.
    """

    channel: MessageChannel
    stream: int
    state: int
    agreed: int


class Groups(StagedRows):
    """Adds what belongs to groups to a prepared list, and enqueues the groups in between.

    Args:
        kind: The kind of call.
        endpoint: Of the rank.
        prepared: The list.
    """

    def __init__(self, kind: CallKind, endpoint: Endpoint, prepared: Prepared) -> None:
        super().__init__(kind, prepared)
        self._endpoint = endpoint
        self._events: dict[int, int] = {}  # by stage: its group has ended
        # (place in the list before which it comes, sends, receives)
        self._groups: list[tuple[int, list[_Piece], list[_Piece]]] = []

    def add(self, mark: Launch) -> None:
        """Add what belongs to one of the marks in a list of launches."""
        if mark.kernel == BEGUN:
            self._agree()
        elif mark.kernel == GROUPED:
            self._exchange(mark.stage)
        elif mark.kernel == RECEIVED:
            self._prepared.wait_event(self._events[mark.parameters[0]], MAIN)
        elif mark.kernel == JOINED:
            self._follow(NETWORK, MAIN)

    def enqueue(self, streams: list[int], call: int, bases: tuple[int, int, int]) -> None:
        """Enqueue the list, and its groups where they belong.

        Args:
            streams, call: As :meth:`dgcl.kernels.cuda_launch.Prepared.enqueue` takes them.
            bases: Addresses of the rows that peers write, of relay rows, and of the staging memory.

        Raises:
            CudaError, CommError: An operation, or a group, was refused. Those before it run.
        """
        begin, places = 0, (*bases, 0)  # base -1: offsets are addresses
        for place, sends, receives in self._groups:
            self._prepared.enqueue(streams, call, begin, place)
            outgoing, incoming = (
                [Message(peer, places[base] + offset, num_bytes) for peer, base, offset, num_bytes in pieces]
                for pieces in (sends, receives)
            )
            self._endpoint.channel.group(outgoing, incoming, streams[NETWORK])
            begin = place
        self._prepared.enqueue(streams, call, begin)

    def _agree(self) -> None:
        """Exchange the calls with all partners, and compare them."""
        addresses, endpoint = self._kind.addresses, self._endpoint
        partners = sorted(addresses.partners)
        self._follow(MAIN, NETWORK)
        self._launch("begin", [*Begin(endpoint.state), *[0] * NUM_ENTERED], NETWORK)  # counts the call
        self._wait_here({"address": addresses.outbox, "multiplier": 1})
        outgoing = [(peer, -1, addresses.outbox, _ANNOUNCEMENT_BYTES) for peer in partners]
        incoming = [(peer, -1, int(addresses.ready[peer]), _ANNOUNCEMENT_BYTES) for peer in partners]
        self._group(outgoing, incoming)
        # What has come is compared, not waited for: the group has ended.
        flags = [{**ready_flag(addresses, peer), "multiplier": 0} for peer in partners]
        agreed = {"address": endpoint.agreed, "multiplier": 1}
        compare = SignalWait(
            addresses.state,
            addresses=addresses.address_table,
            tag=addresses.words,
            ready=self._kind.upload(records(FLAG, flags)),
            num_ready=len(partners),
            ended=self._kind.upload(records(FLAG, [agreed])),
            num_ended=1,
        )
        self._launch("signal_wait", compare, NETWORK)
        self._wait_here(agreed)

    def _exchange(self, stage: int) -> None:
        """Exchange the rows of a stage with all partners, behind their packing."""
        kind, schedule, addresses = self._kind, self._schedule, self._kind.addresses
        sends: list[_Piece] = []
        receives: list[_Piece] = []
        for i in np.flatnonzero(schedule.send_stage == stage).tolist():
            peer = int(schedule.send_peer[i])
            if peer in addresses.partners:
                sends += self._rows(peer, self._sent(i))
                sends.append((peer, -1, addresses.packed, _WORD))
        for i in np.flatnonzero(schedule.recv_stage == stage).tolist():
            peer = int(schedule.recv_peer[i])
            if peer in addresses.partners:
                receives += self._rows(peer, self._received(i))
                receives.append((peer, -1, int(addresses.done[peer]), _WORD))
        if sends:
            self._follow(MAIN, NETWORK)
            self._wait_here(stage_flag(kind.program, addresses.packed, stage))
        self._group(sends, receives)
        self._events[stage] = self._record(NETWORK)

    def _rows(self, peer: int, places: list[tuple[int, int, int]]) -> list[_Piece]:
        """Rows as messages; none where they have no bytes, as both ends know."""
        size = self._kind.row_bytes
        return [(peer, base, row * size, count * size) for base, row, count in places if count * size]

    def _group(self, sends: list[_Piece], receives: list[_Piece]) -> None:
        self._groups.append((len(self._prepared), sends, receives))

    def _wait_here(self, flag: dict[str, int]) -> None:
        """Let the network's stream wait for a flag, with its own state."""
        self._wait(flag, NETWORK, self._endpoint.state)

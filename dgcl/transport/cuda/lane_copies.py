"""The copies by which a call's rows go through host lanes (:mod:`dgcl.transport.cuda.lanes`), for one kind of call.

Rows for a peer whose memory cannot be written directly are gathered into staging memory of this rank. From there
copies on two other streams bring them to the peer's slots, and from the own slots to their place. They stand in the
call's prepared list at the marks that :mod:`dgcl.transport.cuda.program` leaves there, and get the addresses of a
call's buffers, its *bases*, when it is enqueued: of the rows that peers write, of relay rows, and of staging memory.

**Queues.** A device takes work from few hardware queues (one with ``CUDA_DEVICE_MAX_CONNECTIONS=1``). In a queue all
streams that share it stand in the order in which the host enqueued, and what stands behind a wait waits, too, whatever
its stream. Two things keep ranks from waiting for each other in a circle:

1. *The order in which a call is enqueued.* Even if all streams of a rank shared one queue, every rank would do its
   operations in the order of (call, stage, phase), and what an operation waits for stands earlier in that order, at
   this rank and at all others. The phases of a stage are: wait for receivers and for arrivals of earlier stages,
   gather, signal; then rounds of slices, where round k puts slice k of every send into its slot, which wants round
   k - 2 at the receiver, and then takes slice k of every receive, which wants round k at the sender. By induction over
   that order all of it ends. Receivers announce themselves in the first phase of a call. Where phases follow each
   other in one stream with nothing of another stream between them, one kernel does them
   (:func:`dgcl.transport.cuda.program.fuse`), in the same order: it signals before it waits, so the argument holds.
2. *A level of priority for each role* (the numbers below; the watchdog's stream is above them), because streams of
   different priorities are given different queues. So roles overlap. Nothing is wrong without it, only slower.

Ranks that are threads and share a device are not covered: one rank's wait may stand before another rank's work.
"""

from collections.abc import Callable

import numpy as np

from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, FLAG_THREADS, SignalWait, records
from dgcl.program.model import Program
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.lanes import MOST_SLICES, NUM_SLOTS, Lanes, Slice, cut
from dgcl.transport.cuda.program import (
    BEGUN,
    EXPAND,
    JOINED,
    PACKED,
    Launch,
    RankAddresses,
    stage_flag,
    staging_rows,
)

#: Numbers of the streams in a prepared list, and their levels of priority: the caller's, copies to the host, copies
#: from it.
MAIN = 0
OUT = 1
IN = 2


class LaneCopies:
    """Adds copies, waits and signals to a prepared list, and gives the copies their addresses in every call.

    Args:
        device, program, addresses, lanes: Of the rank.
        verb: EXPAND or FOLD.
        row_bytes: Size of a row.
        upload: Copies a table to the device, to stay there, and returns its address.
        prepared: The list.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        addresses: RankAddresses,
        lanes: Lanes,
        verb: int,
        row_bytes: int,
        upload: Callable[[np.ndarray], int],
        prepared: Prepared,
    ) -> None:
        self._device, self._program, self._addresses, self._lanes = device, program, addresses, lanes
        self._verb, self._row_bytes, self._upload, self._prepared = verb, row_bytes, upload, prepared
        self._schedule = schedule = program.expand if verb == EXPAND else program.fold
        self._staging = staging_rows(schedule, lanes.staged)
        self._out = cut(schedule, row_bytes, lanes.staged, receives=False)
        self._in = cut(schedule, row_bytes, lanes.staged, receives=True)
        # (operation, which base, offset to it, the other address, whether the base is the target)
        self._placed: list[tuple[int, int, int, int, bool]] = []

    def add(self, mark: Launch) -> None:
        """Add what belongs to one of the marks in a list of launches."""
        if mark.kernel == BEGUN:
            self._follow(MAIN, IN)
        elif mark.kernel == PACKED:
            self._rounds(mark.stage, mark.parameters)
        elif mark.kernel == JOINED:
            # A call is over when its last slices are out of their slots: then this rank may leave.
            last = {piece.peer: piece.number for slices in self._out.values() for piece in slices}
            for peer, number in last.items():
                self._wait(_slice_flag(self._lanes.taken(peer, receives=False), number + 1), OUT)
            self._follow(OUT, MAIN)
            self._follow(IN, MAIN)

    def place(self, bases: tuple[int, int, int]) -> None:
        """Give the copies of the next call their addresses."""
        for operation, which, offset, other, is_target in self._placed:
            here = bases[which] + offset
            self._prepared.place_copy(operation, *((here, other) if is_target else (other, here)))

    def _rounds(self, stage: int, sends: tuple[int, ...]) -> None:
        """Run a stage: round k puts slice k of every send into its slot, then takes slice k of every receive.

        Slices follow each other on one stream each way, so every rank begins with the next one: else all would meet at
        the lowest (:mod:`dgcl.planner.simulator.simulate` plays it so).
        """
        if sends:
            self._follow(MAIN, OUT)
        schedule, rank, size = self._schedule, self._program.rank, self._program.world_size
        outgoing = sorted(sends, key=lambda i: (schedule.send_peer[i] - rank) % size)
        receives = [i for i in self._in if schedule.recv_stage[i] == stage]
        receives.sort(key=lambda i: (rank - schedule.recv_peer[i]) % size)
        longest = max(map(len, [*(self._out[i] for i in sends), *(self._in[i] for i in receives)]), default=0)
        for k in range(longest):
            for i in outgoing:
                for piece in self._out[i][k : k + 1]:
                    self._send(i, piece)
            for i in receives:
                for piece in self._in[i][k : k + 1]:
                    self._receive(i, piece)

    def _receive(self, receive: int, piece: Slice) -> None:
        """Copy a slice from its slot to its place, and free the slot."""
        lanes, row = self._lanes, int(self._schedule.recv_to[receive, piece.portion])
        self._wait(_slice_flag(lanes.full(piece.peer, receives=True), piece.number + 1), IN)
        slot = lanes.slot(piece.peer, piece.number, receives=True)
        # A fold's arrivals are one buffer.
        self._copy(piece.portion if self._verb == EXPAND else 0, row, piece, slot, IN)
        self._signal(_slice_flag(lanes.taken(piece.peer, receives=True), piece.number + 1), IN)
        if piece.last:
            done = int(self._addresses.done[piece.peer])
            self._signal(stage_flag(self._program, done, int(self._schedule.recv_stage[receive])), IN)

    def _send(self, send: int, piece: Slice) -> None:
        """Copy a slice from the staging memory to its slot, once the slot is free."""
        lanes, row = self._lanes, self._staging[send]
        if piece.portion == 1:
            row += int(self._schedule.send_count[send, 0])
        if piece.number >= NUM_SLOTS:
            free = lanes.taken(piece.peer, receives=False)
            self._wait(_slice_flag(free, piece.number + 1 - NUM_SLOTS), OUT)
        self._copy(2, row, piece, lanes.slot(piece.peer, piece.number, receives=False), OUT)
        self._signal(_slice_flag(lanes.full(piece.peer, receives=False), piece.number + 1), OUT)

    def _copy(self, base: int, row: int, piece: Slice, slot: int, stream: int) -> None:
        """Copy a slice of the rows from ``row`` on into its slot, or out of it."""
        if piece.num_bytes:
            offset = row * self._row_bytes + piece.first
            self._placed.append((len(self._prepared), base, offset, slot, stream == IN))
            self._prepared.copy(0, 0, piece.num_bytes, stream)

    def _follow(self, before: int, after: int) -> None:
        """Let stream ``after`` go on behind all that stream ``before`` was given so far."""
        event = self._device.driver.create_event()
        self._prepared.record_event(event, before)
        self._prepared.wait_event(event, after)

    def _wait(self, flag: dict[str, int], stream: int) -> None:
        """Wait for a flag."""
        table = self._upload(records(FLAG, [flag]))
        self._launch(SignalWait(self._addresses.state, awaited=table, num_awaited=1), stream)

    def _signal(self, flag: dict[str, int], stream: int) -> None:
        """Set a flag behind all that the stream did before."""
        table = self._upload(records(FLAG, [flag]))
        self._launch(SignalWait(self._addresses.state, raised=table, num_raised=1), stream)

    def _launch(self, parameters: SignalWait, stream: int) -> None:
        kernel = self._device.kernels["signal_wait"]
        self._prepared.launch(kernel, 1, FLAG_THREADS, *parameters, stream=stream)


def _slice_flag(address: int, count: int) -> dict[str, int]:
    """The flag that has counted ``count`` slices of a call."""
    return {"address": address, "multiplier": MOST_SLICES, "offset": count}

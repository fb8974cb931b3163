"""The copies by which a call's rows go through host lanes (:mod:`dgcl.transport.cuda.lanes`), for one kind of call."""

from __future__ import annotations

from dgcl.kernels.cuda_launch import Prepared
from dgcl.transport.cuda.lanes import MOST_SLICES, NUM_SLOTS, Lanes, Slice, cut
from dgcl.transport.cuda.program import BEGUN, JOINED, PACKED, Launch, stage_flag
from dgcl.transport.cuda.staged_rows import IN, MAIN, OUT, CallKind, StagedRows

__all__ = ["LaneCopies"]


class LaneCopies(StagedRows):
    """Adds copies, waits and signals to a prepared list, and gives the copies their addresses in every call.

    Args:
        kind: The kind of call.
        lanes: Of the rank.
        prepared, stream_waits: The list, and how it waits, see :class:`StagedRows`.
    """

    def __init__(self, kind: CallKind, lanes: Lanes, prepared: Prepared, stream_waits: bool) -> None:
        super().__init__(kind, prepared, stream_waits)
        self._lanes = lanes
        self._out = cut(self._schedule, kind.row_bytes, lanes.staged, receives=False)
        self._in = cut(self._schedule, kind.row_bytes, lanes.staged, receives=True)
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
        """Give the copies of the next call their addresses.

        Args:
            bases: See :mod:`dgcl.transport.cuda.staged_rows`.
        """
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
        schedule, rank, size = self._schedule, self._kind.program.rank, self._kind.program.world_size
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
        lanes, kind = self._lanes, self._kind
        self._wait(_slice_flag(lanes.full(piece.peer, receives=True), piece.number + 1), IN)
        slot = lanes.slot(piece.peer, piece.number, receives=True)
        self._copy(self._received(receive)[piece.portion], piece, slot, IN)
        self._signal(_slice_flag(lanes.taken(piece.peer, receives=True), piece.number + 1), IN)
        if piece.last:
            done = int(kind.addresses.done[piece.peer])
            self._signal(stage_flag(kind.program, done, int(self._schedule.recv_stage[receive])), IN)

    def _send(self, send: int, piece: Slice) -> None:
        """Copy a slice from the staging memory to its slot, once the slot is free."""
        lanes = self._lanes
        if piece.number >= NUM_SLOTS:
            free = lanes.taken(piece.peer, receives=False)
            self._wait(_slice_flag(free, piece.number + 1 - NUM_SLOTS), OUT)
        slot = lanes.slot(piece.peer, piece.number, receives=False)
        self._copy(self._sent(send)[piece.portion], piece, slot, OUT)
        self._signal(_slice_flag(lanes.full(piece.peer, receives=False), piece.number + 1), OUT)

    def _copy(self, place: tuple[int, int, int], piece: Slice, slot: int, stream: int) -> None:
        """Copy a slice of the rows at a place into its slot, or out of it."""
        if piece.num_bytes:
            base, row, _ = place
            offset = row * self._kind.row_bytes + piece.first
            self._placed.append((len(self._prepared), base, offset, slot, stream == IN))
            self._prepared.copy(0, 0, piece.num_bytes, stream)


def _slice_flag(address: int, count: int) -> dict[str, int]:
    """The flag that has counted ``count`` slices of a call."""
    return {"address": address, "multiplier": MOST_SLICES, "offset": count}

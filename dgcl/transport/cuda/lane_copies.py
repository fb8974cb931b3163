"""The operations by which a call's rows go through the host, for one kind of call (:mod:`dgcl.transport.cuda.lanes`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, records
from dgcl.program.model import Program
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.lanes import MOST_SLICES, NUM_SLOTS, Lanes, Slice, cut
from dgcl.transport.cuda.program import BEGUN, EXPAND, HANDED, JOINED, Launch, Wires, staging_rows

#: Numbers of the streams in a prepared list.
MAIN: Final = 0
OUT: Final = 1
IN: Final = 2

_THREADS: Final = 32


class LaneCopies:
    """Adds copies, waits and signals to a prepared list, and gives the copies their addresses in every call.

    Args:
        device, program, lanes, wires: Of the rank.
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
        lanes: Lanes,
        wires: Wires,
        prepared: Prepared,
        upload: Callable[[np.ndarray], int],
    ) -> None:
        self._device, self._lanes, self._wires, self._prepared = device, lanes, wires, prepared
        self._verb, self._row_bytes, self._num_stages = verb, row_bytes, program.num_stages
        self._schedule = program.expand if verb == EXPAND else program.fold
        self._upload = upload
        self._out = cut(self._schedule, row_bytes, lanes.staged, receives=False)
        self._in = cut(self._schedule, row_bytes, lanes.staged, receives=True)
        self._staging = staging_rows(self._schedule, wires.staged | wires.partners)
        # (operation, which base, offset to it, the other address, whether the base is the target)
        self._placed: list[tuple[int, int, int, int, bool]] = []

    def add(self, mark: Launch) -> None:
        """What belongs to one of the marks in a list of launches."""
        if mark.kernel == BEGUN:
            self._follow(MAIN, IN)
            for i, slices in self._in.items():
                for piece in slices:
                    self._take(i, piece)
        elif mark.kernel == HANDED:
            self._follow(MAIN, OUT)
            for i in mark.parameters:
                for piece in self._out[i]:
                    self._give(i, piece)
        elif mark.kernel == JOINED:
            # Over is a call when the last slices are out of their slots: then this rank may leave.
            last = {piece.peer: piece.number for slices in self._out.values() for piece in slices}
            for peer, number in last.items():
                self._wait(self._lanes.taken(peer, receives=False), number + 1, OUT)
            self._follow(OUT, MAIN)
            self._follow(IN, MAIN)

    def place(self, bases: tuple[int, int, int]) -> None:
        """Give the copies of the next call their addresses.

        Args:
            bases: Of the rows that peers write, of those that this rank only passes on, and of the staging memory.
        """
        for operation, which, offset, other, is_target in self._placed:
            here = bases[which] + offset
            self._prepared.place_copy(operation, *((here, other) if is_target else (other, here)))

    def _follow(self, before: int, after: int) -> None:
        event = self._device.driver.create_event()
        self._prepared.record_event(event, before)
        self._prepared.wait_event(event, after)

    def _take(self, receive: int, piece: Slice) -> None:
        lanes, schedule = self._lanes, self._schedule
        self._wait(lanes.full(piece.peer, receives=True), piece.number + 1, IN)
        which = piece.portion if self._verb == EXPAND else 0
        offset = int(schedule.recv_to[receive, piece.portion]) * self._row_bytes + piece.first
        source = lanes.slot(piece.peer, piece.number, receives=True)
        self._copy(which, offset, source, piece.num_bytes, IN, is_target=True)
        self._signal(lanes.taken(piece.peer, receives=True), MOST_SLICES, piece.number + 1, IN)
        if piece.last:
            stage = int(schedule.recv_stage[receive])
            self._signal(int(self._wires.done[piece.peer]), self._num_stages, stage + 1, IN)

    def _give(self, send: int, piece: Slice) -> None:
        lanes, schedule = self._lanes, self._schedule
        if piece.number >= NUM_SLOTS:
            self._wait(lanes.taken(piece.peer, receives=False), piece.number + 1 - NUM_SLOTS, OUT)
        before = int(schedule.send_count[send, 0]) if piece.portion == 1 else 0
        offset = (self._staging[send] + before) * self._row_bytes + piece.first
        target = lanes.slot(piece.peer, piece.number, receives=False)
        self._copy(2, offset, target, piece.num_bytes, OUT, is_target=False)
        self._signal(lanes.full(piece.peer, receives=False), MOST_SLICES, piece.number + 1, OUT)

    def _copy(
        self, which: int, offset: int, other: int, num_bytes: int, stream: int, *, is_target: bool
    ) -> None:
        if num_bytes == 0:
            return
        self._placed.append((len(self._prepared), which, offset, other, is_target))
        self._prepared.copy(0, 0, num_bytes, stream)

    def _wait(self, address: int, offset: int, stream: int) -> None:
        flag = {"address": address, "multiplier": MOST_SLICES, "offset": offset}
        table = self._upload(records(FLAG, [flag]))
        self._prepared.launch(self._device.kernels["wait"], 1, 1, self._wires.state, table, 1, stream=stream)

    def _signal(self, address: int, multiplier: int, offset: int, stream: int) -> None:
        flag = {"address": address, "multiplier": multiplier, "offset": offset}
        table = self._upload(records(FLAG, [flag]))
        self._prepared.launch(
            self._device.kernels["signal"], 1, _THREADS, self._wires.state, table, 1, stream=stream
        )

"""The other ranks of the host: their memory, their boards, and whether they still live.

A peer's file is opened through its process entry and proved to be the right one by the random number on its
board. Its segments are mapped when a ready line first names them, so growth needs no collective.
"""

from __future__ import annotations

import os
import select
import socket

import numpy as np

from dgcl.control import Control
from dgcl.errors import CommError, PeerLostError
from dgcl.runtime.board import CLOSED, FAILED, READY_BUFFER, Board, board_bytes
from dgcl.runtime.segments import PeerFile, Segment, SegmentFile


class Peers:
    """What rank ``control.rank`` knows of the others. Construction is collective."""

    def __init__(self, control: Control, file: SegmentFile, board: Board) -> None:
        self.rank, self.world_size = control.rank, control.world_size
        process, descriptor = file.handle
        cards = control.exchange(
            (process, descriptor, board.segment.base, board.segment.size, board.token, socket.gethostname())
        )
        self._files: list[PeerFile | None] = []
        self.boards: list[Board] = []
        self._processes: list[int] = []
        self._watch: list[int] = []  # pidfds, -1 for ranks of this process
        self._segments: list[list[Segment]] = [[] for _ in cards]
        trouble = None
        try:
            for peer, card in enumerate(cards):
                self._connect(peer, card, board)
        except CommError as error:
            trouble = str(error)
        reports = [report for report in control.exchange(trouble) if report is not None]
        if reports:
            self.close()
            raise CommError(reports[0])
        # (P, M) tables of what is mapped, read by the engine: bases, sizes, addresses (0: free place).
        self.maps = tuple(np.zeros((self.world_size, 4), np.int64) for _ in range(3))

    def _connect(self, peer: int, card: tuple[int, int, int, int, int, str], own: Board) -> None:
        process, descriptor, base, size, token, host = card
        if peer == self.rank:
            self._files.append(None)
            self._watch.append(-1)
            self.boards.append(own)
            return
        try:
            file = PeerFile((process, descriptor))
            self._files.append(file)
            if size < board_bytes(self.world_size):
                raise ValueError("its board is too small")
            board = Board(file.map(base, size), self.world_size)
            if board.token != token:
                raise ValueError("that process is another one")
            self._watch.append(-1 if process == os.getpid() else os.pidfd_open(process))
        except (OSError, ValueError) as error:
            raise CommError(
                f"rank {self.rank} on {socket.gethostname()} and rank {peer} on {host} share no memory: "
                f"process {process} "
                f"cannot be opened from here ({error}). Ranks must be processes of one user on one host "
                f"that see each other's "
                f"process ids (containers: share the PID namespace), or threads of one process"
            ) from None
        self.boards.append(board)

    def map_segment(self, peer: int, line: int) -> None:
        """Map the segment that the buffer entry at address ``line`` of ``peer``'s board names."""
        words = self.boards[peer].segment
        place = (line - words.address) // 8
        base, size = (int(word) for word in words.memory.view(np.int64)[place : place + 2])
        file = self._files[peer]
        assert file is not None
        try:
            segment = file.map(base, size)
        except (OSError, ValueError) as error:
            raise PeerLostError(f"rank {self.rank} cannot map memory of rank {peer}: {error}") from None
        known = self._segments[peer]
        known.append(segment)
        if len(known) > self.maps[0].shape[1]:
            self.maps = tuple(np.concatenate((table, np.zeros_like(table)), axis=1) for table in self.maps)
        for table, value in zip(self.maps, (segment.base, segment.size, segment.address), strict=True):
            table[peer, len(known) - 1] = value

    def buffer_line(self, peer: int, relay: bool) -> int:
        """Address of the entry in ``peer``'s ready line for this rank that names its buffer, or its relay
        rows."""
        return self.boards[peer].ready_address(self.rank) + 8 * (READY_BUFFER + (3 if relay else 0))

    def reported_failure(self) -> tuple[int, CommError] | None:
        """The first peer that has posted an error, and that error."""
        for peer, board in enumerate(self.boards):
            if peer != self.rank and board.state == FAILED:
                return peer, board.failure()
        return None

    def gone(self, peer: int) -> str | None:
        """Why ``peer`` will never answer again, if that is so."""
        if self.boards[peer].state == CLOSED:
            return "has closed its communicator"
        watch = self._watch[peer]
        if watch >= 0:
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            if poll.poll(0):
                return "has died"
        return None

    def close(self) -> None:
        """Close the files; mapped segments stay as long as something refers to them."""
        for file in self._files:
            if file is not None:
                file.close()
        for watch in self._watch:
            if watch >= 0:
                os.close(watch)
        self._files, self._watch = [], []

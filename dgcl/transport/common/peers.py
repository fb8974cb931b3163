"""Connects a rank with all others: maps their memory and control pages, and watches their processes.

A rank opens a peer's memory file through the peer's process entry. The random token on the control page proves that it
is the right file. Segments are mapped when a ready line first names them, so growth needs no collective.
Whether two ranks share memory is found by trying. Host names and process ids prove nothing, and containers on one host
may or may not share memory. Of ranks that share none each has a stand-in for the control page of the other.
Called by `life_cycle`, `failure_detector`, `program_agreement`, `dgcl/transport/connect`,
`dgcl/transport/shared_memory/executor` and others. Free to change while ranks that share memory connect, and both of
two that share none know it (`tests/dgcl/transport/common/test_peers.py`).
"""

import os
import select
import socket

import numpy as np

from dgcl.errors import CommError, PeerLostError
from dgcl.ranks.control import Control
from dgcl.ranks.processes import process_status
from dgcl.transport.common.control_page import (
    CLOSED,
    FAILED,
    READY_BUFFER,
    READY_RELAY,
    ControlPage,
    control_page_bytes,
)
from dgcl.transport.common.pool import BufferPool
from dgcl.transport.common.segments import PeerFile, Segment, SegmentFile
from dgcl.transport.common.words import read_word

#: How rows may travel. "auto": through memory where all ranks share it, else by collectives of torch.
CHANNELS = ("auto", "memory", "collective")

DIED = "has died"  # a peer


class Peers:
    """The connections of rank ``control.rank`` to all other ranks. Construction is collective.

    Args:
        control: The control plane.
        channel: One of :data:`CHANNELS`, the same on every rank.

    Attributes:
        control: The control plane.
        process: This rank's.
        page: This rank's control page.
        pool: Allocates this rank's buffers.
        control_pages: Every rank's control page; a stand-in for each one that cannot be mapped.
        remote: The peers with which this rank shares no memory.
        any_remote: Whether any two ranks of the job share none.
        reasons: Why each peer is reached the way it is.

    Raises:
        CommError: Two ranks share no memory, and ``channel`` is "memory" or they cannot do without; on every rank.
        ValueError: ``channel`` is unknown or differs between ranks; on every rank.
    """

    def __init__(self, control: Control, channel: str = "auto") -> None:
        self.control, self.process = control, os.getpid()
        self.rank, self.world_size = control.rank, control.world_size
        self._file = file = SegmentFile()
        self.page = control_page = ControlPage.create(file, control.world_size)
        self.pool = BufferPool(file)
        process, descriptor = file.handle
        handles = control.exchange(
            (
                process,
                descriptor,
                control_page.segment.base,
                control_page.segment.size,
                control_page.token,
                socket.gethostname(),
            )
        )
        self._files: list[PeerFile | None] = [None] * self.world_size
        self.control_pages = [control_page] * self.world_size
        self._watch = [-1] * self.world_size  # pidfds, -1 for ranks of this process
        self._processes = [handle[0] for handle in handles]
        self._segments: list[list[Segment]] = [[] for _ in handles]
        trouble = [self._connect(peer, handle) for peer, handle in enumerate(handles)]
        answers = control.exchange((channel, trouble, control.has_group))
        words, texts, groups = ([*column] for column in zip(*answers, strict=True))
        try:
            self._choose(words, texts, groups[self.rank])
        except (CommError, ValueError):
            self.close()
            raise
        # (P, M) tables of mapped segments, read by the engine: bases, sizes, addresses (0: unused entry).
        self.maps = tuple(np.zeros((self.world_size, 4), np.int64) for _ in range(3))
        self._former_maps: list[tuple[np.ndarray, ...]] = []

    def _connect(self, peer: int, handle: tuple[int, int, int, int, int, str]) -> str | None:
        """Open a peer's file and map its control page; return the reason if that fails, else None."""
        process, descriptor, base, size, token, host = handle
        if peer == self.rank:
            return None
        try:
            file = self._files[peer] = PeerFile((process, descriptor))
            if size < control_page_bytes(self.world_size):
                raise ValueError("its control page is too small")
            control_page = ControlPage(file.map(base, size), self.world_size)
            if control_page.token != token:
                raise ValueError("that process is another one")
            if process != os.getpid():
                self._watch[peer] = os.pidfd_open(process)
        except (OSError, ValueError) as error:
            self._disconnect(peer)
            return (
                f"rank {self.rank} on {socket.gethostname()} and rank {peer} on {host} share no memory: "
                f"process {process} "
                f"cannot be opened from here ({error}). Ranks must be processes of one user on one host "
                f"that see each other's "
                f"process ids (containers: share the PID namespace), or threads of one process"
            )
        self.control_pages[peer] = control_page
        return None

    def _choose(self, channels: list[str], trouble: list[list[str | None]], has_group: bool) -> None:
        """Decide how each pair of ranks is connected, from what every rank could open."""
        known = all(isinstance(channel, str) and channel in CHANNELS for channel in channels)
        if not known or len(set(channels)) > 1:
            raise ValueError(
                f"channel must be one of {', '.join(CHANNELS)}, the same on every rank (got {channels})"
            )
        failures = [text for texts in trouble for text in texts if text is not None]
        if failures and (channels[0] == "memory" or not has_group):
            raise CommError(failures[0])
        self.any_remote = bool(failures)
        self.why_remote = failures[0].split(": ")[0] if failures else ""
        remote = []
        for peer in range(self.world_size):
            if peer != self.rank and (trouble[self.rank][peer] or trouble[peer][self.rank]):
                remote.append(peer)
                self._disconnect(peer)
        self.remote = frozenset(remote)

    def _disconnect(self, peer: int) -> None:
        """Replace a peer's control page by a stand-in, and close its file if it was opened."""
        file, watch = self._files[peer], self._watch[peer]
        if file is not None:
            file.close()
        self.control_pages[peer] = ControlPage.stand_in(self.world_size)
        if watch >= 0:
            os.close(watch)
        self._files[peer], self._watch[peer] = None, -1

    def map_segment(self, peer: int, relay: bool) -> None:
        """Map the segment that ``peer``'s ready line for this rank names for the buffer; ``relay``: for relay rows."""
        line = self.control_pages[peer].ready_address(self.rank) + 8 * (
            READY_RELAY if relay else READY_BUFFER
        )
        base, size = int(read_word(line)), int(read_word(line + 8))
        file = self._files[peer]
        assert file is not None
        try:
            segment = file.map(base, size)
        except (OSError, ValueError) as error:
            raise PeerLostError(f"rank {self.rank} cannot map memory of rank {peer}: {error}") from None
        known = self._segments[peer]
        known.append(segment)
        if len(known) > self.maps[0].shape[1]:
            self._former_maps.append(self.maps)  # another thread's engine may read them
            self.maps = tuple(np.concatenate((table, np.zeros_like(table)), axis=1) for table in self.maps)
        for table, value in zip(self.maps, (segment.base, segment.size, segment.address), strict=True):
            table[peer, len(known) - 1] = value

    def reported_failure(self) -> tuple[int, CommError] | None:
        """The first peer that has posted an error, and that error."""
        for peer, control_page in enumerate(self.control_pages):
            if peer != self.rank and control_page.state == FAILED:
                return peer, control_page.failure()
        return None

    def gone(self, peer: int) -> str | None:
        """Why ``peer`` will never answer again; None if it may."""
        if self.control_pages[peer].state == CLOSED:
            return "has closed its communicator"
        watch = self._watch[peer]
        if watch >= 0:
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            if poll.poll(0):
                return DIED
        return None

    def is_stopped(self, peer: int) -> bool:
        """Whether ``peer``'s process is on this host and is stopped by a signal or a debugger."""
        watched = peer < len(self._watch) and self._watch[peer] >= 0
        return watched and process_status(self._processes[peer])[0] in "tT"

    def unmap(self) -> None:
        """Give back what is mapped of the peers' buffers."""
        self._segments = []

    def close(self) -> None:
        """Close the files; mapped segments stay as long as something refers to them."""
        self._file.close()
        for file in self._files:
            if file is not None:
                file.close()
        for watch in self._watch:
            if watch >= 0:
                os.close(watch)
        self._files, self._watch = [], []

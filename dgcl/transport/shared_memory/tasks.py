"""The schedule of a verb in the engine's form, the state of a call, and the times of its transfers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from dgcl.kernels.copies import STREAMED
from dgcl.program.model import Program, Schedule
from dgcl.transport.shared_memory.caches import last_level_cache
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.engine import FOLD, SCRATCH_WORDS
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.row_types import RowType

if TYPE_CHECKING:
    from torch import Tensor

_SMALL: Final = 64 << 10


VERBS: Final = ("expand", "fold")


def call_label(exchange: int, verb: int, names: Sequence[str]) -> str:
    """The name of a verb of an exchange in messages; the first exchange is not named."""
    if exchange == 0:
        return VERBS[verb]
    name = names[exchange] if exchange < len(names) else str(exchange)
    return f"{VERBS[verb]} of exchange {name!r}"


class RemotePart(Protocol):
    """The part of one call that a remote channel does, for ranks that share no memory with this one.

    Attributes:
        sent: ``(S,)`` uint8, by send of the schedule: 1 for those on the wire.
        slices: Messages of rows completed in either direction; evidence of progress on a slow network.
        sender_done: Set when the sender has finished or given up.
    """

    sent: np.ndarray
    slices: int
    sender_done: threading.Event

    def is_sent(self, wait: bool) -> bool:
        """Whether all sends are on the wire; with ``wait``, wait briefly first."""


@dataclass(frozen=True, eq=False)
class CallRecord:
    """The times of one call on one rank, in nanoseconds of the host's monotonic clock.

    Attributes:
        verb: EXPAND or FOLD.
        call: Its number.
        exchange: Number of the exchange.
        begin, end: Of the call, from the ready line to the last row or, for a fold, the last sum.
        sends: ``(S, 2)``: begin and end of each of the schedule's sends.
        receives: ``(R,)``: when each of its receives was seen to be complete.
        arrived: When the last transfer was done; the rest of the call is this rank's own work.
        copied: Time spent meanwhile on copying own rows.
    """

    verb: int
    call: int
    begin: int
    end: int
    sends: np.ndarray
    receives: np.ndarray
    arrived: int
    copied: int = 0
    exchange: int = 0


class Task:
    """The schedule of a verb in the engine's form, with scratch memory that every call reuses.

    Sends to peers that share no memory with this rank (``remote``) are left to the network channel; the engine is
    told that they are done.

    Attributes:
        exchange, verb, schedule, label: What is carried out, and its name in messages.
        counted: The exchange whose bytes these are: for a window the one that it is a window of.
        room: Rows that the buffer of a call on halo rows alone has place for: all windows of an exchange use buffers of
            one size, that of the largest.
    """

    def __init__(
        self, exchange: int, verb: int, label: str, program: Program, peers: Peers, control_page: ControlPage
    ) -> None:
        schedule: Schedule = (program.expand, program.fold)[verb]
        self.exchange, self.verb, self.schedule = exchange, verb, schedule
        self.counted = exchange
        self.room = program.num_arrivals if verb == FOLD else program.num_halo + program.num_relay
        self.label = label
        first = np.searchsorted(program.arrival_rows, schedule.send_from if verb == FOLD else 0)
        self.sends = (
            schedule.send_peer,
            schedule.send_stage,
            schedule.send_count,
            schedule.send_from,
            schedule.send_to,
            schedule.send_dep_ptr,
            schedule.send_deps,
            np.broadcast_to(first, schedule.send_from.shape).astype(np.int64),
        )
        self.receives = (schedule.recv_peer, schedule.recv_stage)
        self.tables = (program.send_rows, program.arrival_rows, program.arrival_slots)
        ranks = range(program.world_size)
        self.lines = (
            np.array([peers.control_pages[peer].ready_address(program.rank) for peer in ranks], np.int64),
            np.array([peers.control_pages[peer].done_address(program.rank) for peer in ranks], np.int64),
            np.array([control_page.done_address(peer) for peer in ranks], np.int64),
        )
        self.own_ready = np.array(
            [control_page.ready_address(peer) for peer in sorted(set(schedule.recv_peer.tolist()))], np.int64
        )
        #: Wake-up words: of all ranks, and of the ranks that are told where to write.
        self.wake_words = np.array([peers.control_pages[peer].wake_address for peer in ranks], np.int64)
        self.own_senders = self.wake_words[sorted(set(schedule.recv_peer.tolist()))]
        self.remote = np.isin(schedule.send_peer, peers.remote)
        # An estimate: the other ranks of this host send about as much.
        self._rows_on_host = int(schedule.send_count.sum()) * (program.world_size - len(peers.remote))
        self.sent = np.zeros(len(schedule.send_peer), np.uint8)
        self.received = np.zeros(len(schedule.recv_peer), np.uint8)
        self.where = np.zeros(2, np.int64)
        self.scratch = np.zeros(SCRATCH_WORDS + program.world_size, np.int64)
        self.yields = np.zeros(2, np.int64)
        self.times = np.zeros((0, 2), np.int64)
        self.span = (0, 0)
        self.copied = 0

    def streamed_from(self, row_bytes: int) -> int:
        """Size in bytes from which a send is written past the caches.

        All but small sends are, if the rows that this host's ranks write together would leave the cache before they
        are read.
        """
        return _SMALL if self._rows_on_host * row_bytes > last_level_cache() // 2 else STREAMED

    def time_transfers(self, wanted: bool) -> None:
        """Turn the recording of transfer times by the engine on or off."""
        self.times = np.zeros((len(self.sent) + len(self.received) if wanted else 0, 2), np.int64)

    def record(self, call: int) -> CallRecord:
        """The times of the call that has just ended."""
        sends, receives = self.times[: len(self.sent)].copy(), self.times[len(self.sent) :, 0].copy()
        begin, arrived = self.span
        end = time.perf_counter_ns()
        return CallRecord(self.verb, call, begin, end, sends, receives, arrived, self.copied, self.exchange)


@dataclass(eq=False)
class Call:
    """A call that is under way.

    Attributes:
        task, number, tag, row_type: The verb's task, the call's number, and what the ranks must agree on.
        buffers: What the engine reads (:func:`dgcl.transport.shared_memory.engine.advance`).
        begin: When it began, in nanoseconds.
        progress: Number of transfers that were done at the last check.
        deadline: When to give up if none has been done since.
        job: The network channel's part; None if there is none.
        given: The rows of a started exchange, which a thread that waits elsewhere may advance. They are kept alive
            until the call is over, even if the exchange is dropped. None for a call that only its own thread
            advances.
    """

    task: Task
    number: int
    tag: int
    row_type: RowType
    buffers: tuple[int, int, int]
    begin: int = field(default_factory=time.perf_counter_ns)
    progress: int = -1
    deadline: float = 0.0
    job: RemotePart | None = None
    given: Tensor | None = None

    def unsent(self) -> np.ndarray:
        """``(S,)`` bool: the sends that are not done."""
        unsent: np.ndarray = self.task.sent == 0
        return unsent if self.job is None else unsent | (self.task.remote & (self.job.sent == 0))

    def count_done(self) -> int:
        """A number that grows whenever something gets done."""
        slices = 0 if self.job is None else self.job.slices
        return int(self.task.sent.sum()) + int(self.task.received.sum()) + slices

"""A verb's schedule in the form that the engine takes, and when its transfers ran."""

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
    """What messages call a verb of an exchange; the first one, which most programs have alone, goes without saying."""
    if exchange == 0:
        return VERBS[verb]
    name = names[exchange] if exchange < len(names) else str(exchange)
    return f"{VERBS[verb]} of exchange {name!r}"


class RemotePart(Protocol):
    """The part of one call that another channel does, for ranks that share no memory with this one.

    Attributes:
        sent: ``(S,)`` uint8, by send of the schedule: those that are on the wire.
        slices: Messages of rows that are through, either way; they show that a slow network moves.
        sender_done: Set when all is sent, or will never be.
    """

    sent: np.ndarray
    slices: int
    sender_done: threading.Event

    def is_sent(self, wait: bool) -> bool:
        """Whether all is on the wire; with ``wait`` look a little longer."""


@dataclass(frozen=True, eq=False)
class CallRecord:
    """When things happened in one call on one rank, in nanoseconds of the host's monotonic clock.

    Attributes:
        verb: EXPAND or FOLD.
        call: Its number.
        exchange: Number of the exchange.
        begin, end: Of the call, from the ready line to the last row, and of a fold's last sum.
        sends: ``(S, 2)``: begin and end of each of the schedule's sends.
        receives: ``(R,)``: when each of its receives was seen to be complete.
        arrived: When the last of all that was done and the rest is this rank's own work.
        copied: How long own rows were copied meanwhile.
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
    """A verb's schedule in the form that the engine takes, with scratch that every call reuses.

    Sends to peers that share no memory with this rank (``remote``) are none of the engine's: it is told that they
    are done, and the network channel does them.
    """

    def __init__(
        self, exchange: int, verb: int, label: str, program: Program, peers: Peers, control_page: ControlPage
    ) -> None:
        schedule: Schedule = (program.expand, program.fold)[verb]
        self.exchange, self.verb, self.schedule = exchange, verb, schedule
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
        #: The words on which ranks sleep: of all ranks, and of those that are told where to write.
        self.wake_words = np.array([peers.control_pages[peer].wake_address for peer in ranks], np.int64)
        self.own_senders = self.wake_words[sorted(set(schedule.recv_peer.tolist()))]
        self.remote = np.isin(schedule.send_peer, peers.remote)
        # Of the other ranks only this is known: they send about as much.
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
        """Bytes of a send that does better to pass by the caches: all but small ones, if what the ranks of this host
        write together would not stay there until it is read."""
        return _SMALL if self._rows_on_host * row_bytes > last_level_cache() // 2 else STREAMED

    def time_transfers(self, wanted: bool) -> None:
        """Have the engine note when each transfer begins and ends, or not."""
        self.times = np.zeros((len(self.sent) + len(self.received) if wanted else 0, 2), np.int64)

    def record(self, call: int) -> CallRecord:
        """What was timed in the call that has just ended."""
        sends, receives = self.times[: len(self.sent)].copy(), self.times[len(self.sent) :, 0].copy()
        begin, arrived = self.span
        end = time.perf_counter_ns()
        return CallRecord(self.verb, call, begin, end, sends, receives, arrived, self.copied, self.exchange)


@dataclass(eq=False)
class Call:
    """A call that is under way.

    Attributes:
        task, number, tag, row_type: Which verb, which call, what the ranks agree on.
        buffers: What the engine reads (:func:`dgcl.transport.shared_memory.engine.advance`).
        begin: When it began, in nanoseconds.
        progress: Transfers that were done when somebody last looked.
        deadline: When to give up if none has been done since.
        job: What the network channel does of it.
        given: The rows of an exchange that was started, for whoever waits elsewhere to carry on: they stay until it
            is over, even if it is dropped meanwhile. None for one that its own thread alone carries on.
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

"""The schedule of a verb in the engine's form, and the state of a call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from dgcl.kernels.copies import STREAMED
from dgcl.program.model import Program, Schedule
from dgcl.transport.shared_memory import engine
from dgcl.transport.shared_memory.caches import last_level_cache
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.engine import FOLD
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


class Task:
    """A verb of an exchange in the engine's form, with memory that every call reuses.

    Sends to peers that share no memory with this rank (``remote``) are left to the network channel; for the engine they
    are done.

    Attributes:
        exchange, verb, schedule, label: What is carried out, and its name in messages.
        counted: The exchange whose bytes these are: for a window the one that it is a window of.
        room: Rows that the buffer of a call on halo rows alone has place for: all windows of an exchange use buffers of
            one size, that of the largest.
        words: The engine's (:mod:`dgcl.transport.shared_memory.engine`), with parts of them:
        sent, received: Which sends and which receives are done.
        peers, tables: A row for each peer; which rows are sent, and what arrives for which rows.
        where: The send, and its portion, that the engine has stopped at.
        yields: Coming waits without yields, and their number.
    """

    def __init__(
        self,
        exchange: int,
        verb: int,
        label: str,
        program: Program,
        peers: Peers,
        control_page: ControlPage,
        num_stages: int,
        bytes_sent: np.ndarray,
        counted: int,
    ) -> None:
        schedule: Schedule = (program.expand, program.fold)[verb]
        self.exchange, self.verb, self.schedule = exchange, verb, schedule
        self.counted, self.label = counted, label
        self.room = program.num_arrivals if verb == FOLD else program.num_halo + program.num_relay
        sends = np.zeros((len(schedule.send_peer), engine.SEND_COLUMNS), np.int64)
        sends[:, engine.PEER], sends[:, engine.STAGE] = schedule.send_peer, schedule.send_stage
        for column, values in (
            (engine.COUNT, schedule.send_count),
            (engine.START, schedule.send_from),
            (engine.TO, schedule.send_to),
            (engine.FIRST, np.searchsorted(program.arrival_rows, schedule.send_from)),
        ):
            sends[:, column : column + 2] = values
        sends[:, engine.DEPS_BEGIN], sends[:, engine.DEPS_END] = (
            schedule.send_dep_ptr[:-1],
            schedule.send_dep_ptr[1:],
        )
        receives = np.zeros((len(schedule.recv_peer), engine.RECEIVE_COLUMNS), np.int64)
        receives[:, engine.PEER], receives[:, engine.STAGE] = schedule.recv_peer, schedule.recv_stage
        pages, rank = peers.control_pages, program.rank
        self.peers = np.array(
            [
                (
                    page.ready_address(rank),
                    page.done_address(rank),
                    control_page.done_address(peer),
                    page.wake_address,
                    0,
                )
                for peer, page in enumerate(pages)
            ],
            np.int64,
        )
        senders = sorted(set(schedule.recv_peer.tolist()))
        self.senders = np.array(
            [
                [control_page.ready_address(peer) for peer in senders],
                [pages[peer].wake_address for peer in senders],
            ],
            np.int64,
        )
        self.tables = program.send_rows, program.arrival_rows, program.arrival_slots
        self.words = np.zeros(engine.NUM_WORDS, np.int64)
        self._tables: dict[int, np.ndarray] = {}  # kept alive
        for place, table in (
            (engine.SENDS, sends),
            (engine.RECEIVES, receives),
            (engine.DEPS, schedule.send_deps),
            (engine.PEERS, self.peers),
            (engine.SENDERS, self.senders),
            (engine.SEND_ROWS, program.send_rows),
            (engine.ARRIVAL_ROWS, program.arrival_rows),
            (engine.ARRIVAL_SLOTS, program.arrival_slots),
            (engine.MOVED, bytes_sent[counted, verb]),
        ):
            self._enter(place, table)
        self.words[engine.SENDERS + 1] = len(senders)
        self.words[engine.VERB : engine.CALL_WORD + 1] = (
            verb,
            num_stages,
            control_page.wake_address,
            control_page.call_address,
        )
        self.enter_maps(peers)
        self.sent, self.received = sends[:, engine.IS_DONE], receives[:, engine.IS_DONE]
        self.where = self.words[engine.WHERE : engine.WHERE + 2]
        self.yields = self.words[engine.YIELDS : engine.YIELDS + 2]
        self.remote = np.isin(schedule.send_peer, peers.remote)
        # An estimate: the other ranks of this host send about as much.
        self._rows_on_host = int(schedule.send_count.sum()) * (program.world_size - len(peers.remote))

    def _enter(self, place: int, table: np.ndarray) -> None:
        """Enter where a table is, and its length."""
        assert table.flags.c_contiguous
        self._tables[place] = table
        self.words[place : place + 2] = table.ctypes.data, len(table)

    def enter_maps(self, peers: Peers) -> None:
        """Enter the tables of what is mapped of each peer, anew when they have grown."""
        self.words[engine.MAPS : engine.MAPS_WIDTH] = [table.ctypes.data for table in peers.maps]
        self.words[engine.MAPS_WIDTH] = peers.maps[0].shape[1]

    def streamed_from(self, row_bytes: int) -> int:
        """Size in bytes from which a send is written past the caches.

        All but small sends are, if the rows that this host's ranks write together would leave the cache before they
        are read.
        """
        return _SMALL if self._rows_on_host * row_bytes > last_level_cache() // 2 else STREAMED


@dataclass(eq=False)
class Call:
    """A call that is under way.

    Attributes:
        task, number, tag, row_type: The verb's task, the call's number, and what the ranks must agree on.
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
    progress: int = -1
    deadline: float = 0.0
    job: RemotePart | None = None
    given: Tensor | None = None

    @property
    def buffers(self) -> tuple[int, int, int]:
        """Address and number of the rows that are read, and address of those that follow, or of arrivals."""
        source, num_rows, second = self.task.words[engine.SOURCE : engine.SECOND + 1].tolist()
        return source, num_rows, second

    def unsent(self) -> np.ndarray:
        """``(S,)`` bool: the sends that are not done."""
        unsent: np.ndarray = self.task.sent == 0
        return unsent if self.job is None else unsent | (self.task.remote & (self.job.sent == 0))

    def count_done(self) -> int:
        """A number that grows whenever something gets done."""
        slices = 0 if self.job is None else self.job.slices
        return int(self.task.sent.sum()) + int(self.task.received.sum()) + slices

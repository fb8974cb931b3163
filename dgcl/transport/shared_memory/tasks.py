"""Converts a program's schedule into the engine's tables, and tells what a running call waits for.

A :class:`Task` is a verb (expand or fold) of one exchange, with memory that every call reuses; a :class:`Call` is one
that is under way. Large sends are written past the caches where the rows of all ranks would not stay in the last one.
Called by `executor`, `step_list` and `step_table`. Free to change while rows, sums and counted bytes are right
(`tests/dgcl/transport/shared_memory/test_executor.py`), and errors name the rank and rows that are missing
(`tests/dgcl/faults/test_faults.py`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dgcl.kernels.copies import STREAMED
from dgcl.program.rank_program import Program, Schedule
from dgcl.transport.common.calls import UnderWay, waits_of
from dgcl.transport.common.peers import Peers
from dgcl.transport.common.words import read_word
from dgcl.transport.shared_memory import engine
from dgcl.transport.shared_memory.engine import ITS_DONE, READY
from dgcl.transport.steps import FOLD

if TYPE_CHECKING:
    from torch import Tensor

_SMALL = 64 << 10
_CACHE = 32 << 20  # where Linux does not say how large the processor's last one is


@functools.cache
def last_level_cache() -> int:
    """Bytes of the largest cache that the first core uses."""
    texts = [path.read_text() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(text.strip().removesuffix("K")) << 10 for text in texts), default=_CACHE)


class Task:
    """A verb of an exchange in the engine's form, with memory that every call reuses.

    Attributes:
        verb, schedule, label: What is carried out, and its name in messages.
        counted: The exchange whose bytes these are: for a window the one that it is a window of.
        capacity: Rows that the buffer of a call on halo rows alone has place for: all windows of an exchange use
            buffers of one size, that of the largest.
        words: The engine's (:mod:`dgcl.transport.shared_memory.engine`), with parts of them:
        sent, received: Which sends and which receives are done.
        peers: A row for each peer.
        where: The send, and its portion, that the engine has stopped at.
        yields: Coming waits without yields, and their number.
    """

    def __init__(
        self,
        verb: int,
        label: str,
        program: Program,
        peers: Peers,
        num_stages: int,
        bytes_sent: np.ndarray,
        counted: int,
    ) -> None:
        schedule: Schedule = (program.expand, program.fold)[verb]
        self.verb, self.schedule = verb, schedule
        self.label = label
        self.capacity = program.num_arrivals if verb == FOLD else program.num_halo + program.num_relay
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
        pages, control_page, rank = peers.control_pages, peers.page, program.rank
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
        # An estimate: the other ranks send about as much.
        self._rows_on_host = int(schedule.send_count.sum()) * program.world_size

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
class Call(UnderWay):
    """A call that is under way.

    Attributes:
        task, number, tag, label: The verb's task, the call's number, what the ranks must agree on, its name.
        progress: Number of transfers that were done at the last check.
        deadline: When to give up if none has been done since.
        rows: The rows of a started exchange, which a thread that waits elsewhere may advance. They are kept alive
            until the call is over, even if the exchange is dropped. None for a call that only its own thread
            advances.
    """

    task: Task
    number: int
    tag: int
    label: str
    progress: int = -1
    deadline: float = 0.0
    rows: Tensor | None = None

    @property
    def place(self) -> str:
        """The stage that it has reached, in words."""
        task, schedule = self.task, self.task.schedule
        undone = [*schedule.recv_stage[task.received == 0], *schedule.send_stage[task.sent == 0]]
        return f"stage {min(undone)}" if undone else "its end"

    @property
    def waits(self) -> list[tuple[int, str]]:
        """The peers that it waits for, and what each one still has to do; earliest stage first."""
        task, schedule = self.task, self.task.schedule
        unready = [
            not sent and read_word(int(task.peers[peer, READY])) < self.number
            for sent, peer in zip(task.sent, schedule.send_peer, strict=True)
        ]
        return waits_of(schedule, task.received == 0, unready)

    def lacks(self, peer: int) -> bool:
        """Whether something is missing from a peer: rows of its, or that it can receive."""
        task, schedule = self.task, self.task.schedule
        missing = (task.received == 0) & (schedule.recv_peer == peer)
        base = self.number * int(task.words[engine.NUM_STAGES]) + 1
        done = read_word(int(task.peers[peer, ITS_DONE]))
        if any(done < base + int(stage) for stage in schedule.recv_stage[missing]):
            return True
        unsent = (task.sent == 0) & (schedule.send_peer == peer)
        return bool(unsent.any()) and read_word(int(task.peers[peer, READY])) < self.number

    def count_done(self) -> int:
        """A number that grows whenever something gets done."""
        return int(self.task.sent.sum()) + int(self.task.received.sum())

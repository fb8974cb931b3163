"""The network part of one call: the receives that were posted, and the sends still to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from dgcl.transport.shared_memory.engine import EXPAND, ITS_DONE
from dgcl.transport.shared_memory.segments import Segment
from dgcl.transport.shared_memory.tasks import Call

if TYPE_CHECKING:
    from torch.distributed import Work

#: Bytes of a message of rows, unless a single row is longer. Long enough to hide the cost of a message; short enough
#: to fill one slice while another travels, and for partners to alternate on a slow link.
SLICE_BYTES: Final = 1 << 18

_A_LITTLE: Final = 0.005  # seconds


def slice_rows(row_bytes: int) -> int:
    """Number of rows in a slice; sender and receiver compute the same number."""
    return max(SLICE_BYTES // max(row_bytes, 1), 1)


def slices_of(count: int, row_bytes: int) -> list[tuple[int, int]]:
    """``(begin, end)`` rows of each message of a portion of ``count`` rows; empty if a row has no bytes."""
    if row_bytes == 0:
        return []
    step = slice_rows(row_bytes)
    return [(begin, min(begin + step, count)) for begin in range(0, count, step)]


@dataclass(eq=False)
class Arrivals:
    """The receives of one transfer from a partner.

    Attributes:
        peer: The partner.
        done: Address of its ``done`` line for this rank.
        value: What that line holds once this transfer has arrived.
        works: The posted receives, with their target tensors.
        settled: Whether they are known to be complete.
    """

    peer: int
    done: int
    value: int
    works: list[tuple[Work, Tensor]]
    settled: bool = False


@dataclass(eq=False)
class Job:
    """The state of the channel's work for one call.

    Attributes:
        call: The call.
        sent: ``(S,)`` uint8, by send of the schedule: 1 for sends to partners that are on the wire.
        arrivals: By (stage, partner).
        locks: One per partner, held while a thread waits for its rows.
        ready: The READY messages that were posted.
        sender_done: Set when the sender has finished or given up.
        filling: Held while rows are read; see :meth:`cancel`. Re-entrant, because a finaliser that runs in the
            holding thread may cancel.
        cancelled: Set when nothing may be read any more.
        slices: Messages of rows completed in either direction; evidence of progress on a slow network.
    """

    call: Call
    sent: np.ndarray
    arrivals: list[Arrivals]
    locks: dict[int, threading.Lock]
    ready: list[tuple[Work, Tensor]] = field(default_factory=list)
    sender_done: threading.Event = field(default_factory=threading.Event)
    filling: threading.RLock = field(default_factory=threading.RLock)
    cancelled: bool = False
    slices: int = 0

    def is_sent(self, wait: bool) -> bool:
        """Whether all sends are on the wire; with ``wait``, wait for a few milliseconds first."""
        if wait:
            self.sender_done.wait(_A_LITTLE)
        if not self.sender_done.is_set():
            return False
        if self.sent[self.call.task.remote].all():
            return True
        if wait:  # the sender stopped; the executor will find out why
            time.sleep(_A_LITTLE)
        return False

    def cancel(self) -> None:
        """Stop reading rows; on return the channel reads none of the call's buffers.

        One exception: the thread that called this may hold ``filling``; it checks ``cancelled`` before it reads.
        """
        self.cancelled = True
        with self.filling:
            pass

    def sends_by_partner(self, rank: int) -> list[tuple[int, list[int]]]:
        """The schedule's sends to each partner, in schedule order.

        Partners start at ``rank`` and wrap around, so that not all ranks send to the same partner first and crowd its
        link while others are idle.
        """
        sends: dict[int, list[int]] = {}
        schedule = self.call.task.schedule
        for index in np.flatnonzero(self.call.task.remote):
            sends.setdefault(int(schedule.send_peer[index]), []).append(int(index))
        return sorted(sends.items(), key=lambda item: (item[0] < rank, item[0]))


def post_receives(
    call: Call,
    partners: set[int],
    places: Sequence[tuple[Segment, int]],
    num_stages: int,
    post: Callable[[Tensor, int], Work],
) -> list[Arrivals]:
    """Post receives for all rows from partners, each into its final place.

    Args:
        call: The call.
        partners: The ranks that are reached through the network.
        places: (segment, offset) of the buffer and of the relay rows, as in the ready line.
        num_stages: The largest number of stages of any program.
        post: ``(place, peer)`` -> a posted receive.
    """
    task, row_bytes = call.task, call.row_type.row_bytes
    schedule, done = task.schedule, task.peers[:, ITS_DONE]
    arrivals = []
    for index, peer in enumerate(schedule.recv_peer.tolist()):
        if peer not in partners:
            continue
        works = []
        for portion in range(2):
            segment, offset = places[portion if task.verb == EXPAND else 0]
            first = offset + int(schedule.recv_to[index, portion]) * row_bytes
            for begin, end in slices_of(int(schedule.recv_count[index, portion]), row_bytes):
                place = segment.memory[first + begin * row_bytes : first + end * row_bytes]
                tensor = torch.from_numpy(place)
                works.append((post(tensor, peer), tensor))
        value = call.number * num_stages + int(schedule.recv_stage[index]) + 1
        arrivals.append(Arrivals(peer, int(done[peer]), value, works))
    return arrivals

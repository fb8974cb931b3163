"""One call's part for partners: what was posted to receive, and what is still to be sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from dgcl.transport.shared_memory.engine import EXPAND
from dgcl.transport.shared_memory.segments import Segment
from dgcl.transport.shared_memory.tasks import Call

if TYPE_CHECKING:
    from torch.distributed import Work

#: Bytes of a message of rows, where a row is not longer: long enough to hide the cost of a message, short enough
#: to fill one while another travels, and for partners to take turns on a slow link.
SLICE_BYTES: Final = 1 << 18

_A_LITTLE: Final = 0.005  # seconds


def slice_rows(row_bytes: int) -> int:
    """Rows of a slice; sender and receiver count alike."""
    return max(SLICE_BYTES // max(row_bytes, 1), 1)


def slices_of(count: int, row_bytes: int) -> list[tuple[int, int]]:
    """``(begin, end)`` rows of each message of a portion of ``count`` rows; none where there are no bytes."""
    if row_bytes == 0:
        return []
    step = slice_rows(row_bytes)
    return [(begin, min(begin + step, count)) for begin in range(0, count, step)]


@dataclass(eq=False)
class Arrivals:
    """What one transfer brings from a partner.

    Attributes:
        peer: The partner.
        done: Where its ``done`` line for this rank is, and ``value``, what it says when this has arrived.
        works: The receives that were posted, with their places.
        settled: Whether they are known to be complete.
    """

    peer: int
    done: int
    value: int
    works: list[tuple[Work, Tensor]]
    settled: bool = False


@dataclass(eq=False)
class Job:
    """What the channel does for one call.

    Attributes:
        call: The call.
        sent: ``(S,)`` uint8, by send of the schedule: those to partners that are on the wire.
        arrivals: By (stage, partner).
        locks: One for each partner: who waits for its rows.
        sender_done: Set when all is sent, or will never be.
        filling: Held while rows are read; see :meth:`cancel`. The thread that holds it may take it again: a finaliser
            that runs there may cancel.
        cancelled: Nothing may be read any more.
        slices: Messages of rows that are through, either way; they show that a slow network moves.
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
        """Whether all is on the wire; with ``wait`` look a little longer."""
        if wait:
            self.sender_done.wait(_A_LITTLE)
        if not self.sender_done.is_set():
            return False
        if self.sent[self.call.task.remote].all():
            return True
        if wait:  # it has stopped for a reason that the executor is about to see
            time.sleep(_A_LITTLE)
        return False

    def cancel(self) -> None:
        """Stop reading rows; when this returns nothing of the call's buffers is read by the channel, but for the
        thread that called it: that looks at ``cancelled`` before it reads."""
        self.cancelled = True
        with self.filling:
            pass

    def sends_by_partner(self, rank: int) -> list[tuple[int, list[int]]]:
        """The schedule's sends to each partner, in their order; partners from ``rank`` on, and then around, so
        that not all ranks begin with the same one, whose link would be crowded while others lie idle."""
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
    """Post what partners will bring into its final place.

    Args:
        call: The call.
        partners: The ranks that the network brings rows from.
        places: (segment, offset) of the buffer and of the relay rows, as the ready line tells them.
        num_stages: The largest number of stages of any program.
        post: ``(place, peer)`` -> a receive.
    """
    task, row_bytes = call.task, call.row_type.row_bytes
    schedule, done = task.schedule, task.lines[1]
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

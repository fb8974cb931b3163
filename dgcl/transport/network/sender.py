"""The sender thread: gathers or sums the rows of sends to partners, and posts them slice by slice."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from dgcl.kernels.rows import STREAMED, gather_rows, sum_rows
from dgcl.transport.network.job import Job, slice_rows, slices_of
from dgcl.transport.network.slices import wait_for_any
from dgcl.transport.network.wire import ROWS, Wire
from dgcl.transport.shared_memory.engine import EXPAND, ITS_DONE, READY, read_word

if TYPE_CHECKING:
    from torch.distributed import Work

_SLOTS: Final = 16  # slices of staging memory: at most so many are on the wire
_CHECKS: Final = 40  # checks of pending conditions between two checks for cancellation


@dataclass(eq=False)
class _Posted:
    """A slice on the wire; ``last`` marks the final slice of the send ``index``."""

    work: Work
    slot: Tensor
    index: int
    last: bool


class Sender:
    """A thread that carries out the sends of one job after another.

    Args:
        wire: Posts the messages.
        rank: This rank.
        num_stages: The largest number of stages of any program.
        bytes_sent: ``(E, 2, P)`` int64, by exchange, verb and peer; added to.
    """

    def __init__(self, wire: Wire, rank: int, num_stages: int, bytes_sent: np.ndarray) -> None:
        self._wire, self._rank, self._num_stages, self._bytes_sent = wire, rank, num_stages, bytes_sent
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._slots: list[Tensor] = []
        self._posted: deque[_Posted] = deque()
        self.thread = threading.Thread(target=self._run, name="dgcl sender", daemon=True)

    def put(self, job: Job | None) -> None:
        """Queue a job; None ends the thread."""
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._send_all(job)
            except RuntimeError:  # a connection broke: the partner's listener reports it
                self._posted.clear()
            finally:
                job.sender_done.set()
            del job  # do not keep its rows alive while idle

    def _send_all(self, job: Job) -> None:
        size = slice_rows(job.call.row_type.row_bytes) * job.call.row_type.row_bytes
        if not self._slots or len(self._slots[0]) != size:
            self._slots = [torch.empty(size, dtype=torch.uint8) for _ in range(_SLOTS)]
        free = list(self._slots)
        streams = [self._stream(job, peer, sends, free) for peer, sends in job.sends_by_partner(self._rank)]
        while streams and not job.cancelled:
            waits: list[tuple[int, int]] = []
            for stream in tuple(streams):
                try:
                    wait = next(stream)
                except StopIteration:
                    streams.remove(stream)
                    continue
                if wait is not None:
                    waits.append(wait)
            if streams and len(waits) == len(streams):
                if self._posted:
                    self._finish_oldest(job, free)  # nothing can be posted now
                else:
                    addresses, values = np.array(waits, np.int64).T
                    wait_for_any(addresses.copy(), values.copy(), _CHECKS)
        while self._posted:
            self._finish_oldest(job, free)
        for work, _ in job.ready:
            self._wire.wait(work)

    def _stream(
        self, job: Job, peer: int, sends: list[int], free: list[Tensor]
    ) -> Iterator[tuple[int, int] | None]:
        """Post all sends to one partner; yield None after each slice, or an (address, value) to wait for."""
        call, task = job.call, job.call.task
        schedule, row_bytes = task.schedule, call.row_type.row_bytes
        for index in sends:
            pieces = [
                (portion, begin, end)
                for portion in range(2)
                for begin, end in slices_of(int(schedule.send_count[index, portion]), row_bytes)
            ]
            for address, value in self._conditions(job, peer, index):
                while read_word(address) < value:
                    yield address, value
            if not pieces:  # no bytes: the partner does not wait, and may be in its next call
                job.sent[index] = 1
                continue
            if read_word(int(task.peers[peer, READY]) + 8) != call.tag:
                return  # the partner makes another call; the executor detects that, too
            for number, (portion, begin, end) in enumerate(pieces):
                while not free:
                    self._finish_oldest(job, free)
                slot = free.pop()
                if not self._fill(job, slot.data_ptr(), index, portion, begin, end):
                    return
                num_bytes = (end - begin) * row_bytes
                work = self._wire.send(slot[:num_bytes], peer, ROWS)
                self._bytes_sent[task.counted, task.verb, peer] += num_bytes
                self._posted.append(_Posted(work, slot, index, number == len(pieces) - 1))
                yield None

    def _conditions(self, job: Job, peer: int, index: int) -> list[tuple[int, int]]:
        """(address, value) pairs: a send may begin once every word has reached its value."""
        call, task = job.call, job.call.task
        schedule = task.schedule
        conditions = [(int(task.peers[peer, READY]), call.number)]
        for dep in schedule.send_deps[schedule.send_dep_ptr[index] : schedule.send_dep_ptr[index + 1]]:
            value = call.number * self._num_stages + int(schedule.recv_stage[dep]) + 1
            conditions.append((int(task.peers[schedule.recv_peer[dep], ITS_DONE]), value))
        return conditions

    def _fill(self, job: Job, target: int, index: int, portion: int, begin: int, end: int) -> bool:
        """Write rows ``begin:end`` of a portion to ``target``; return False if the call was cancelled."""
        call, task = job.call, job.call.task
        source, num_source_rows, second = call.buffers
        row_bytes = call.row_type.row_bytes
        start = int(task.schedule.send_from[index, portion])
        send_rows, arrival_rows, arrival_slots = task.tables
        first, past, own = start + begin, start + end, source if portion == 0 else 0
        with job.filling:
            # A finaliser may run here and cancel, but not between the check and the compiled call.
            if job.cancelled:
                return False
            if task.verb == EXPAND:
                gather_rows(
                    target, source, num_source_rows, second, send_rows, first, past, row_bytes, STREAMED
                )
            else:
                sum_rows(
                    call.row_type.sum_code,
                    target,
                    own,
                    first,
                    past,
                    arrival_rows,
                    arrival_slots,
                    int(np.searchsorted(arrival_rows, first)),
                    second,
                    row_bytes,
                    STREAMED,
                )
        return True

    def _finish_oldest(self, job: Job, free: list[Tensor]) -> None:
        """Wait until the slice that was posted first is on the wire."""
        posted = self._posted.popleft()
        self._wire.wait(posted.work)
        job.slices += 1
        free.append(posted.slot)
        if posted.last:
            job.sent[posted.index] = 1

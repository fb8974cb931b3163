"""The network channel of one rank; :mod:`dgcl.transport.network` says how it works."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
from torch import Tensor

from dgcl.errors import CommError
from dgcl.transport.network.job import Arrivals, Job, post_receives
from dgcl.transport.network.messages import (
    CLOSED,
    FAILED,
    READY,
    WAITS,
    closed_message,
    empty_message,
    error_of,
    failed_message,
    ready_message,
    wait_message,
    words_of,
)
from dgcl.transport.network.sender import Sender
from dgcl.transport.network.wire import NEWS, ROWS, Wire
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.engine import publish_ready, write_word
from dgcl.transport.shared_memory.segments import Segment
from dgcl.transport.shared_memory.tasks import Call

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

_LAST_WORDS_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 0.5
_SETTLE_SECONDS: Final = 1.0


class NetworkChannel:
    """Exchanges rows and messages with partners, and updates their stand-in control pages.

    Args:
        group: A Gloo group of the same ranks, used for nothing else; released by :meth:`close`.
        rank: This rank.
        stand_ins: The partners' control pages in this rank's memory.
        num_stages: The largest number of stages of any program.
        timeout: Seconds without progress after which the executor gives up a call.
        bytes_sent: ``(E, 2, P)`` int64, by exchange, verb and peer; added to.

    Attributes:
        lost: Why the connection to a partner was lost, by partner.
        calls_done: Calls that this rank's device did without the channel; sent to the partners on closing.
    """

    def __init__(
        self,
        group: ProcessGroup,
        rank: int,
        stand_ins: Mapping[int, ControlPage],
        num_stages: int,
        timeout: float,
        bytes_sent: np.ndarray,
    ) -> None:
        self.rank, self._control_pages, self._num_stages = rank, dict(stand_ins), num_stages
        self._process = os.getpid()
        self._wire = Wire(group, timeout)
        self.lost: dict[int, str] = {}
        self.calls_done = 0
        self._job: Job | None = None
        self._last_words: list[tuple[Work, Tensor]] = []
        self._failed = False
        self._receives: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._sender = Sender(self._wire, rank, num_stages, bytes_sent)
        receiver = threading.Thread(target=self._receive, name="dgcl receiver", daemon=True)
        listeners = [
            threading.Thread(target=self._listen, args=(peer,), name=f"dgcl listener {peer}", daemon=True)
            for peer in self._control_pages
        ]
        self._threads = [self._sender.thread, receiver, *listeners]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    # Called by the executor, in the rank's thread.

    def start(self, call: Call, places: Sequence[tuple[Segment, int]]) -> Job:
        """Begin a call: post all receives, send READY to the partners, and queue the sends."""
        partners = set(self._control_pages)
        job = Job(call, np.zeros(len(call.task.sent), np.uint8), [], {p: threading.Lock() for p in partners})
        self._job = job
        message = ready_message(call.number, call.tag)
        try:
            job.arrivals = post_receives(
                call, partners, places, self._num_stages, lambda place, p: self._wire.receive(place, p, ROWS)
            )
            job.ready = [(self._wire.send(message, peer, NEWS), message) for peer in partners]
        except RuntimeError:  # a connection broke; its listener reports it to the executor
            pass
        self._receives.put(job)
        self._sender.put(job)
        return job

    def post_wait(self, peer: int) -> None:
        """Tell the partners that this rank waits for ``peer``."""
        if self._job is not None:
            message = wait_message(peer)
            with suppress(RuntimeError):  # a connection broke; its listener reports it to the executor
                for partner in self._control_pages:
                    self._job.ready.append((self._wire.send(message, partner, NEWS), message))

    def post_failure(self, error: CommError) -> None:
        """Stop reading rows, and send the partners the reason; only the first reason is sent."""
        if self._job is not None:
            self._job.cancel()
        if not self._failed:
            self._tell(failed_message(error))
            self._failed = True

    def close(self) -> None:
        """Tell the partners, break the connections and end the threads. Idempotent.

        A fork of the rank's process inherits the exit handler and the connections, but none of the threads. There
        this method does nothing, so that the partners are not disturbed.
        """
        if self._wire.closed or os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        if self._job is not None:
            self._job.cancel()
        if not self._failed:
            self._tell(closed_message(self.calls_done))
        until = time.monotonic() + _LAST_WORDS_SECONDS
        for work, _ in self._last_words:
            with suppress(RuntimeError):  # the peer is gone or did not receive; a time-out breaks the group
                work.wait(timedelta(seconds=max(until - time.monotonic(), 0.001)))
        self._receives.put(None)
        self._sender.put(None)
        self._wire.close(self._control_pages)
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(until - time.monotonic(), 0.0))

    def _tell(self, message: Tensor) -> None:
        for peer in self._control_pages:
            if peer not in self.lost:
                with suppress(RuntimeError):  # the peer is gone
                    self._last_words.append((self._wire.send(message, peer, NEWS), message))

    # Run by the channel's own threads.

    def _receive(self) -> None:
        while (job := self._receives.get()) is not None:
            for arrivals in job.arrivals:
                if job.cancelled or not self._settle(job, arrivals):
                    break
            del job

    def _settle(self, job: Job, arrivals: Arrivals) -> bool:
        """Wait for a transfer and raise its ``done`` word; return whether it arrived."""
        with job.locks[arrivals.peer]:  # a second wait for one message never returns
            if arrivals.settled:
                return True
            try:
                for work, _ in arrivals.works:
                    self._wire.wait(work)
                    job.slices += 1
            except RuntimeError:  # the connection broke; its listener reports it
                return False
            arrivals.settled = True
            write_word(arrivals.done, arrivals.value)
            return True

    def _settle_all(self, peer: int) -> None:
        """Raise ``done`` for everything that a partner sent before its last message.

        Rows sent before a message arrive before it. Without this the executor would report them as missing.
        """
        job = self._job
        for arrivals in job.arrivals if job is not None else ():
            if arrivals.peer == peer and job is not None and not self._settle(job, arrivals):
                return

    def _settle_soon(self, peer: int) -> None:
        """Call :meth:`_settle_all` in a thread, and wait for it for a limited time.

        The partner may have died in the middle of a message; Gloo never ends the wait for such a message.
        """
        settling = threading.Thread(
            target=self._settle_all, args=(peer,), name=f"dgcl settling {peer}", daemon=True
        )
        settling.start()
        settling.join(_SETTLE_SECONDS)

    def _listen(self, peer: int) -> None:
        """Copy a partner's messages to its stand-in until it leaves or the connection breaks."""
        control_page = self._control_pages[peer]
        lines = np.array([control_page.ready_address(self.rank)], np.int64)
        while True:
            message = empty_message()
            try:
                self._wire.wait_for_news(self._wire.receive(message, peer, NEWS))
            except RuntimeError as error:
                self._settle_soon(peer)
                if not self._wire.closed:
                    self.lost[peer] = _first_sentence(error)
                return
            kind, call, tag = words_of(message)
            if kind == READY:
                job = self._job
                if job is not None and call > job.call.number:
                    self._settle_all(peer)
                publish_ready(lines, control_page.call_address, call, np.array([tag], np.int64))
            elif kind == WAITS:
                control_page.post_wait(call)
            elif kind == FAILED:
                control_page.post_failure(error_of(message))
            elif kind == CLOSED:
                self._settle_soon(peer)
                if call:
                    publish_ready(lines, control_page.call_address, call, np.array([tag], np.int64))
                control_page.post_closed()
                return


def _first_sentence(error: RuntimeError) -> str:
    """The first sentence of a Gloo error, without the source location and possible causes."""
    return str(error).splitlines()[0].split(".cc:", 1)[-1].split("] ", 1)[-1].split(". ", 1)[0]

"""Which call each rank is in, and why one cannot go on: on control pages, and between machines by messages."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from numba import int64, void

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.kernels.compiled import compiled
from dgcl.kernels.memory import load_acquire, store_release, write_fence
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.ranks.group_control import GroupControl
from dgcl.transport.collective.call import Call
from dgcl.transport.collective.wires import Wire, open_wire
from dgcl.transport.shared_memory.agreement import check_agreement
from dgcl.transport.shared_memory.control_calls import ControlCalls
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.pool import BufferPool
from dgcl.transport.shared_memory.segments import SegmentFile
from dgcl.transport.shared_memory.waits import suspects, unpack_tag

_LOOK: Final = 0.02  # seconds of a wait in which Ctrl-C and failures of peers are not noticed
_GRACE: Final = 0.2  # seconds in which what a peer sent before it left still arrives
_PAUSE: Final = 20e-6  # seconds between two looks at a page


@compiled(void(int64, int64, int64))
def announce_call(page: int, number: int, tag: int) -> None:
    """Publish a call at the address of the call on this rank's control page."""
    store_release(page + 8 + 8 * (number & 1), tag)
    store_release(page, number)
    write_fence()  # of two ranks that publish and then look, one sees the other's


@compiled(int64(int64[::1], int64, int64))
def look_at_calls(pages: np.ndarray, number: int, tag: int) -> int:
    """Which page's rank has begun call ``number`` with another tag; -1: none; -2: none, but not all have begun it."""
    result = -1
    for i in range(len(pages)):
        if load_acquire(pages[i]) < number:
            result = -2
        elif load_acquire(pages[i] + 8 + 8 * (number & 1)) != tag:
            return i
    return result


class Agreement:
    """The control pages of a communicator's ranks. Construction is collective.

    Args:
        programs: This rank's programs by the names of their exchanges.
        control: The control plane.
        timeout: Seconds that a rank waits for another inside a call.
        channel: What the ranks asked for, which must be the same.

    Attributes:
        names: Of the exchanges, by number.
        pool: Memory for rows, in the file of the page.
        control_calls: Watches calls of the control plane.
    """

    def __init__(
        self, programs: Mapping[str, Program], control: Control, timeout: float, channel: str
    ) -> None:
        self.rank, self.control, self._timeout = control.rank, control, timeout
        self.names: tuple[str, ...] = ()
        self._process = os.getpid()
        check_agreement(control, programs)
        self._file = SegmentFile()
        self._page = ControlPage.create(self._file, control.world_size)
        self.pool = BufferPool(self._file)
        self._peers = Peers(control, self._file, self._page, channel)
        self.control_calls = ControlCalls(control, self._peers)
        self._messages: GroupControl | None = None
        self._words: Wire | None = None
        if self._peers.any_remote:  # pages are not shared: calls are sent, and reasons
            assert isinstance(control, GroupControl)
            self._messages = control.anew(timeout)
            self._words = open_wire(control, torch.device("cpu"), timeout)
        schedules = [each for program in programs.values() for each in (program.expand, program.fold)]
        partners = np.unique(np.concatenate([np.r_[each.send_peer, each.recv_peer] for each in schedules]))
        self._partners = partners
        self._pages = np.array([self._peers.control_pages[p].call_address for p in self._partners], np.int64)
        self._gone_at = 0.0

    def begin(self, call: Call) -> None:
        """Publish a call.

        Raises:
            DisagreementError: A rank makes another one.
            CommError: A rank does not come.
        """
        announce_call(self._page.call_address, call.number, call.tag)
        if self._words is not None:
            self._exchange_words(call, self._words)
        self._compare(call)

    def _exchange_words(self, call: Call, words_wire: Wire) -> None:
        """Send a call to those with which this rank exchanges rows, and note theirs on the stand-ins of their pages."""
        words = torch.tensor([[call.number, call.tag]] * len(self._partners), device="cpu")
        theirs = torch.empty_like(words)
        counts = np.bincount(self._partners, minlength=self.control.world_size).tolist()
        call.work = words_wire.post(theirs.view(torch.uint8), words.view(torch.uint8), counts, counts)
        self._await(call, words_wire)
        for peer, (number, tag) in zip(self._partners.tolist(), theirs.tolist(), strict=True):
            if peer in self._peers.remote:
                announce_call(self._peers.control_pages[peer].call_address, number, tag)

    def finish(self, call: Call, wire: Wire) -> None:
        """Carry out what is left of a call, and wait until the ranks that it concerns have begun it."""
        while not call.over:
            self._await(call, wire)
            call.end_stage()
            if not call.over:
                call.post(wire)
        deadline = time.monotonic() + self._timeout
        while not self._compare(call):
            self._check(call, time.monotonic() > deadline)
            time.sleep(_PAUSE)

    def _compare(self, call: Call) -> bool:
        """Whether all have begun the call with which this rank exchanges rows."""
        place = look_at_calls(self._pages, call.number, call.tag)
        if place < 0:
            return place == -1
        peer = int(self._partners[place])
        theirs, tag = self._peers.control_pages[peer].current_call()
        raise DisagreementError(
            f"ranks make different calls: rank {self.rank} is in call {call.number}:"
            f" {unpack_tag(call.tag, self.names)}; rank {peer} is in call {theirs}: {unpack_tag(tag, self.names)}."
            " Every rank must make the same calls with the same row shape and dtype, in the same order"
        )

    def _await(self, call: Call, wire: Wire) -> None:
        deadline, broken = time.monotonic() + self._timeout, ""
        while True:
            try:
                if not broken and wire.wait(call.work, _LOOK):
                    return
            except RuntimeError as error:
                broken = str(error).splitlines()[0]
            self._check(call, time.monotonic() > deadline, broken)
            if broken:
                time.sleep(_LOOK / 4)

    def _check(self, call: Call, late: bool, broken: str = "") -> None:
        """Raise if a call cannot go on, because a peer is gone, the deadline is over, or a connection broke."""
        place = f"rank {self.rank}, {call.label} (call {call.number})"
        report = self._peers.reported_failure()
        if report is not None:
            peer, error = report
            text = (
                f"rank {self.rank} stops because rank {peer} reports: {error} ({place} was at {call.place})"
            )
            self._page.post_failure(error, self.control.num_calls)  # the first reason, not a chain of reasons
            raise type(error)(text)
        if broken and self._messages is not None:
            with self._messages.collective(f"{call.label} {call.number} at {call.place}"):
                self._messages.barrier()  # which fails, and says whose connection broke
        pages = self._peers.control_pages
        waits = call.waits or [
            (peer, f"stage 0: rank {peer} is not ready to receive rows")
            for peer in self._partners.tolist()
            if pages[peer].current_call()[0] < call.number
        ]
        if broken:  # by a rank that may exchange no rows with this one in this stage
            named = {peer for peer, _ in waits}
            others = (peer for peer in range(len(pages)) if peer not in named and peer != self.rank)
            waits = [*waits, *((peer, f"{call.place}: a connection broke") for peer in others)]
        gone = [(why, peer, what) for peer, what in waits if (why := self._peers.gone(peer))]
        now = time.monotonic()
        self._gone_at = (self._gone_at or now) if gone or broken else 0.0
        if self._gone_at and now - self._gone_at > _GRACE:
            if not gone:
                raise PeerLostError(f"{place}: a connection broke at {call.place} ({broken})")
            why, peer, what = gone[0]
            raise PeerLostError(f"{place}: rank {peer} {why}, and {what}")
        apart = self.control_calls.crossing(call.number, f"{place} in graph_allgather") if waits else None
        if apart is not None:
            raise apart
        if late:
            stopped = [peer for peer in range(len(pages)) if self._peers.is_stopped(peer)]
            advice = self.control_calls.suspicion(call.number)
            raise CommTimeoutError(
                f"{place}: waited {self._timeout:g} s in vain: {suspects(waits, call.number, pages, stopped)}."
                f" {advice or 'If ranks may be that late, give build_comm_info a longer timeout'}"
            )

    def check_process(self) -> None:
        """Raise in a fork of the rank's process."""
        if os.getpid() != self._process:
            raise ValueError(
                f"rank {self.rank}: this process is a fork of the rank's process {self._process}, which alone may use"
                " the communicator"
            )

    def leave(self, error: CommError | None, number: int) -> None:
        """Publish that this rank makes no more calls, in call ``number``, because of an error or as it has closed."""
        if os.getpid() != self._process:
            return
        why, kind = "has closed its communicator", type(error or PeerLostError())
        if error is None:
            self._page.post_closed(self.control.num_calls)
        else:
            self._page.post_failure(error, self.control.num_calls)
            self.control_calls.leave_if_crossed(error, number)
            why = f"has left: {error}"
            if self._words is not None:
                self._words.abort()
        if self._messages is not None:
            self._messages.leave(why, kind)

    def close(self) -> None:
        """Close connections and files."""
        self._words = None
        self._peers.close()
        self._file.close()

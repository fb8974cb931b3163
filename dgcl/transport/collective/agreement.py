"""Which call each rank is in, and why one cannot go on: on control pages, and between machines by messages."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
from numba import int64

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.kernels.compiled import compiled
from dgcl.kernels.memory import load_acquire, store_release, write_fence
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.ranks.group_control import GroupControl
from dgcl.transport.collective.call import Call
from dgcl.transport.collective.wires import Wire
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


@compiled(int64(int64, int64, int64, int64[::1], int64[::1]))
def announce_call(own: int, number: int, tag: int, peers: np.ndarray, partners: np.ndarray) -> int:
    """Publish a call, then look for a peer in another one.

    Args:
        own, peers: Addresses of the calls on this rank's control page and on others'.
        number, tag: The call.
        partners: Those of ``peers`` that exchange rows with this rank.

    Returns:
        The place in ``peers`` of one with another tag; -1: none; -2: nothing is published, as a partner has not begun
        the call before.
    """
    for i in range(len(partners)):
        if load_acquire(partners[i]) < number - 1:
            return -2
    tag_place = 8 + 8 * (number & 1)
    store_release(own + tag_place, tag)
    store_release(own, number)
    write_fence()  # of two ranks that publish and then look, one sees the other's
    for i in range(len(peers)):
        differs = load_acquire(peers[i]) >= number and load_acquire(peers[i] + tag_place) != tag
        if differs and load_acquire(peers[i]) <= number + 1:
            return i
    return -1


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
        self._control_calls = ControlCalls(control, self._peers)
        self._messages: GroupControl | None = None
        if self._peers.any_remote:
            assert isinstance(control, GroupControl)
            self._messages = control.anew(timeout)
        schedules = [each for program in programs.values() for each in (program.expand, program.fold)]
        partners = np.unique(np.concatenate([np.r_[each.send_peer, each.recv_peer] for each in schedules]))
        self._here = np.setdiff1d(np.arange(control.world_size), [self.rank, *self._peers.remote])
        calls = np.array([page.call_address for page in self._peers.control_pages], np.int64)
        self._calls, self._partners = calls[self._here], calls[np.intersect1d(self._here, partners)]
        self._gone_at = 0.0

    def begin(self, call: Call) -> None:
        """Publish a call.

        Raises:
            DisagreementError: A rank makes another one.
            CommError: A rank does not come.
        """
        deadline, own = time.monotonic() + self._timeout, self._page.call_address
        while (odd := announce_call(own, call.number, call.tag, self._calls, self._partners)) == -2:
            self._check(call, time.monotonic() > deadline)
            time.sleep(_PAUSE)
        if odd >= 0:
            peer = int(self._here[odd])
            theirs, tag = self._peers.control_pages[peer].current_call()
            raise DisagreementError(
                f"ranks make different calls: rank {self.rank} is in call {call.number}:"
                f" {unpack_tag(call.tag, self.names)}; rank {peer} is in call {theirs}: {unpack_tag(tag, self.names)}."
                " Every rank must make the same calls with the same row shape and dtype, in the same order"
            )
        if self._messages is not None:  # where pages are not shared, ranks wait for each other's word
            with self._messages.collective(f"call {call.number}, {unpack_tag(call.tag, self.names)}"):
                self._messages.barrier()

    def finish(self, call: Call, wire: Wire) -> None:
        """Carry out what is left of a call."""
        while not call.over:
            self._await(call, wire)
            call.end_stage()
            if not call.over:
                call.post(wire)

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
            self._page.post_failure(error)  # the first reason, not a chain of reasons
            raise type(error)(text)
        if self._messages is not None and (lost := self._messages.lost()) is not None:
            raise lost
        gone = [(why, peer, what) for peer, what in call.waits if (why := self._peers.gone(peer))]
        now = time.monotonic()
        self._gone_at = (self._gone_at or now) if gone or broken else 0.0
        if self._gone_at and now - self._gone_at > _GRACE:
            if not gone:
                raise PeerLostError(f"{place}: a connection broke at {call.place} ({broken})")
            why, peer, what = gone[0]
            raise PeerLostError(f"{place}: rank {peer} {why}, and {what}")
        apart = (
            self._control_calls.crossing(call.number, f"{place} in graph_allgather") if call.waits else None
        )
        if apart is not None:
            raise apart
        if late:
            pages = self._peers.control_pages
            stopped = [peer for peer in range(len(pages)) if self._peers.is_stopped(peer)]
            advice = self._control_calls.suspicion(call.number)
            raise CommTimeoutError(
                f"{place}: waited {self._timeout:g} s in vain: {suspects(call.waits, call.number, pages, stopped)}."
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
        if error is None:
            self._page.post_closed()
        else:
            self._page.post_failure(error)
            self._control_calls.leave_if_crossed(error, number)
        if self._messages is not None:
            self._messages.leave(f"has left: {error}" if error else "has closed its communicator")

    def close(self) -> None:
        """Close the files."""
        self._peers.close()
        self._file.close()

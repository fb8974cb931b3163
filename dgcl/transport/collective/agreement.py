"""Compares which call each rank is in, before rows are sent, and finds why one cannot go on.

For the collective transport. A rank publishes its call on its control page (:mod:`dgcl.transport.common.control_page`),
or sends it where ranks share no memory, and then reads what the others have published. While it waits it looks for
ranks that failed, died or are late.
Called by `transport`, `dgcl/transport/connect` and `dgcl/transport/precompile`. Free to change while of two ranks that
make different calls at least one sends nothing, and all ranks hear who differed (`tests/dgcl/faults/test_odd_rank.py`),
died, stopped or left (`tests/dgcl/transport/collective/test_without_shared_memory.py`).
"""

import os
import time
from collections.abc import Iterable

import numpy as np
import torch
from numba import int64, void

from dgcl.errors import CommError, CommTimeoutError, PeerLostError
from dgcl.kernels.compiled import compiled
from dgcl.kernels.memory import load_acquire, store_release, write_fence
from dgcl.program.rank_program import Program
from dgcl.ranks.enqueued import Enqueued
from dgcl.ranks.group_control import GroupControl
from dgcl.transport.collective.call import Call
from dgcl.transport.collective.wires import BackendWire, ConnectionBroken, Wire
from dgcl.transport.common.life_cycle import LifeCycle
from dgcl.transport.common.peers import DIED, Peers

_LOOK = 0.02  # seconds of a wait in which Ctrl-C and failures of peers are not noticed
_GRACE = 0.2  # seconds in which a rank that broke a connection can say why
_PAUSE = 20e-6  # seconds between two looks at a page


# What must hold: each rank publishes which call it begins and then reads what the others have published, before it
# sends anything. So of two ranks that make different calls at least one sends nothing. A call ends when all ranks
# that it concerns have begun it, so what a rank has published is never overwritten unread. All ranks make the calls
# of all communicators, begin and wait, in one order: a group of our own carries them on the CPU, but on a device,
# where collectives wait in one queue, the user's are in that order, too.
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


class Agreement(LifeCycle):
    """The control pages of a communicator's ranks, and the wire between them. Construction is collective.

    Args:
        peers: The other ranks.
        timeout: Seconds that a rank waits for another inside a call.
        wire: Carries rows.
        words: Carries calls to ranks that share no memory with this one; None: there are none in the job.
    """

    def __init__(self, peers: Peers, timeout: float, wire: Wire, words: Wire | None) -> None:
        super().__init__(peers, timeout, ())
        self.wire, self._words = wire, words
        self.under_way: Call | None = None
        self.enqueued = Enqueued(timeout, self._check_enqueued, self.fail)
        if words is not None:  # pages are not shared: calls are sent, and reasons
            assert isinstance(self.control, GroupControl)
            self.far = self.control.anew(timeout)

    def concern(self, programs: Iterable[Program]) -> None:
        """Calls concern those ranks from now on with which one of these programs exchanges rows."""
        schedules = [each for program in programs for each in (program.expand, program.fold)]
        partners = np.unique(np.concatenate([np.r_[each.send_peer, each.recv_peer] for each in schedules]))
        self._partners, self._remote = partners, partners[np.isin(partners, list(self.peers.remote))]
        self._pages = np.array(
            [self.peers.control_pages[peer].call_address for peer in partners.tolist()], np.int64
        )

    def begin(self, call: Call) -> None:
        """Publish a call, and begin its first stage.

        Raises:
            DisagreementError: A rank makes another one.
            CommError: A rank does not come.
        """
        self.under_way, self.call_number = call, call.number
        call.partners, call.pages, call.is_gone = (
            self._partners.tolist(),
            self.peers.control_pages,
            self.peers.gone,
        )
        announce_call(self.peers.page.call_address, call.number, call.tag)
        if self._words is not None:
            self._exchange_words(call, self._words)
        self._compare(call)
        call.agreed = True
        if not call.over:
            call.post(self.wire)

    def _exchange_words(self, call: Call, words_wire: Wire) -> None:
        """Send a call to those with which this rank exchanges rows, and note theirs on the stand-ins of their pages."""
        words = torch.tensor([call.number, call.tag], device="cpu").expand(len(self._remote), 2).contiguous()
        theirs = torch.empty_like(words)
        counts = np.bincount(self._remote, minlength=self.control.world_size).tolist()
        call.work = words_wire.post(theirs.view(torch.uint8), words.view(torch.uint8), counts, counts)
        self._await(call, words_wire)
        for peer, (number, tag) in zip(self._remote.tolist(), theirs.tolist(), strict=True):
            announce_call(self.peers.control_pages[peer].call_address, number, tag)

    def finish(self, call: Call) -> None:
        """Carry out what is left of a call, and wait until the ranks that it concerns have begun it."""
        while not call.over:
            self._await(call, self.wire)
            call.end_stage()
            if not call.over:
                call.post(self.wire)
        deadline = time.monotonic() + self._timeout
        while not self._compare(call):
            self._check_failures(call, time.monotonic() > deadline)
            time.sleep(_PAUSE)
        self.under_way = None
        if isinstance(self.wire, BackendWire) and call.stages:
            self.enqueued.add(call.staging.device, self.place(call))

    def _check_enqueued(self, place: str, late: bool) -> None:
        """Raise if a call that the device does not end cannot end."""
        if (report := self.peers.reported_failure()) is not None:
            raise report[1]  # the first reason, not a chain of reasons
        for peer in self._partners.tolist():
            if self.peers.gone(peer) == DIED:
                raise PeerLostError(f"{place}: rank {peer} {DIED}, and the device does not end the call")
        if late:
            raise CommTimeoutError(
                f"{place}: the device has not ended it {self.enqueued.timeout:g} s after the one before. If ranks may"
                " be that late, give build_comm_info a longer timeout"
            )

    def _compare(self, call: Call) -> bool:
        """Whether all have begun the call with which this rank exchanges rows."""
        place = look_at_calls(self._pages, call.number, call.tag)
        if place < 0:
            return place == -1
        peer = int(self._partners[place])
        raise self.disagreement(call, peer, *self.peers.control_pages[peer].current_call())

    def _await(self, call: Call, wire: Wire) -> None:
        deadline, num_pending = 0.0, -1
        while True:
            call.pending = wire.pending(call.work)
            if len(call.pending) != num_pending:
                num_pending, deadline = len(call.pending), time.monotonic() + self._timeout
            try:
                if wire.wait(call.work, _LOOK):
                    return self.went_on()
            except ConnectionBroken as error:
                self._check_broken(call, error)
            self._check_failures(call, time.monotonic() > deadline)

    def _check_broken(self, call: Call, error: ConnectionBroken) -> None:
        """Raise why a connection broke, which its other end may be about to say."""
        until = time.monotonic() + _GRACE
        while time.monotonic() < until:
            self._check_failures(call, False)
            time.sleep(_LOOK / 4)
        place = f"{call.label} {call.number} at {call.place}"
        if self.far is not None:
            if error.peer is not None:
                reason = self.far.messages.broken(error.peer, str(error))
                raise type(reason)(f"{reason}, in {place}")
            with self.far.collective(place):
                self.far.barrier()  # which fails, and says whose connection broke
        missing = dict(call.waits)
        gone = [peer for peer in range(self.peers.world_size) if peer != self.rank and self.peers.gone(peer)]
        peer = gone[0] if error.peer is None and gone else error.peer
        if peer is None:
            raise PeerLostError(f"rank {self.rank}: a connection broke in {place} ({error})")
        why = self.peers.gone(peer) or f"has broken its connection ({error})"
        raise PeerLostError(f"{self.place(call)}: rank {peer} {why}, and {missing.get(peer, call.place)}")

    def close(self) -> None:
        """As of every transport; a started call that is not over fails on all ranks."""
        if self.closed:
            return
        if os.getpid() == self.process:
            self.enqueued.close()
        call = self.under_way
        if call is not None and os.getpid() == self.process:
            self.fail(
                PeerLostError(
                    f"rank {self.rank} has closed its communicator in {call.label} {call.number} at {call.place}"
                )
            )
        super().close()
        self._leave("has closed its communicator", PeerLostError)
        for wire in (self.wire, self._words):
            if wire is not None:
                wire.close()

    def _post_failure(self, error: CommError) -> None:
        super()._post_failure(error)
        self._leave(f"has left: {error}", type(error))
        for wire in (self.wire, self._words):
            if wire is not None:
                wire.abort()

    def _leave(self, why: str, kind: type[CommError]) -> None:
        if self.far is not None and os.getpid() == self.process:
            self.far.leave(why, kind)

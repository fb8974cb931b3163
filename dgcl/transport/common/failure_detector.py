"""Finds why a waiting call cannot go on: a peer died, left, is late or makes another call.

Two ranks that make the calls of two communicators in different orders wait for each other for ever. So do a rank in a
collective of the control plane (``if comm.rank == 0: accuracy(...)``) and one in an exchange of rows. A deadline could
not say what is wrong. So each rank publishes on its control page in which call and which collective it is, and a rank
that waits reads the pages of its peers.
Called by `life_cycle`. Free to change while such orders are named on both ranks at once
(`tests/dgcl/transport/test_crossed_calls.py`), a rank that does something else is named
(`tests/dgcl/faults/test_odd_rank.py`), and no right program is accused (`tests/dgcl/transport/test_side_by_side.py`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.ranks.control import Listener
from dgcl.ranks.group_control import GroupControl
from dgcl.transport.common.calls import UnderWay, end_of_row, suspects, unpack_tag
from dgcl.transport.common.control_page import ALIVE, CLOSED, FAILED
from dgcl.transport.common.peers import Peers

_ADVICE = (
    "Make each call on every rank, in the same order: what stands under `if comm.rank == 0` runs on rank 0"
    " alone"
)


class _Built(threading.local):
    """The communicators that the calling thread has built.

    Attributes:
        runtimes: Weak references to them.
        number: How many were built in all.
    """

    def __init__(self) -> None:
        self.runtimes: weakref.WeakSet[FailureDetector] = weakref.WeakSet()
        self.number = 0


_built = _Built()


class FailureDetector(Listener):
    """Finds out, for a rank that waits, whether the ranks that it waits for can still come.

    It hears of the control plane's collectives, and publishes them.

    Args:
        peers: The other ranks (:func:`dgcl.transport.common.program_agreement.connect_peers`).
        timeout: Seconds that a wait may take.
        names: Of the exchanges by number, windows included.

    Attributes:
        peers, control, rank, names: As above.
        name: What this communicator is called in messages.
        call_number: The number of the last call.
        closed: Whether this rank has closed the communicator.
        far: The control plane of ranks that share no memory: waits are written down there, too; None: all share memory.
        alone: Whether only the threads that are ranks make calls on communicators in this process.
    """

    def __init__(self, peers: Peers, timeout: float, names: Sequence[str]) -> None:
        self.peers, self.control, self.rank = peers, peers.control, peers.rank
        self.names, self._timeout, self.call_number = tuple(names), timeout, 0
        self.alone: Callable[[], bool] = peers.control.only_ranks_run
        self.far: GroupControl | None = None
        self.closed = False
        self._failure: CommError | None = None
        self._since = ("", 0.0)  # the call and stage that this rank waits in, and since when
        self._written = ""  # those that it has written down last
        _built.number += 1
        _built.runtimes.add(self)
        self.name = f"communicator {_built.number} (by the order in which they were built)"
        self.control.listeners.add(self)

    @property
    def can_call(self) -> bool:
        """Whether calls can still be made."""
        return not self.closed and self._failure is None

    @property
    def others(self) -> list[FailureDetector]:
        """The other communicators that the calling thread has built."""
        return [other for other in _built.runtimes if other is not self]

    def enter_collective(self, number: int, name: str, alone: bool) -> None:
        """Publish that this rank waits in a collective."""
        self.peers.page.post_collective(number, alone, name)

    def leave_collective(self) -> None:
        """Publish that this rank is in no collective."""
        self.peers.page.post_collective(0, False, "")

    def lost(self, num_calls: int) -> tuple[int, type[CommError], str] | None:
        """A rank that has left before its call of this number on the control plane, its error, and why; None if none.

        What a rank left later is of no matter: it has sent what this one needs. Through the network only failures of
        partners are known, and not when they left.
        """
        for peer, page in enumerate(self.peers.control_pages):
            state = ALIVE if peer in (self.rank, *self.peers.remote) else page.state
            if state == ALIVE or page.num_control_calls >= num_calls:
                continue
            if state == CLOSED:
                return peer, PeerLostError, f"rank {peer} has closed its communicator"
            error = page.failure()
            return peer, type(error), f"rank {peer} reports: {error}"
        return None

    def check_waits(self, under_way: UnderWay, late: bool) -> None:
        """Raise if a peer is gone or makes another call or, with ``late``, has not come in time."""
        waits = under_way.waits
        self._publish(under_way, waits)
        # Read before the check for a crossing: a peer that leaves because of one has published it by then.
        trouble = self._trouble(under_way, waits)
        if waits and self.alone():
            self.peers.page.post_stuck(under_way.number)
            crossed = self._elsewhere(under_way, crossed=True)
            if crossed:
                raise DisagreementError(
                    "ranks make the calls of different communicators in different orders:"
                    f" {self.place(under_way)} is in {under_way.label} of {self.name}; {crossed}. Every"
                    " rank must make the same calls in the same order, over all communicators"
                )
        # A peer that left because another rank failed did so after that rank's report; the next check finds it.
        if trouble is not None and self.peers.reported_failure() is None:
            raise trouble
        if waits and (apart := self._collective_of_peer(under_way.number)):
            place = f"rank {self.rank} in graph_allgather ({under_way.label}, call {under_way.number})"
            raise DisagreementError(f"ranks make different calls: {apart}, {place}. {_ADVICE}")
        waits = under_way.waits if late else []
        if waits:
            stopped = [peer for peer in range(self.peers.world_size) if self.peers.is_stopped(peer)]
            pages = self.peers.control_pages
            ends = {peer: self._root(peer) for peer, _ in waits}
            culprits = suspects(waits, under_way.number, pages, stopped, ends)
            elsewhere = self._elsewhere(under_way, crossed=False)
            culprits += elsewhere and f"; {elsewhere}"
            advice = "If ranks may be that late, give build_comm_info a longer timeout"
            if apart := self._collective_of_peer(None):
                advice = f"{apart}, which this rank has not begun. {_ADVICE}"
            raise CommTimeoutError(
                f"{self.place(under_way)}: waited {self._timeout:g} s in vain: {culprits}. {advice}"
            )

    def _publish(self, under_way: UnderWay, waits: list[tuple[int, str]]) -> None:
        """Tell the peers for whom this rank waits in the end: who waits for it looks there.

        Of several, one that has not begun the call, or else the first that is needed.
        """
        if not waits:
            return
        pages, number = self.peers.control_pages, under_way.number
        late = [peer for peer, _ in waits if pages[peer].current_call()[0] < number]
        peer = end_of_row(self.rank, late[0] if late else waits[0][0], pages, self._timeout / 2)
        pages[self.rank].post_wait(peer)
        if self.far is not None:
            place, now = f"{number}, {under_way.place}", time.monotonic()
            if self._since[0] != place:
                self._since = place, now
            elif self._written != place and now - self._since[1] > self._timeout / 8:
                self._written = place
                self.far.messages.post_wait(under_way.order, peer)

    def went_on(self) -> None:
        """This rank has what it waited for."""
        if self._written and self.far is not None:
            self._written = ""
            self.far.messages.post_wait(0, self.rank)

    def _root(self, peer: int) -> int:
        """The rank at the end of the row of those that wait for each other, from ``peer`` on."""
        peer = end_of_row(self.rank, peer, self.peers.control_pages, self._timeout / 2)
        return peer if self.far is None else self.far.messages.last_in_row(peer)

    def _trouble(self, under_way: UnderWay, waits: list[tuple[int, str]]) -> CommError | None:
        """The error for an awaited peer that is gone or makes another call; None if none is."""
        for peer, needed in waits:
            call, theirs = self.peers.control_pages[peer].current_call()
            differs = call > under_way.number or (call == under_way.number and theirs != under_way.tag)
            why = self.peers.gone(peer)
            # It may have finished its part before it went on: only what is still missing now is lost.
            if (differs or why is not None) and under_way.lacks(peer):
                if differs:
                    return self.disagreement(under_way, peer, call, theirs)
                return PeerLostError(f"{self.place(under_way)}: rank {peer} {why}, and {needed}")
        return None

    def place(self, call: UnderWay) -> str:
        """This rank and its call in words, for the start of a message."""
        return f"rank {self.rank}, {call.label} (call {call.number})"

    def disagreement(self, mine: UnderWay, peer: int, call: int, theirs: int) -> DisagreementError:
        """The error for a peer that makes another call than this rank."""
        if call == mine.number and theirs == mine.tag:
            what = "a buffer outside its own memory"
        else:
            what = f"call {call}: {unpack_tag(theirs, self.names)}"
        return DisagreementError(
            f"ranks make different calls: rank {self.rank} is in call {mine.number}:"
            f" {unpack_tag(mine.tag, self.names)}; "
            f"rank {peer} is in {what}. "
            f"Every rank must make the same calls with the same row shape and dtype, in the same order"
        )

    def _elsewhere(self, mine: UnderWay, crossed: bool) -> str:
        """Describe a call of another communicator that a peer has begun and this rank has not; "" if none.

        With ``crossed``, only a call that proves a mistake. This rank waits in ``mine`` and has not begun call m of
        another communicator. No other thread of it makes calls, so it begins m only after ``mine``. A peer that waits
        in m, also without other threads, and has not begun ``mine``, makes the two calls in the opposite order:
        neither can go on.

        It is no proof that the peer has begun m: it may have started m and go on to ``mine`` before it waits, or
        another of its threads may. Nor does the thread of earlier calls prove anything: a program may build its
        communicators in one thread and then give each thread its own.

        A peer that has left the other communicator, or has failed in it, no longer waits in it, unless it failed
        because it found the crossing first.
        """
        for other in self.others:
            if other.control is not self.control or not other.can_call:
                continue  # a call of it that a peer began proves nothing about later ones
            for peer, control_page in enumerate(other.peers.control_pages):
                if peer == self.rank or peer in self.peers.remote:
                    continue
                state = control_page.state
                # One that left because ranks make different calls is looked at, too.
                if state != ALIVE and not (
                    state == FAILED and isinstance(control_page.failure(), DisagreementError)
                ):
                    continue
                call, tag = control_page.current_call()
                waits = (
                    control_page.stuck_call == call
                )  # read before the next line: the peer may begin a call in between
                begun = self.peers.control_pages[peer].current_call()[0] >= mine.number
                if call > other.call_number and (not crossed or (waits and not begun)):
                    return (
                        f"rank {peer} has begun call {call} of {other.name}, {unpack_tag(tag, other.names)}, where rank"
                        f" {self.rank} has begun {other.call_number or 'none'}"
                    )
        return ""

    def _collective_of_peer(self, call: int | None) -> str:
        """Describe a peer in a collective that this rank has not begun, while this rank waits in an exchange; "": none.

        Args:
            call: Number of the exchange: only where it is certain that neither can go on. The peer has not begun it,
                and neither rank has ever made calls from another thread, which might still do so. None: any.
        """
        for peer, page in enumerate(self.peers.control_pages):
            number, alone, name = page.current_collective()  # read before its call, which it may begin later
            if peer == self.rank or number <= self.control.num_collectives:
                continue
            if call is None or (
                alone
                and page.state == ALIVE
                and page.current_call()[0] < call
                and self.control.has_one_caller()
            ):
                return f"rank {peer} is in {name} (control call {number})"
        return ""

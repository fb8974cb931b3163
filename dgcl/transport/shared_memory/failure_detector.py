"""The failure detector: finds why a call that makes no progress cannot, or must not, go on."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.ranks.group_control import GroupControl
from dgcl.transport.shared_memory.control_calls import ControlCalls
from dgcl.transport.shared_memory.control_page import ALIVE, FAILED
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.waits import (
    end_of_row,
    suspects,
    unpack_tag,
)


class OtherCommunicator(NamedTuple):
    """Another communicator of the same rank, with the same ranks.

    Attributes:
        name: Its name in messages.
        call: The number of the last call that this rank has begun on it.
        peers: All its ranks.
        names: Names of its exchanges.
    """

    name: str
    call: int
    peers: Peers
    names: tuple[str, ...] = ()


class UnderWay(Protocol):
    """A call that is under way.

    Attributes:
        number, tag: The call, and what all ranks compare.
    """

    number: int
    tag: int

    @property
    def order(self) -> int:
        """It grows with calls and their stages; who is in a stage has sent what others need in it."""

    @property
    def label(self) -> str:
        """Its name in messages."""

    @property
    def place(self) -> str:
        """The stage that it has reached, in words."""

    @property
    def waits(self) -> list[tuple[int, str]]:
        """The peers that it waits for, and what each one still has to do."""

    def lacks(self, peer: int) -> bool:
        """Whether something of a peer's is missing, which may have gone on, or be gone."""


class FailureDetector:
    """Finds out, for a rank that waits, whether the ranks that it waits for can still come.

    Args:
        exchanges: As the attribute.
        peers, timeout: The communicator's.

    Attributes:
        other_communicators: Returns this rank's other communicators, if the calling thread built them.
        exchanges: Names of the communicator's exchanges, windows included.
        name: What this communicator is called in messages.
        far: The control plane of ranks that share no memory: waits are written down there, too; None: all share memory.
        alone: Whether only the threads that are ranks make calls on communicators in this process.
    """

    def __init__(
        self,
        exchanges: Sequence[str],
        peers: Peers,
        timeout: float,
    ) -> None:
        self._rank, self.exchanges, self._peers, self._timeout = peers.rank, exchanges, peers, timeout
        self.other_communicators: Callable[[], Iterable[OtherCommunicator]] = tuple
        self.name = "this communicator"
        self.alone: Callable[[], bool] = lambda: threading.active_count() == 1
        self.control_calls: ControlCalls | None = None
        self.far: GroupControl | None = None
        self._since = ("", 0.0)  # the call and stage that this rank waits in, and since when
        self._written = ""  # those that it has written down last

    def check(self, under_way: UnderWay, late: bool) -> None:
        """Raise if a peer is gone or makes another call or, with ``late``, has not come in time."""
        waits = under_way.waits
        self._publish(under_way, waits)
        # Read before the check for a crossing: a peer that leaves because of one has published it by then.
        trouble = self._trouble(under_way, waits)
        if waits and self.alone():
            self._peers.control_pages[self._rank].post_stuck(under_way.number)
            crossed = self._elsewhere(under_way, crossed=True)
            if crossed:
                raise DisagreementError(
                    "ranks make the calls of different communicators in different orders:"
                    f" {self.place(under_way)} is in {under_way.label} of {self.name}; {crossed}. Every"
                    " rank must make the same calls in the same order, over all communicators"
                )
        # A peer that left because another rank failed did so after that rank's report; the next check finds it.
        if trouble is not None and self._peers.reported_failure() is None:
            raise trouble
        if waits and self.control_calls is not None:
            place = f"rank {self._rank} in graph_allgather ({under_way.label}, call {under_way.number})"
            apart = self.control_calls.crossing(under_way.number, place)
            if apart is not None:
                raise apart
        waits = under_way.waits if late else []
        if waits:
            stopped = [peer for peer in range(self._peers.world_size) if self._peers.is_stopped(peer)]
            pages = self._peers.control_pages
            roots = {peer: self._root(peer) for peer, _ in waits}
            culprits = suspects(waits, under_way.number, pages, stopped, roots)
            elsewhere = self._elsewhere(under_way, crossed=False)
            culprits += elsewhere and f"; {elsewhere}"
            advice = self.control_calls.suspicion(under_way.number) if self.control_calls is not None else ""
            advice = advice or "If ranks may be that late, give build_comm_info a longer timeout"
            raise CommTimeoutError(
                f"{self.place(under_way)}: waited {self._timeout:g} s in vain: {culprits}. {advice}"
            )

    def _publish(self, under_way: UnderWay, waits: list[tuple[int, str]]) -> None:
        """Tell the peers for whom this rank waits in the end: who waits for it looks there.

        Of several, one that has not begun the call, or else the first that is needed.
        """
        if not waits:
            return
        pages, number = self._peers.control_pages, under_way.number
        late = [peer for peer, _ in waits if pages[peer].current_call()[0] < number]
        peer = end_of_row(self._rank, late[0] if late else waits[0][0], pages, self._timeout / 2)
        pages[self._rank].post_wait(peer)
        if self.far is not None:
            place, now = f"{number}, {under_way.place}", time.monotonic()
            if self._since[0] != place:
                self._since = place, now
            elif self._written != place and now - self._since[1] > self._timeout / 8:
                self._written = place
                self.far.post_wait(under_way.order, peer)

    def went_on(self) -> None:
        """This rank has what it waited for."""
        if self._written and self.far is not None:
            self._written = ""
            self.far.post_wait(0, self._rank)

    def _root(self, peer: int) -> int:
        """The rank at the end of the row of those that wait for each other, from ``peer`` on."""
        peer = end_of_row(self._rank, peer, self._peers.control_pages, self._timeout / 2)
        return peer if self.far is None else self.far.last_in_row(peer)

    def leave_control(self, error: CommError, under_way: UnderWay | None) -> None:
        """After a failure was posted, also leave the control plane if a peer waits there for this rank in vain."""
        if self.control_calls is not None and under_way is not None:
            self.control_calls.leave_if_crossed(error, under_way.number)

    def _trouble(self, under_way: UnderWay, waits: list[tuple[int, str]]) -> CommError | None:
        """The error for an awaited peer that is gone or makes another call; None if none is."""
        for peer, needed in waits:
            call, theirs = self._peers.control_pages[peer].current_call()
            differs = call > under_way.number or (call == under_way.number and theirs != under_way.tag)
            why = self._peers.gone(peer)
            # It may have finished its part before it went on: only what is still missing now is lost.
            if (differs or why is not None) and under_way.lacks(peer):
                if differs:
                    return self.disagreement(under_way, peer, call, theirs)
                return PeerLostError(f"{self.place(under_way)}: rank {peer} {why}, and {needed}")
        return None

    def place(self, call: UnderWay) -> str:
        """This rank and its call in words, for the start of a message."""
        return f"rank {self._rank}, {call.label} (call {call.number})"

    def disagreement(self, mine: UnderWay, peer: int, call: int, theirs: int) -> DisagreementError:
        """The error for a peer that makes another call than this rank."""
        if call == mine.number and theirs == mine.tag:
            what = "a buffer outside its own memory"
        else:
            what = f"call {call}: {unpack_tag(theirs, self.exchanges)}"
        return DisagreementError(
            f"ranks make different calls: rank {self._rank} is in call {mine.number}:"
            f" {unpack_tag(mine.tag, self.exchanges)}; "
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
        for other in self.other_communicators():
            for peer, control_page in enumerate(other.peers.control_pages):
                if peer == self._rank or peer in self._peers.remote:
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
                begun = self._peers.control_pages[peer].current_call()[0] >= mine.number
                if call > other.call and (not crossed or (waits and not begun)):
                    return (
                        f"rank {peer} has begun call {call} of {other.name}, {unpack_tag(tag, other.names)}, where rank"
                        f" {self._rank} has begun {other.call or 'none'}"
                    )
        return ""

"""The failure detector: why a call that is not getting on cannot, or must not, go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.transport.shared_memory.control_calls import ControlCalls
from dgcl.transport.shared_memory.control_page import ALIVE, FAILED, ControlPage
from dgcl.transport.shared_memory.engine import read_word
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.remote import RemoteChannel
from dgcl.transport.shared_memory.tasks import Call
from dgcl.transport.shared_memory.waits import arrived_meanwhile, awaited, suspects, unpack_tag


class OtherCommunicator(NamedTuple):
    """Another communicator of the same rank, to the same ranks.

    Attributes:
        name: What it is called in messages.
        call: The call that this rank has made last, or is in.
        control_pages: Of all its ranks.
        remote: Ranks whose control page is a stand-in, which may be behind.
        names: Of its exchanges.
    """

    name: str
    call: int
    control_pages: list[ControlPage]
    remote: list[int]
    names: tuple[str, ...] = ()


class FailureDetector:
    """Finds out, for a rank that waits, whether the ranks that it waits for can still come.

    Args:
        rank: This rank.
        exchanges: Names of the communicator's exchanges.
        num_stages: The largest number of stages of any program.
        peers, timeout, network: Of the communicator.

    Attributes:
        other_communicators: Finds this rank's other communicators, if the asking thread built them.
        name: What this communicator is called in messages.
        alone: Whether no thread of this rank's process but those that are ranks makes calls on communicators.
    """

    def __init__(
        self,
        rank: int,
        exchanges: Sequence[str],
        num_stages: int,
        peers: Peers,
        timeout: float,
        network: RemoteChannel | None,
    ) -> None:
        self._rank, self._exchanges, self._num_stages = rank, exchanges, num_stages
        self._peers, self._timeout, self._network = peers, timeout, network
        self.other_communicators: Callable[[], Iterable[OtherCommunicator]] = tuple
        self.name = "this communicator"
        self.alone: Callable[[], bool] = lambda: threading.active_count() == 1
        self.control_calls: ControlCalls | None = None

    def check(self, under_way: Call, late: bool) -> None:
        """Raise if a peer is gone, makes another call, or, where it is ``late``, has not come."""
        waits = awaited(under_way)
        # Found before a crossing is looked for: who leaves over one has shown it by then.
        trouble = self._trouble(under_way, waits)
        if waits and self.alone():
            self._peers.control_pages[self._rank].post_stuck(under_way.number)
            crossed = self._elsewhere(under_way, crossed=True)
            if crossed:
                raise DisagreementError(
                    "ranks make the calls of different communicators in different orders:"
                    f" {self.place(under_way)} is in {under_way.task.label} of {self.name}; {crossed}. Every"
                    " rank must make the same calls in the same order, over all communicators"
                )
        # A peer that left over the failure of another did so behind its report, which the next look finds.
        if trouble is not None and self._peers.reported_failure() is None:
            raise trouble
        if waits and self.control_calls is not None:
            place = f"rank {self._rank} in graph_allgather ({under_way.task.label}, call {under_way.number})"
            apart = self.control_calls.crossing(under_way.number, place)
            if apart is not None:
                raise apart
        waits = awaited(under_way) if late else []
        if waits:
            stopped = [peer for peer in range(self._peers.world_size) if self._peers.is_stopped(peer)]
            culprits = suspects(waits, under_way.number, self._peers.control_pages, stopped)
            elsewhere = self._elsewhere(under_way, crossed=False)
            culprits += elsewhere and f"; {elsewhere}"
            advice = self.control_calls.suspicion(under_way.number) if self.control_calls is not None else ""
            advice = advice or "If ranks may be that late, give build_comm_info a longer timeout"
            raise CommTimeoutError(
                f"{self.place(under_way)}: waited {self._timeout:g} s in vain: {culprits}. {advice}"
            )

    def leave_control(self, error: CommError, under_way: Call | None) -> None:
        """After a failure was posted: leave the control plane, too, if a peer waits there for this rank in vain."""
        if self.control_calls is not None and under_way is not None:
            self.control_calls.leave_if_crossed(error, under_way.number)

    def _trouble(self, under_way: Call, waits: list[tuple[int, str]]) -> CommError | None:
        """The error for a peer that is gone or makes another call, if one of those that are waited for is or does."""
        for peer, needed in waits:
            call, theirs = self._peers.control_pages[peer].current_call()
            differs = call > under_way.number or (call == under_way.number and theirs != under_way.tag)
            why = self._peers.gone(peer) or self._cut_off(peer)
            # It may have done its part just before it went on: only what is still missing now is lost.
            if (differs or why is not None) and not arrived_meanwhile(
                under_way, peer, self._peers.control_pages, self._num_stages
            ):
                if differs:
                    return self.disagreement(under_way, peer, call, theirs)
                return PeerLostError(f"{self.place(under_way)}: rank {peer} {why}, and {needed}")
        return None

    def place(self, call: Call) -> str:
        """Who speaks, and in which call."""
        return f"rank {self._rank}, {call.task.label} (call {call.number})"

    def disagreement(self, mine: Call, peer: int, call: int, theirs: int) -> DisagreementError:
        """The error for a peer that makes another call."""
        if call == mine.number and theirs == mine.tag:
            what = "a buffer outside its own memory"
        else:
            what = f"call {call}: {unpack_tag(theirs, self._exchanges)}"
        return DisagreementError(
            f"ranks make different calls: rank {self._rank} is in call {mine.number}:"
            f" {unpack_tag(mine.tag, self._exchanges)}; "
            f"rank {peer} is in {what}. "
            f"Every rank must make the same calls with the same row shape and dtype, in the same order"
        )

    def refused_by_peer(self, call: Call) -> DisagreementError:
        """The error for what the engine found on the ready line of the peer it was about to send to."""
        peer = int(call.task.schedule.send_peer[call.task.where[0]])
        line = int(call.task.lines[0][peer])
        return self.disagreement(call, peer, read_word(line), read_word(line + 8))

    def _elsewhere(self, mine: Call, crossed: bool) -> str:
        """A call of another communicator that a peer has begun and this rank has not; "" if there is none.

        With ``crossed`` only one that proves a mistake. This rank waits in ``mine`` and has not begun call m of
        another communicator; it is alone, so it begins m only after ``mine``. A peer that waits in call m, alone too,
        and has not begun ``mine`` goes through them in the other order, whatever else happens. That it has begun m is
        not enough: it may have started m, and go on to ``mine`` before it waits; or another of its threads may. Who
        made the calls before tells nothing: a program may build its communicators in one thread and then give each
        thread its own.

        A peer that has left the other communicator, or has failed in it, is not in it any more; unless it failed
        because it found the crossing first.
        """
        for other in self.other_communicators():
            for peer, control_page in enumerate(other.control_pages):
                if peer == self._rank or peer in other.remote or peer in self._peers.remote:
                    continue
                if control_page.state != ALIVE and not _found_disagreement(control_page):
                    continue
                call, tag = control_page.current_call()
                waits = (
                    control_page.stuck_call == call
                )  # read before the next line, or it may have begun in between
                begun = self._peers.control_pages[peer].current_call()[0] >= mine.number
                if call > other.call and (not crossed or (waits and not begun)):
                    return (
                        f"rank {peer} has begun call {call} of {other.name}, {unpack_tag(tag, other.names)}, where rank"
                        f" {self._rank} has begun {other.call or 'none'}"
                    )
        return ""

    def _cut_off(self, peer: int) -> str | None:
        """Why the network does not reach ``peer`` any more, if that is so."""
        why = None if self._network is None else self._network.lost.get(peer)
        return None if why is None else f"has died or its connection broke ({why})"


def _found_disagreement(control_page: ControlPage) -> bool:
    """Whether a control page's rank left because ranks make different calls."""
    return control_page.state == FAILED and isinstance(control_page.failure(), DisagreementError)

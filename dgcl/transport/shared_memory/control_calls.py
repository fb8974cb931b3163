"""Detects ranks that wait for each other, one in a control-plane collective and one in an exchange of rows.

With ``if comm.rank == 0: accuracy(...)``, rank 0 waits for all others in a collective, and they wait for rank 0 in
their next exchange. A deadline could not say what is wrong. So each rank publishes on its control page the collective
that it waits in, and a rank that waits in an exchange reads the pages of its peers.
"""

from dgcl.errors import CommError, DisagreementError, PeerLostError
from dgcl.ranks.control import Control
from dgcl.transport.shared_memory.control_page import ALIVE, CLOSED
from dgcl.transport.shared_memory.peers import Peers

_ADVICE = (
    "Make each call on every rank, in the same order: what stands under `if comm.rank == 0` runs on rank 0"
    " alone"
)


class ControlCalls:
    """Publishes this rank's collectives for one communicator, and reads those of its peers.

    Args:
        control: The communicator's control plane, which reports every collective.
        peers: The communicator's.
    """

    def __init__(self, control: Control, peers: Peers) -> None:
        self._control, self._peers = control, peers
        self._page = peers.control_pages[peers.rank]
        control.listeners.add(self)

    def enter_collective(self, number: int, name: str, alone: bool) -> None:
        """Publish that this rank waits in a collective."""
        self._page.post_collective(number, alone, name)

    def leave_collective(self) -> None:
        """Publish that this rank is in no collective."""
        self._page.post_collective(0, False, "")

    def lost(self, num_calls: int) -> tuple[int, type[CommError], str] | None:
        """A rank that has left before its call of this number on the control plane, its error, and why; None if none.

        What a rank left later is of no matter: it has sent what this one needs. Through the network only failures of
        partners are known, and not when they left.
        """
        for peer, page in enumerate(self._peers.control_pages):
            state = ALIVE if peer in (self._peers.rank, *self._peers.remote) else page.state
            if state == ALIVE or page.num_control_calls >= num_calls:
                continue
            if state == CLOSED:
                return peer, PeerLostError, f"rank {peer} has closed its communicator"
            error = page.failure()
            return peer, type(error), f"rank {peer} reports: {error}"
        return None

    def crossing(self, call: int, place: str) -> DisagreementError | None:
        """The error for a peer that waits in a collective while this rank waits in an exchange, if any.

        Only where it is certain: this rank has not begun that collective, the peer has not begun this exchange, and
        neither has ever made calls from another thread, which might still do so.

        Args:
            call: Number of the exchange in which this rank waits.
            place: This rank and the exchange, in words.
        """
        peers = self._describe(call, certain=True)
        if not peers:
            return None
        return DisagreementError(f"ranks make different calls: {peers}, {place}. {_ADVICE}")

    def suspicion(self, call: int) -> str:
        """Describe the peers in a collective that this rank has not begun; "" if there are none."""
        peers = self._describe(call, certain=False)
        return peers and f"{peers}, which this rank has not begun. {_ADVICE}"

    def leave_if_crossed(self, error: CommError, call: int) -> None:
        """Leave the control plane if a peer waits there in vain because ranks fail over a crossing.

        Called after the failure was posted, so that ranks that see this one leave find the cause first.
        """
        if isinstance(error, DisagreementError) and self._describe(call, certain=True):
            self._control.leave(f"has left: {error}", DisagreementError)

    def _describe(self, call: int, certain: bool) -> str:
        for peer, page in enumerate(self._peers.control_pages):
            number, alone, name = page.current_collective()  # read before its call, which it may begin later
            if peer == self._peers.rank or number <= self._control.num_collectives:
                continue
            if not certain or (
                alone
                and page.state == ALIVE
                and page.current_call()[0] < call
                and self._control.has_one_caller()
            ):
                return f"rank {peer} is in {name} (control call {number})"
        return ""

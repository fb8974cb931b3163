"""Ranks that wait for each other, one in a collective of the control plane, one in an exchange of rows.

``if comm.rank == 0: accuracy(...)`` makes rank 0 wait for all, and these wait for rank 0 in their next exchange. Nobody
is late, so no deadline says what is wrong. So each rank publishes on its control page which collective it waits in, and
who waits in an exchange looks there.
"""

from __future__ import annotations

from typing import Final

from dgcl.errors import CommError, DisagreementError
from dgcl.ranks.control import Control
from dgcl.transport.shared_memory.control_page import ALIVE
from dgcl.transport.shared_memory.peers import Peers

_ADVICE: Final = (
    "Make each call on every rank, in the same order: what stands under `if comm.rank == 0` runs on rank 0"
    " alone"
)


class ControlCalls:
    """Publishes this rank's collectives for one communicator, and compares those of its peers.

    Args:
        control: The communicator's control plane, which tells of every collective.
        peers: The communicator's.
    """

    def __init__(self, control: Control, peers: Peers) -> None:
        self._control, self._peers = control, peers
        self._page = peers.control_pages[peers.rank]
        control.listeners.add(self)

    def enter_collective(self, number: int, name: str, alone: bool) -> None:
        """This rank is in a collective."""
        self._page.post_collective(number, alone, name)

    def leave_collective(self) -> None:
        """This rank is in none."""
        self._page.post_collective(0, False, "")

    def crossing(self, call: int, place: str) -> DisagreementError | None:
        """The error for a peer that waits in a collective where this rank waits in an exchange, if there is one.

        Only where it is certain: this rank has not begun that collective, the peer has not begun this exchange, and
        neither has ever made calls from another thread, which might do so.

        Args:
            call: Number of the exchange in which this rank waits.
            place: This rank and the exchange, in words.
        """
        told = self._describe(call, certain=True)
        if not told:
            return None
        return DisagreementError(f"ranks make different calls: {told}, {place}. {_ADVICE}")

    def suspicion(self, call: int) -> str:
        """Peers that are in a collective that this rank has not begun, in words; "" if there are none."""
        told = self._describe(call, certain=False)
        return told and f"{told}, which this rank has not begun. {_ADVICE}"

    def leave_if_crossed(self, error: CommError, call: int) -> None:
        """Leave the control plane, where a peer waits in vain because this rank, or another, fails over a crossing.

        Called behind the post of the failure: other ranks, which may see that peer go, find the cause first.
        """
        if isinstance(error, DisagreementError) and self._describe(call, certain=True):
            self._control.leave(f"has left: {error}", DisagreementError)

    def _describe(self, call: int, certain: bool) -> str:
        for peer, page in enumerate(self._peers.control_pages):
            number, alone, name = (
                page.current_collective()
            )  # before its call is read, which it may begin later
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

"""Ranks on other machines: a message channel for rows, and the hosts' channel for errors.

Rows go from device to device by a :class:`~dgcl.transport.cuda.message_channel.MessageChannel`, which reports no errors
of peers. Those come by the host's :class:`~dgcl.transport.network.channel.NetworkChannel`, which every rank has, too:
who has failed and why, who has left, whose connection broke.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from dgcl.errors import CommError
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.message_channel import MessageChannel
from dgcl.transport.cuda.nccl import open_nccl
from dgcl.transport.shared_memory.control_page import CLOSED, ControlPage
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.segments import SegmentFile

if TYPE_CHECKING:
    from dgcl.transport.shared_memory import Runtime

#: Seconds that ending a wire is waited for. An abort may have to wait for kernels that end only when it has begun.
_DELIVERING: Final = 5.0
_ABORTING: Final = 0.5


class Network:
    """Joins a rank to those that it shares no memory with.

    Args:
        programs: This rank's, of all exchanges.
        runtime: The host's, whose channel carries news.
        wire: For rows; None where no rank has any to send to another machine.
        channel: What the user has asked for.

    Attributes:
        remote: Ranks out of reach of this one's memory.
        partners: Those of them with which it exchanges rows.
    """

    def __init__(
        self, programs: Sequence[Program], runtime: Runtime, wire: MessageChannel | None, channel: str
    ) -> None:
        self._runtime, self.messages, self.channel = runtime, wire, channel
        self.remote = frozenset(runtime.peers.remote.tolist())
        self.partners = partners_of(programs, self.remote)

    def stand_in(self, peer: int) -> ControlPage:
        """The control page on which the host writes what a remote rank tells."""
        return self._runtime.peers.control_pages[peer]

    def tell(self, error: CommError) -> None:
        """Report to the partners why this rank has failed."""
        self._runtime.fail(error)

    def leave(self, calls: int) -> None:
        """Leave the network once the device has done this many calls, and tell partners the number.

        Waits until what was sent is delivered, but no longer than a delivery usually takes.
        """
        if self._runtime.network is not None:
            self._runtime.network.calls_done = calls
        if self.messages is not None:
            ending = threading.Thread(target=self.messages.close, name="dgcl end of the wire", daemon=True)
            ending.start()
            ending.join(_DELIVERING)

    def abort(self) -> None:
        """End what is under way to and from partners; where that takes long, by itself."""
        if self.messages is not None:
            ending = threading.Thread(target=self.messages.abort, name="dgcl abort", daemon=True)
            ending.start()
            ending.join(_ABORTING)

    def reason(self, peer: int) -> str:
        """How rows travel to and from a remote rank; "" for others."""
        if peer not in self.remote:
            return ""
        why = self._runtime.reasons[peer].removeprefix("network: ")
        if self.messages is None:
            return f"network, not used: no rows travel between machines ({why})"
        return f"network: NCCL, from device to device ({why})"

    def gone(self, peer: int, call: int) -> str | None:
        """Why a partner will do no more for a call; None as long as it may.

        One that has left behind the call has sent its rows. They are on their way, and need nobody there.
        """
        control_page = self.stand_in(peer)
        if control_page.state == CLOSED:
            return None if control_page.current_call()[0] >= call else "has closed its communicator"
        channel = self._runtime.network
        why = None if channel is None else channel.lost.get(peer)
        return None if why is None else f"has died or its connection broke ({why})"


def partners_of(programs: Sequence[Program], remote: frozenset[int]) -> frozenset[int]:
    """The ranks of ``remote`` with which a rank exchanges rows."""
    ends = [
        each
        for program in programs
        for schedule in (program.expand, program.fold)
        for each in (schedule.send_peer, schedule.recv_peer)
    ]
    return remote.intersection(np.concatenate(ends).tolist())


def join_network(
    programs: Sequence[Program],
    control: Control,
    device: Device,
    runtime: Runtime,
    timeout: float,
    channel: str,
) -> tuple[Network | None, str]:
    """How rows of devices reach other machines: a network, or None and why they must go through the hosts. Collective.

    Args:
        programs, control, device, runtime, timeout: Of the rank.
        channel: As in :func:`dgcl.build_comm_info`; "nccl" or "gloo" ask for one way.

    Raises:
        CommError: NCCL was asked for and cannot be had; on every rank.
    """
    partners = partners_of(programs, frozenset(runtime.peers.remote.tolist()))
    if not any(control.exchange(bool(partners))):
        return Network(programs, runtime, None, channel), ""
    if channel == "gloo":
        return None, "asked for"
    wire, why = open_nccl(control, device, partners, timeout, channel == "nccl")
    if wire is None and channel == "nccl":
        raise CommError(
            f'channel="nccl" cannot be had: {why}; use channel="auto", by which rows go through the hosts'
        )
    return (None, why) if wire is None else (Network(programs, runtime, wire, channel), "")


def peers_of(
    control: Control, file: SegmentFile, control_page: ControlPage, network: Network | None
) -> Peers:
    """The other ranks as peers.

    Those of this machine are reached by their memory, the others by control pages that stand in for them.
    """
    if network is None:
        return Peers(control, file, control_page, "memory")
    peers = Peers(control, file, control_page, network.channel)
    for peer in network.remote:
        peers.control_pages[peer] = network.stand_in(peer)
    return peers

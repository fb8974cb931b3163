"""Opens the network channel of a job in which some ranks share no memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.ranks.group_control import GroupControl
from dgcl.transport.network.channel import NetworkChannel
from dgcl.transport.shared_memory.peers import Peers


def open_network(
    control: Control,
    peers: Peers,
    programs: Sequence[Program],
    num_stages: int,
    timeout: float,
    bytes_sent: np.ndarray,
) -> NetworkChannel:
    """Open this rank's network channel. Collective over all ranks of the job, which create a process group.

    Args:
        control, peers, timeout: This rank's.
        programs: Programs of all exchanges.
        num_stages: The largest number of stages of any of them.
        bytes_sent: ``(E, 2, P)`` int64, by exchange, verb and peer; added to.
    """
    assert isinstance(control, GroupControl)
    group = control.new_group()
    partners = {
        int(peer)
        for program in programs
        for schedule in (program.expand, program.fold)
        for peer in np.concatenate((schedule.send_peer, schedule.recv_peer))
    }
    stand_ins = {peer: peers.control_pages[peer] for peer in peers.remote.tolist() if peer in partners}
    return NetworkChannel(group, peers.rank, stand_ins, num_stages, timeout, bytes_sent)

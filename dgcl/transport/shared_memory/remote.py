"""Opens the network channel where a job needs one, and only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.program.model import Program
from dgcl.ranks.control import Control, GroupControl
from dgcl.transport.shared_memory.peers import Peers

if TYPE_CHECKING:
    from dgcl.transport.network.channel import NetworkChannel


def open_network(
    control: Control, peers: Peers, program: Program, timeout: float, bytes_sent: np.ndarray
) -> NetworkChannel | None:
    """This rank's network channel; None where it exchanges no rows with a rank out of reach.

    Collective over the ranks of a job in which any two ranks share no memory: all of them make the group.
    """
    if not peers.any_remote:
        return None
    from dgcl.transport.network.channel import NetworkChannel

    assert isinstance(control, GroupControl)
    group = control.new_group()
    partners = {
        int(peer)
        for schedule in (program.expand, program.fold)
        for peer in np.concatenate((schedule.send_peer, schedule.recv_peer))
    }
    stand_ins = {peer: peers.control_pages[peer] for peer in peers.remote.tolist() if peer in partners}
    return NetworkChannel(group, peers.rank, stand_ins, program.num_stages, timeout, bytes_sent)

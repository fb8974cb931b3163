"""Builds a communicator's transport: shared memory, the network where ranks share none, devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.ranks.group_control import GroupControl
from dgcl.transport.cuda import connect_device
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.other_communicators import register
from dgcl.transport.shared_memory.transport import SharedMemoryTransport

if TYPE_CHECKING:
    from dgcl.transport.base import Transport
    from dgcl.transport.cuda.gpu import Device
    from dgcl.transport.shared_memory.peers import Peers
    from dgcl.transport.shared_memory.remote import RemoteChannel


def connect_runtime(
    programs: Mapping[str, Program], control: Control, timeout: float, channel: str = "auto"
) -> Runtime:
    """Build this rank's runtime, with a network channel where the job needs one. Collective."""
    return Runtime(programs, control, timeout, channel, _open_network)


def connect_transport(
    programs: Mapping[str, Program],
    control: Control,
    timeout: float,
    channel: str = "auto",
    device: Device | None = None,
) -> Transport:
    """Connect this rank with the others. Collective.

    Args:
        programs: This rank's programs by the names of their exchanges, in the same order on every rank.
        control: The control plane.
        timeout: Seconds that a rank waits for another inside a call.
        channel: How rows travel, as in :func:`dgcl.build_comm_info`.
        device: This rank's, opened; None: it computes on the CPU.

    Raises:
        ValueError, CommError: As :func:`dgcl.build_comm_info`.
    """
    runtime = connect_runtime(programs, control, timeout, channel)
    try:
        on_device = connect_device(programs, control, timeout, device, runtime, channel)
    except BaseException:
        runtime.close()  # the error's traceback keeps this object alive, and with it threads and connections
        raise
    register(runtime)
    return SharedMemoryTransport(runtime) if on_device is None else on_device


def _open_network(
    control: Control,
    peers: Peers,
    programs: Sequence[Program],
    num_stages: int,
    timeout: float,
    bytes_sent: np.ndarray,
) -> RemoteChannel:
    """Open this rank's network channel. Collective over all ranks of the job, which create a process group.

    Args:
        control, peers, timeout: This rank's.
        programs: Programs of all exchanges.
        num_stages: The largest number of stages of any of them.
        bytes_sent: ``(E, 2, P)`` int64, by exchange, verb and peer; added to.
    """
    from dgcl.transport.network.channel import (
        NetworkChannel,  # where it is needed: most jobs are on one machine
    )

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

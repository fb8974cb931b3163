"""Builds a communicator's transport: shared memory, the network where ranks share none, collectives, devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dgcl.errors import CommError
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.ranks.device_sums import device_sums, make_backend
from dgcl.ranks.group_control import GroupControl
from dgcl.transport.collective.agreement import Agreement
from dgcl.transport.collective.transport import CollectiveTransport
from dgcl.transport.collective.wires import open_wire
from dgcl.transport.cuda import connect_device
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.other_communicators import register
from dgcl.transport.shared_memory.transport import SharedMemoryTransport

_log = logging.getLogger("dgcl")

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
    if device is not None:
        return _connect_on_device(programs, control, timeout, channel, device)
    if isinstance(channel, str) and channel == "collective":
        return connect_collective(programs, control, timeout, channel, torch.device("cpu"), "asked for")
    runtime = connect_runtime(programs, control, timeout, channel)
    register(runtime)
    return SharedMemoryTransport(runtime)


def _connect_on_device(
    programs: Mapping[str, Program], control: Control, timeout: float, channel: str, device: Device
) -> Transport:
    """Connect ranks on GPUs: by CUDA IPC where all are in one machine and that has proved itself, else by collectives.

    Raises:
        ValueError: There is no such channel between GPUs.
        CommError: ``channel`` is "memory", and there is none; on every rank.
    """
    if channel not in ("auto", "memory", "collective"):
        raise ValueError(
            f'channel: rows on GPUs travel by "auto", "memory" or "collective" (got {channel!r})'
        )
    why = "asked for"
    if channel != "collective":
        exchange, problem = connect_device(programs, control, timeout, device)
        if exchange is not None:
            return exchange
        why = f"not through the memory of devices: {problem}"
        if channel == "memory":
            raise CommError(f'channel="memory": GPUs do not reach each other\'s memory: {problem}')
        if control.rank == 0:
            _log.warning("rows on GPUs travel by collectives of torch.distributed, %s", why)
    backend, problem = _backend_of_device(control, device)
    if backend is None:
        why = f"{why}; through the host, as {problem}"
    return connect_collective(programs, control, timeout, channel, device.tensors.device, why, backend)


def _backend_of_device(control: Control, device: Device) -> tuple[Any, str]:
    """A group of NCCL's that carries nothing else; or None, and why there is none. Collective."""
    names = control.exchange(device.name)
    if not isinstance(control, GroupControl):
        return None, "ranks are threads"
    if len(set(names)) < len(names):
        return None, "ranks share a GPU"
    if device_sums(control, names, device.tensors.device) is None:
        return None, "NCCL does not work between them"
    store = control.next_store("rows on devices")
    return make_backend(store, control, device.tensors.device), ""


def connect_collective(
    programs: Mapping[str, Program],
    control: Control,
    timeout: float,
    channel: str,
    device: torch.device,
    why: str,
    backend: Any = None,
) -> CollectiveTransport:
    """Connect this rank with the others by collectives of torch, which carry rows on any device. Collective.

    Args:
        programs, control, timeout, channel: As of :func:`connect_transport`.
        device: Where rows are.
        why: Why rows travel this way, for people.
        backend: A group of the device's backend that carries nothing else; None: rows go through the host, by Gloo.
    """
    agreement = Agreement(programs, control, timeout, channel)
    try:
        wire = open_wire(control, device, timeout, backend)
        return CollectiveTransport(programs, agreement, wire, device, why)
    except BaseException:
        agreement.close()
        raise


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

"""Chooses and builds a communicator's transport: shared memory, collectives of torch.distributed, or CUDA IPC.

With channel "auto" rows go through memory where all ranks share it, and through GPUs' memory where a trial went well
(:mod:`dgcl.transport.cuda.trial`); else by collectives, with the reason in ``comm.describe()``. Ranks choose alike.
Called by `dgcl/build` and `dgcl/offload/offload`; `dgcl/api` imports it early. Free to change while a channel that was
asked for and cannot be had is an error on all ranks, and "auto" takes collectives in its place, with a warning
(`tests/dgcl/transport/cuda/test_communicator.py`); hosts: `tests/dgcl/transport/collective/test_transport.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dgcl.errors import CommError
from dgcl.program.rank_program import Program
from dgcl.ranks.control import Control
from dgcl.ranks.device_sums import device_sums, make_backend
from dgcl.ranks.group_control import GroupControl
from dgcl.ranks.set_up import leaving
from dgcl.transport.collective.agreement import Agreement
from dgcl.transport.collective.transport import CollectiveTransport
from dgcl.transport.collective.wires import BackendWire, GlooWire, Mailbox, PinnedWire, ThreadWire, Wire
from dgcl.transport.common.program_agreement import connect_peers
from dgcl.transport.cuda import connect_device
from dgcl.transport.cuda.trial import failed_trial
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.transport import SharedMemoryTransport

_log = logging.getLogger("dgcl")

if TYPE_CHECKING:
    from dgcl.transport.base import Transport
    from dgcl.transport.common.peers import Peers
    from dgcl.transport.cuda.gpu import Device


def connect_transport(
    programs: Mapping[str, Program],
    control: Control,
    timeout: float,
    channel: str,
    device: Device | None,
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
    with leaving(control):
        if device is not None:
            return _connect_on_device(programs, control, timeout, channel, device)
        return _connect_on_host(programs, control, timeout, channel, torch.device("cpu"))


def connect_rows(
    programs: Mapping[str, Program], control: Control, timeout: float, device: torch.device
) -> Transport:
    """As :func:`connect_transport`, for rows that are no vertices' of the communicator: on devices through the host."""
    with leaving(control):
        channel = "auto" if device.type == "cpu" else "collective"
        return _connect_on_host(programs, control, timeout, channel, device)


def _connect_on_host(
    programs: Mapping[str, Program], control: Control, timeout: float, channel: str, device: torch.device
) -> Transport:
    """Connect ranks by their hosts: through memory where all share it, else by collectives."""
    peers = connect_peers(programs, control, channel)
    if channel == "collective" or peers.any_remote:
        why = "asked for" if channel == "collective" else peers.why_remote
        return connect_collective(programs, peers, timeout, device, why)
    return SharedMemoryTransport(Runtime(programs, peers, timeout))


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
        exchange, problem = None, "ranks share a GPU, where a kernel that waits keeps those of others out"
        if channel == "auto" and not device.is_shared:
            problem = failed_trial(control, device)
        if channel == "memory" or not problem:
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
    peers = connect_peers(programs, control, channel)
    return connect_collective(programs, peers, timeout, device.tensors.device, why, backend)


def _backend_of_device(control: Control, device: Device) -> tuple[Any, str]:
    """A group of NCCL's that carries nothing else; or None, and why there is none. Collective."""
    if not isinstance(control, GroupControl):
        return None, "ranks are threads"
    if device.is_shared:
        return None, "ranks share a GPU"
    if device_sums(control, control.exchange(device.name), device.tensors.device) is None:
        return None, "NCCL does not work between them"
    store = control.next_store("rows on devices")
    return make_backend(store, control, device.tensors.device), ""


def connect_collective(
    programs: Mapping[str, Program],
    peers: Peers,
    timeout: float,
    device: torch.device,
    why: str,
    backend: Any = None,
) -> CollectiveTransport:
    """Connect this rank with the others by collectives of torch, which carry rows on any device. Collective.

    Args:
        programs, timeout: As of :func:`connect_transport`.
        peers: The other ranks.
        device: Where rows are.
        why: Why rows travel this way, for people.
        backend: A group of the device's backend that carries nothing else; None: rows go through the host, by Gloo.
    """
    try:
        wire = words = open_wire(peers.control, device, timeout, backend)
        if device.type != "cpu" and peers.any_remote:
            words = open_wire(peers.control, torch.device("cpu"), timeout)
        agreement = Agreement(peers, timeout, wire, words if peers.any_remote else None)
        return CollectiveTransport(programs, agreement, device, why)
    except BaseException:
        peers.close()
        raise


def open_wire(control: Control, device: torch.device, timeout: float, backend: Any = None) -> Wire:
    """The wire between ranks; arguments as of :func:`connect_collective`. Collective."""
    if backend is not None:
        return BackendWire(backend)
    if not isinstance(control, GroupControl):
        return ThreadWire(control.rank, control.exchange(Mailbox())[0])
    kind = GlooWire if device.type == "cpu" else PinnedWire
    return kind(*control.new_group(), timeout)

"""The transport between CUDA devices: programs of :mod:`dgcl.program`, enqueued on the caller's stream.

Experimental: no report of a real device exists yet (docs/gpu.md). Imports :mod:`dgcl.program`, :mod:`dgcl.ranks`,
:mod:`dgcl.kernels`, and the shared-memory and network transports.

==============================================  =======================================================================
module                                          what
==============================================  =======================================================================
:mod:`dgcl.transport.cuda.exchange`             expand and fold of tensors
:mod:`dgcl.transport.cuda.program`              a program as a list of launches
:mod:`dgcl.transport.cuda.operations`           the operations of one kind of call, prepared once
:mod:`dgcl.transport.cuda.gpu`                  one device: driver, kernels, streams, the tensors of torch
:mod:`dgcl.transport.cuda.pool`                 buffers that peers can write to, reused in stream order
:mod:`dgcl.transport.cuda.tables`               tables in device memory
:mod:`dgcl.transport.cuda.control_block`        a rank's flags and state on the device, and its host's page
:mod:`dgcl.transport.cuda.directory`            the list of a rank's allocations, and how peers open them
:mod:`dgcl.transport.cuda.connect`              sets all of it up (:mod:`~dgcl.transport.cuda.connections`), and tests
                                                by transfers which devices reach each other
                                                (:mod:`~dgcl.transport.cuda.probe`)
:mod:`dgcl.transport.cuda.staged_rows`          what the next two have in common
:mod:`dgcl.transport.cuda.lanes`                pairs without peer access: rows through the host's memory, by copies
                                                (:mod:`~dgcl.transport.cuda.lane_copies`)
:mod:`dgcl.transport.cuda.groups`               ranks on other machines: groups of messages
                                                (:mod:`~dgcl.transport.cuda.message_channel`) by NCCL
                                                (:mod:`~dgcl.transport.cuda.nccl`), errors by the hosts
                                                (:mod:`~dgcl.transport.cuda.network`)
:mod:`dgcl.transport.cuda.concurrency`          do launches return at once, and streams run side by side?
:mod:`dgcl.transport.cuda.run_ahead`            how far the host runs ahead
:mod:`dgcl.transport.cuda.watchdog`             deadlines, lost peers, stopping the device
:mod:`dgcl.transport.cuda.report`               a snapshot of the flags, as errors
:mod:`dgcl.transport.cuda.through_host`         between machines without NCCL: down, along the plan on the CPU, and up
==============================================  =======================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dgcl.topology.checks import shown

if TYPE_CHECKING:
    import torch

    from dgcl.program.model import Program
    from dgcl.ranks.control import Control
    from dgcl.transport.cuda.exchange import DeviceExchange
    from dgcl.transport.cuda.gpu import Device
    from dgcl.transport.cuda.through_host import HostExchange
    from dgcl.transport.shared_memory import Runtime

_log = logging.getLogger("dgcl")


def connect_device(
    programs: Mapping[str, Program],
    control: Control,
    timeout: float,
    device: Device | None,
    runtime: Runtime,
    channel: str = "auto",
) -> DeviceExchange | HostExchange | None:
    """The exchange of a device's tensors; None where ranks compute on the CPU. Collective.

    Where ranks of the job share no memory, or are not to use it, rows between them go by NCCL
    (:mod:`dgcl.transport.cuda.network`); where that is not there, all rows go through the hosts, by their ``runtime``.

    Args:
        programs, control, timeout, device, runtime: Of this rank.
        channel: As in :func:`dgcl.build_comm_info`.
    """
    if device is None:
        if channel == "nccl":
            raise ValueError('channel="nccl" is for rows on GPUs; give device="cuda", or channel="auto"')
        return None
    from dgcl.transport.cuda.exchange import DeviceExchange

    if not runtime.any_remote:
        return DeviceExchange(programs, control, timeout, device, runtime=runtime)
    from dgcl.transport.cuda.network import join_network
    from dgcl.transport.cuda.through_host import HostExchange

    network, why = join_network(tuple(programs.values()), control, device, runtime, timeout, channel)
    if network is None:
        return HostExchange(programs, control, device, runtime, why)
    try:
        return DeviceExchange(programs, control, timeout, device, network, runtime)
    except BaseException:
        network.abort()  # nobody else closes its channel
        raise


def open_devices(control: Control, device: str | torch.device) -> Device | None:
    """This rank's device, opened; None where ranks compute on the CPU. Collective.

    Raises:
        ValueError: There is no such device, on some rank, or some ranks compute on the CPU; on every rank.
    """
    import torch

    opened, problem = None, ""
    kind = ""
    try:
        if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
            raise ValueError(
                f"device must be 'cpu', 'cuda', 'cuda:1' or a torch.device (got {shown(device)})"
            )
        wanted = torch.device(device)
        kind = wanted.type
        if kind not in ("cpu", "cuda"):
            problem = f"device: expected 'cpu' or a CUDA device, got {wanted}"
        elif kind == "cuda":
            # Here, as it takes half a second, which ranks on the CPU need not wait.
            from dgcl.transport.cuda.gpu import open_device

            opened = open_device(wanted)
    except (ValueError, RuntimeError) as error:
        problem = str(error) if str(error).startswith("device") else f"device: {device!r}: {error}"
    reports = control.exchange((kind, problem))
    for rank, (_, theirs) in enumerate(reports):
        if theirs:
            raise ValueError(f"{theirs} (on rank {rank})")
    if len({kind for kind, _ in reports}) > 1:
        which = ", ".join(f"rank {rank}: {kind}" for rank, (kind, _) in enumerate(reports))
        raise ValueError(f"device: expected GPUs on all ranks or on none, got {which}")
    if opened is not None and control.rank == 0:
        _log.info("GPUs are experimental: no report of this code on a real device exists yet (docs/gpu.md)")
    return opened

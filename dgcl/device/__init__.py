"""The runtime on CUDA devices: the programs of :mod:`dgcl.program`, enqueued on the caller's stream.

===========================  ===========================================================================
module                       what
===========================  ===========================================================================
:mod:`dgcl.device.program`   a program as a list of launches
:mod:`dgcl.device.gpu`       one device: driver, kernels, streams, the tensors of torch
:mod:`dgcl.device.pool`      buffers that peers can write to, handed out in the order of streams
:mod:`dgcl.device.words`     a rank's flags and state on the device, and what it shares with its host
:mod:`dgcl.device.directory` where peers find a rank's memory, and opening it
:mod:`dgcl.device.plan`      the operations of one kind of call, prepared once
:mod:`dgcl.device.watchdog`  deadlines, lost peers, stopping the device
:mod:`dgcl.device.exchange`  expand and fold of tensors
===========================  ===========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dgcl.control import Control
    from dgcl.device.exchange import DeviceExchange
    from dgcl.device.gpu import Device
    from dgcl.program.model import Program


def connect_device(
    program: Program, control: Control, timeout: float, device: Device | None
) -> DeviceExchange | None:
    """The exchange of a device's tensors; None where there is no device. Collective."""
    if device is None:
        return None
    from dgcl.device.exchange import DeviceExchange

    return DeviceExchange(program, control, timeout, device)

"""Detects the hardware of this machine: GPUs through NVML, everything else from the kernel.

>>> from dgcl.topology.detect import detect_gpus, Sysfs
>>> str(Sysfs().host())  # doctest: +SKIP
'2 sockets, 112 processors, 1081 GB of memory (Intel(R) Xeon(R) Platinum 8480+)'
"""

import os
from contextlib import ExitStack

from dgcl.topology.detect.gpu_machine import gpu_machine
from dgcl.topology.detect.nvml import Nvml, NvmlGpu, NvmlUnavailable
from dgcl.topology.detect.sysfs import HostFacts, Sysfs
from dgcl.topology.detect.visible import visible_gpus
from dgcl.topology.draft import Imported
from dgcl.topology.machine_topology import machine_topology

__all__ = [
    "HostFacts",
    "Nvml",
    "NvmlGpu",
    "NvmlUnavailable",
    "Sysfs",
    "detect_gpus",
    "gpu_machine",
    "visible_gpus",
]


def detect_gpus(
    name: str,
    *,
    source: Nvml | None = None,
    sysfs: Sysfs | None = None,
    visible: str | None = None,
) -> Imported:
    """The GPUs that this process may use, and how they are joined.

    Args:
        name: What to call the topology.
        source: The driver; None: NVML.
        sysfs: The kernel; None: that of this machine.
        visible: What ``CUDA_VISIBLE_DEVICES`` is to be taken for; None: its value in the environment.

    Raises:
        NvmlUnavailable: No driver, no rights, or no GPU that this process may use; the message says which.
        ValueError: ``CUDA_VISIBLE_DEVICES`` names parts of GPUs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    with ExitStack() as stack:
        driver = stack.enter_context(Nvml()) if source is None else source
        every = driver.gpus()
        gpus = visible_gpus(every, visible)
        if not gpus:
            why = (
                f"CUDA_VISIBLE_DEVICES={visible!r} shows none of {len(every)}" if every else "there are none"
            )
            raise NvmlUnavailable(f"no GPU may be used: {why}")
        machine = gpu_machine(driver, sysfs or Sysfs(), gpus)
    return machine_topology(machine, name)

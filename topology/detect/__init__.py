"""Detects the hardware of this machine: GPUs through NVML, everything else from the kernel.

>>> from dgcl.topology.detect import detect_gpus, Sysfs
>>> str(Sysfs().host())  # doctest: +SKIP
'2 sockets, 112 processors, 1081 GB of memory (Intel(R) Xeon(R) Platinum 8480+)'
"""

import os

from dgcl.topology.detect.gpu_machine import gpu_machine
from dgcl.topology.detect.nvml import Nvml, NvmlGpu, NvmlUnavailable
from dgcl.topology.detect.sysfs import Sysfs
from dgcl.topology.detect.visible import visible_gpus
from dgcl.topology.draft import Imported
from dgcl.topology.machine_topology import machine_topology

__all__ = [
    "Nvml",
    "NvmlGpu",
    "NvmlUnavailable",
    "Sysfs",
    "detect_gpus",
    "gpu_machine",
    "visible_gpus",
]


def detect_gpus(name: str) -> Imported:
    """The GPUs that this process may use, and how they are joined, as a topology of this name.

    Raises:
        NvmlUnavailable: No driver, no rights, or no GPU that this process may use; the message says which.
        ValueError: ``CUDA_VISIBLE_DEVICES`` names parts of GPUs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    with Nvml() as driver:
        every = driver.gpus()
        gpus = visible_gpus(every, visible)
        if not gpus:
            why = (
                f"CUDA_VISIBLE_DEVICES={visible!r} shows none of {len(every)}" if every else "there are none"
            )
            raise NvmlUnavailable(f"no GPU may be used: {why}")
        machine = gpu_machine(driver, Sysfs(), gpus)
    return machine_topology(machine, name)

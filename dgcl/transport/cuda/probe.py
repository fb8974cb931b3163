"""Asks the CUDA driver and this process why GPUs could not exchange rows by themselves.

An empty answer means "nothing known against it"; then `trial` and :mod:`dgcl.transport.tried_rows` send known rows,
since drivers have been wrong (virtual machines, IOMMUs, containers).
Called by `connect_devices` and `trial`. A reason may be added; each must be one that users can act on, and be named on
every rank (`tests/dgcl/transport/cuda/test_faults.py`).
"""

import os
from contextlib import suppress
from pathlib import Path

from dgcl.transport.cuda.gpu import Device

#: Parts of file names of libraries that tools load into a process, whose kernels then run one at a time.
_TOOLS = {
    "libsanitizer-collection": "compute-sanitizer",
    "libcuda-injection": "Nsight Compute",
    "libToolsInjection": "Nsight Systems",
}
_MODES = {1: "exclusive to a thread", 2: "prohibited", 3: "exclusive to a process"}


def hindrance(device: Device) -> str:
    """Why kernels of this process cannot wait for those of others on this device; "" if nothing is known."""
    if mode := device.driver.compute_mode(device.index):
        return (
            f"the compute mode of its GPU is {_MODES.get(mode, mode)}, so no other process can open its memory; "
            "set it to DEFAULT (nvidia-smi -c 0)"
        )
    if device.name.startswith("MIG"):
        return "its GPU is a part of one (MIG), whose memory no other process can open"
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        return "CUDA_LAUNCH_BLOCKING=1 lets launches return only when their kernels have ended; unset it"
    loaded = ""
    with suppress(OSError):
        loaded = Path("/proc/self/maps").read_text()
    tools = [tool for library, tool in _TOOLS.items() if library in loaded]
    return f"{tools[0]} lets kernels run one at a time" if tools else ""


def out_of_reach(device: Device, uuid: str) -> str:
    """Why this device must not write flags into the memory of another one; "" if it may."""
    if uuid == device.uuid:
        return ""
    driver = device.driver
    numbers = [number for number in range(driver.num_devices()) if driver.uuid(number) == uuid]
    if not numbers:
        return "one does not see the other's GPU (CUDA_VISIBLE_DEVICES), so the driver cannot be asked"
    access, atomics = driver.reach(device.index, numbers[0])
    if not access:
        return "the driver has no peer access between them"
    return "" if atomics else "atomic operations between them are not native"

"""Whether devices can exchange rows by themselves: what the driver says of them, and test transfers at set-up.

What drivers report and what machines do has differed before (virtual machines, IOMMUs, containers). So at set-up every
rank also writes a pattern into each peer by the copy engine, and a word by a kernel, and the peers report what arrived.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from dgcl.errors import CommError
from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, FLAG_THREADS, SignalWait, records
from dgcl.transport.cuda.control_block import PROOF, SECONDS, ControlBlock, HostPage
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.tables import Tables

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


def pattern(writer: int, reader: int) -> np.ndarray:
    """``(32,)`` int64 that ``writer`` writes at ``reader``: the first word by a kernel, the second half by a copy."""
    words = np.arange(PROOF // 8, dtype=np.int64) * 1_000_003 + writer * 65_537 + reader + 1
    words[1 : PROOF // 16] = 0
    return words


def write_patterns(
    device: Device, tables: Tables, rank: int, own: ControlBlock, blocks: list[ControlBlock | None]
) -> None:
    """Write this rank's pattern into every peer that could be opened; waits for the device.

    Raises:
        CommError: The device does not get them done.
    """
    prepared = Prepared(device.driver)
    for other, theirs in enumerate(blocks):
        if theirs is None or other == rank:
            continue
        words, half = pattern(rank, other), PROOF // 2
        flag = {"address": theirs.proof(rank), "offset": int(words[0])}
        signal = SignalWait(own.address, raised=tables.upload(records(FLAG, [flag])), num_raised=1)
        prepared.launch(device.kernels["signal_wait"], 1, FLAG_THREADS, *signal)
        prepared.copy(theirs.proof(rank) + half, tables.upload(words) + half, half)
    prepared.enqueue([device.side])
    tables.wait()


def wrong_patterns(page: HostPage, own: ControlBlock, rank: int) -> list[int]:
    """Ranks whose pattern has not arrived in this rank's control block; waits for the device.

    Raises:
        CommError: The device does not answer.
    """
    snapshot = page.snapshot(own, SECONDS)
    if snapshot is None:
        raise CommError(f"a copy from the device has not ended within {SECONDS:g} s")
    return [
        other
        for other in range(own.world_size)
        if other != rank and not np.array_equal(snapshot.proof[other], pattern(other, rank))
    ]

"""Tests at set-up that launches return at once and that streams run side by side, and names what prevents it.

A kernel waits for peers while its host goes on. Where a launch returns only when its kernel has ended
(``CUDA_LAUNCH_BLOCKING=1``, some modes of debuggers), a rank would hang in its first call; that is an error on every
rank. Where kernels of different streams run one after the other (profilers that serialise them, compute-sanitizer, one
hardware queue), calls are right (:mod:`dgcl.transport.cuda.staged_rows`) but overlap nothing; a line at INFO says so.

The test: a kernel on one stream waits for a word of the host's page, then one on the watchdog's stream writes another.
A timer ends the first one in any case, so nothing here hangs. Experimental: neither has been seen on a real device.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, FLAG_THREADS, SignalWait, records
from dgcl.transport.cuda.control_block import HostPage
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.tables import Tables

_log = logging.getLogger("dgcl")

_SECONDS: Final = 2.0  # that a launch may take, or a kernel on another stream
_POLL: Final = 1e-4
#: Parts of file names of libraries that tools load into a process.
_TOOLS: Final = {
    "libsanitizer-collection": "compute-sanitizer",
    "libcuda-injection": "Nsight Compute",
    "libToolsInjection": "Nsight Systems",
}


def causes() -> list[str]:
    """What is known to make launches block or streams run one after the other, and is found here."""
    names = ("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS")
    found = [f"{name}=1" for name in names if os.environ.get(name) == "1"]
    with suppress(OSError):
        loaded = Path("/proc/self/maps").read_text()
        found += [tool for library, tool in _TOOLS.items() if library in loaded]
    return found


def hindrance(device: Device, page: HostPage, tables: Tables, state: int, rank: int) -> str:
    """Why ranks cannot run in this process; "" if they can. Waits for the device.

    Args:
        device, page, tables, rank: Of this rank.
        state: Address of its state, of which no call has been made.
    """
    device.load("signal_wait")
    # Whatever else takes long in a first launch is not repeated.
    blocking, one_by_one = _try(device, page, tables, state)
    if blocking:
        blocking, one_by_one = _try(device, page, tables, state)
    why = ", ".join(causes())
    if blocking:
        return (
            f"launches of kernels return only when the kernels have ended ({why or 'a debugger?'}), and ranks wait for "
            'each other in kernels; unset it, or use channel="gloo", by which rows go through the hosts'
        )
    if one_by_one or "CUDA_DEVICE_MAX_CONNECTIONS=1" in why:
        _log.info(
            "rank %d: %s (%s): copies through the host and messages between machines do not overlap with kernels, and "
            "errors name late ranks less precisely",
            rank,
            "kernels of different streams run one after the other"
            if one_by_one
            else "streams share one queue",
            why or "a profiler?",
        )
    return ""


def _try(device: Device, page: HostPage, tables: Tables, state: int) -> tuple[bool, bool]:
    """Whether a launch waits for its kernel, and a kernel for that of another stream."""
    driver, side = device.driver, device.side
    flags = [tables.upload(records(FLAG, [{"address": page.trial + 8 * i, "offset": 1}])) for i in range(2)]
    driver.synchronize_stream(side)
    page.set_trial(0, 0)
    page.set_trial(1, 0)
    waiting, passing = Prepared(driver), Prepared(driver)
    kernel = device.kernels["signal_wait"]
    waiting.launch(kernel, 1, FLAG_THREADS, *SignalWait(state, awaited=flags[0], num_awaited=1))
    passing.launch(kernel, 1, FLAG_THREADS, *SignalWait(state, raised=flags[1], num_raised=1))
    stream = driver.create_stream()
    timer = threading.Timer(_SECONDS, page.set_trial, (0, 1))
    timer.start()
    try:
        waiting.enqueue([stream])
        blocking = page.trial_word(0) != 0
        passing.enqueue([side])
        while not (one_by_one := page.trial_word(0) != 0) and page.trial_word(1) == 0:
            time.sleep(_POLL)
    finally:
        timer.cancel()
        page.set_trial(0, 1)
        for each in (stream, side):
            driver.synchronize_stream(each)
        driver.destroy_stream(stream)
    return blocking, one_by_one


def advise_threads(rank: int) -> None:
    """Say what ranks need that are threads of one process and share a GPU, where the environment lacks it."""
    wanted = {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    missing = [
        f"{name}={value}" for name, value in wanted.items() if os.environ.get(name, "").upper() != value
    ]
    if missing:
        _log.info(
            "rank %d shares a GPU with other threads of its process: start it with %s, or a wait of one rank may stand "
            "before what another does to end it",
            rank,
            " and ".join(missing),
        )

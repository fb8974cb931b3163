"""Runs a partitioner in a process of its own, which alone ends if it crashes or lacks memory.

The graph goes there as a file in memory, in which the labels come back. The process may take a limited amount of
memory.
Called by `kaminpar` and `metis`. Free to change while parts are those of a call in this process, and an end for want
of memory is a MemoryError that says the ways out (`tests/dgcl/partition/test_metis.py`,
`tests/dgcl/partition/test_kaminpar.py`).
"""

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def run_apart(
    call: Callable[..., Ids],
    arrays: Sequence[NDArray[Any]],
    arguments: Sequence[Any],
    free: int,
    about: str,
) -> Ids:
    """What a function of a module makes of a file in memory and its arguments, in another process.

    Args:
        call: gets the path of the file, and the arguments.
        arrays: what is in the file, one after the other.
        arguments: as Python writes them.
        free: bytes that the process may take, less a tenth.
        about: what it does, for messages.

    Raises:
        MemoryError: it ended without a result.
    """
    with open(os.memfd_create("dgcl-graph"), "r+b", buffering=0) as file:
        for array in arrays:
            array.tofile(file)
        path = f"/proc/self/fd/{file.fileno()}"
        command = (
            f"from {call.__module__} import {call.__name__} as call;from dgcl.partition.apart import serve;"
        )
        command += f"serve(call, {free * 9 // 10}, {path!r}, *{list(arguments)!r})"
        process = subprocess.run(
            [sys.executable, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[file.fileno()],
        )
        if not process.returncode:
            return np.fromfile(path, np.int64)
    text = process.stdout.decode(errors="replace")
    why = re.sub(r"\x1b\[\d+m", "", text).strip().rpartition("\n")[2][-200:]
    raise MemoryError(
        f"{about} wants more memory than the {free} bytes that are free. Ways out: (1) partition='kaminpar' (a tenth of"
        " METIS's memory; pip install 'dgcl[kaminpar]'), 'streaming', 'random' or 'range' (on the command line"
        " --partition; of an Offload chunk_by='range'), (2) give part, (3) free memory."
        f" Its process: exit status {process.returncode}, {why}"
    )


def serve(call: Callable[..., Ids], limit: int, path: str, *arguments: Any) -> None:
    """Run a partitioner for another process; labels take the place of what is in the file."""
    ctypes.CDLL(None).prctl(
        1, signal.SIGKILL
    )  # PR_SET_PDEATHSIG: compiled code heeds no signal of the other's end
    taken = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (taken + limit, resource.RLIM_INFINITY))
    call(path, *arguments).tofile(path)

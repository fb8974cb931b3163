"""The parts of gpu-check, most valuable first, and running one under a time limit.

Limits are what a part may take when something hangs; together they fit the time that a machine with a GPU is
usually in_use for (:data:`SECONDS`). A part that is good takes much less.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: Seconds for everything.
SECONDS: Final = 1500.0

PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
KERNEL_TESTS: Final = "tests/kernels/test_cuda_device.py"
#: Named one by one: a bare machine lacks what other tests import.
TESTS: Final = (KERNEL_TESTS, "tests/dgcl/transport/cuda/test_device_program.py")
SECTION: Final = "dgcl.gpu_check.sections"

#: For ranks that are threads of one process: nothing is loaded when it is first used, which may wait for what runs,
#: and every stream has a queue of its own.
_THREADS: Final = (("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32"))
#: NCCL 2.30 and later may let ranks share a GPU if told to; older ones do not know the word.
_NCCL: Final = (("NCCL_MULTI_RANK_GPU_ENABLE", "1"),)
#: A connection that breaks is our watchdog's to tell; torch's would end the process.
_QUIET_NCCL: Final = (("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),)
_LAST_WORDS: Final = 2.0


@dataclass(frozen=True)
class Part:
    """One part of the check.

    Attributes:
        name, title: For the command line, and for people.
        seconds: Its time limit.
        command: What is run; a section when it is empty.
        environment: Variables of its processes.
    """

    name: str
    title: str
    seconds: float
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a part.

    Attributes:
        part: Which.
        status: "good", "bad", "out of time", or that it is still to be run: "running", "cut short" (by the time for
            everything), "left out".
        seconds: How long it took.
        text: What it printed.
        found: Its findings, as JSON.
    """

    part: Part
    status: str
    seconds: float
    text: str
    found: Any

    @property
    def has_ended(self) -> bool:
        """Whether to run it again would tell nothing new."""
        return self.status in ("good", "bad", "out of time")


def parts() -> list[Part]:
    """All parts, most valuable first."""
    python = sys.executable
    found = [
        Part("environment", "Machine", 30),
        Part("compile", "Compiling the code of the host", 90),
        Part("probe-driver", "Driver and compiler", 45),
        Part("tests", "Tests", 120, (python, *PYTEST, "-m", "gpu", *TESTS)),
        Part("probe-ipc", "Memory of another process", 25),
        Part("probe-flags", "Flags between two processes", 35),
        Part("probe-open_late", "Opening memory while a kernel waits", 35),
        Part("ranks", "Communicators of 2, 4 and 8 processes: rows and gradients", 150),
        Part("rows", "Row kernels", 120),
        Part("bench", "dgcl bench --device cuda", 180),
        Part("faults", "A late rank, a dead rank", 60),
        Part("precision", "16-bit rows: errors and their bound", 45),
        Part("capture", "A training step of two processes in a CUDA graph", 45),
        Part("probe-slices", "Waiting beside working", 35),
        Part("exchanges", "Exchanges of ranks on one device", 70),
        Part("hosts", "Ranks that share no memory: through the host", 50),
        Part("nccl", "Rows by NCCL, as between machines", 50, environment=(*_NCCL, *_QUIET_NCCL)),
        Part("probe-launch", "Host time of launches", 20),
        Part("probe-pinned", "Locked host memory of two processes", 25),
        Part("calibrate", "Calibration of links between GPUs", 55),
        Part("threads", "Ranks that are threads", 50, environment=_THREADS),
        Part("probe-graph", "Capture into a CUDA graph", 25),
        Part("probe-own_handle", "A handle in its own process", 15),
        Part("probe-nccl", "NCCL with two ranks on one GPU", 25, environment=_NCCL),
        Part("variants", "Variants of the gather", 50),
    ]
    if sanitizer := shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    ):
        chosen = "not waits and not gives_up and not loads"
        checked = (python, *PYTEST, "-m", "gpu", KERNEL_TESTS, "-k", chosen)
        command = (sanitizer, "--tool", "memcheck", "--error-exitcode", "9", *checked)
        found.append(Part("sanitizer", "compute-sanitizer memcheck on the kernel tests", 50, command))
    return found


def run_part(part: Part, limit: float, quick: bool, folder: Path) -> Outcome:
    """Run one part for at most ``limit`` seconds; what it prints and finds is in ``folder`` while it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    out, findings = folder / f"{part.name}.txt", folder / f"{part.name}.json"
    findings.unlink(missing_ok=True)
    command = part.command or (
        *(sys.executable, "-m", SECTION, part.name, "--json", str(findings)),
        *(["--quick"] if quick else []),
    )
    start = time.monotonic()
    with out.open("w") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # One that hangs says where when it is ended, and so do the ranks that it started.
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **dict(part.environment)},
        )
        try:
            status = "good" if process.wait(limit) == 0 else "bad"
        except subprocess.TimeoutExpired:
            _stop(process)
            status = "out of time" if limit >= part.seconds else "cut short"
        except BaseException:  # Ctrl-C
            _stop(process)
            raise
    text = out.read_text(errors="replace")
    return Outcome(part, status, time.monotonic() - start, text, _found(findings))


def _found(findings: Path) -> Any:
    try:
        return json.loads(findings.read_text())["found"]
    except (OSError, ValueError, KeyError):  # it did not come to that
        return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a part and the processes that it started."""
    try:
        os.killpg(process.pid, signal.SIGABRT)
        time.sleep(_LAST_WORDS)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()

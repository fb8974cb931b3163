"""The parts of ``make gpu-check``, most valuable first, and running one under a time limit.

Each part is a selection of the ``gpu`` tests, run by pytest in a process group of its own. Limits are what a part may
take when something hangs; together they fit the time for which a machine with a GPU is usually lent
(:data:`SECONDS`). A part that passes takes much less. The first parts compile no code of the host but the loop that
enqueues launches: the very first, whether rows arrive as they should, needs some 8 s of one core before its first
launch, nothing cached (5 s of them import torch).
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
#: The file to which the tests of a part append their findings, and whether little data is enough.
FINDINGS, QUICK = "DGCL_GPU_FINDINGS", "DGCL_GPU_QUICK"

# The repository's own options name plugins that a machine with a GPU need not have.
_OPTIONS: Final = "addopts=-ra --strict-markers --import-mode=importlib"
_PYTEST: Final = (
    "-m",
    "pytest",
    "-q",
    "-s",
    "--tb=short",
    "-p",
    "no:cacheprovider",
    "-o",
    _OPTIONS,
    "-m",
    "gpu",
)
_ROOT: Final = Path(__file__).resolve().parents[2]
#: For ranks that are threads of one process: nothing is loaded when it is first used, which may wait for kernels that
#: run, and every stream has a queue of its own.
_THREADS: Final = (("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32"))
#: NCCL 2.30 and later can let ranks share a GPU. A connection that breaks must not end the process.
_NCCL: Final = (("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"))
_STACK_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Part:
    """One part of the check.

    Attributes:
        name: For the command line.
        title: What it shows.
        seconds: Its time limit.
        tests: Arguments of pytest that select its tests.
        environment: Variables of its processes.
        prefix: A command in front of Python's.
    """

    name: str
    title: str
    seconds: float
    tests: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    prefix: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """What is run."""
        return (*self.prefix, sys.executable, *_PYTEST, *self.tests)


@dataclass(frozen=True)
class Outcome:
    """What became of a part.

    Attributes:
        part: Which.
        status: "good", "bad", "out of time", or that it is still to be run: "running", "left out".
        seconds: How long it took.
        text: What it printed.
        found: Findings of its tests, as JSON.
    """

    part: Part
    status: str
    seconds: float
    text: str
    found: Any

    @property
    def has_ended(self) -> bool:
        """Whether to run it again would tell nothing new."""
        if self.part.name == "compile" and not compiled_mark().exists():
            return False  # on a fresh machine the cache is empty again
        return self.status in ("good", "bad")


def compiled_mark() -> Path:
    """A file of this machine that says that the host's code has been compiled here."""
    return Path(os.environ.get("TMPDIR", "/tmp"), f"dgcl-gpu-check-compiled-{os.getuid()}")


def parts() -> list[Part]:
    """All parts, most valuable first."""

    def part(
        name: str, title: str, seconds: float, *tests: str, environment: tuple[tuple[str, str], ...] = ()
    ) -> Part:
        return Part(name, title, seconds, tuple(f"tests/{test}" for test in tests), environment)

    kernels = "kernels/test_cuda_device.py"
    found = [
        part("right", "rows are gathered and summed to the bit, at every width", 60, "gpu/test_rows.py::test_rows_right"),
        part("environment", "the device and the software", 30, "gpu/test_device.py::test_environment"),
        part("driver", "the driver loads our PTX; does numba compile here?", 45, "gpu/test_device.py::test_driver"),
        part("kernels", "every kernel, on cases larger than the simulator's", 60, kernels),
        part("ipc", "memory of another process, on the same GPU", 40, "gpu/test_memory.py::TestIpc"),
        part("flags", "flags between two processes, by kernels and by streams", 35, "gpu/test_memory.py::test_flags"),
        part("rows", "row kernels, every width, against the device's own copy", 120, "gpu/test_rows.py::test_rows"),
        part("compile", "compiles the host's code, so that no other part waits", 90, "gpu/test_communicators.py::test_compile"),
        part("open-late", "can memory be opened while a kernel waits?", 35, "gpu/test_memory.py::test_open_late"),
        part("ranks", "communicators of 2, 4 and 8 processes: rows and gradients", 120, "gpu/test_communicators.py::test_ranks"),
        part("bench", "plans beside plain copies, by dgcl bench", 150, "gpu/test_bench.py::test_bench"),
        part("faults", "a late rank, and a dead one", 60, "gpu/test_communicators.py::test_faults"),
        part("precision", "folds of 16-bit rows: the error and its bound", 45, "gpu/test_communicators.py::test_precision"),
        part("capture", "a training step of two processes in a CUDA graph", 45, "gpu/test_communicators.py::test_capture"),
        part("slices", "what a waiting process costs a working one", 35, "gpu/test_memory.py::test_slices"),
        part("streams", "exchanges of ranks that are streams, and their capture", 110,
             "dgcl/transport/cuda/test_device_program.py", "gpu/test_exchanges.py"),
        part("hosts", "ranks that share no memory: through the host", 50, "gpu/test_communicators.py::test_hosts"),
        part("nccl", "rows by NCCL, as between machines", 60, "gpu/test_communicators.py::test_nccl", environment=_NCCL),
        part("launch", "host time of launches", 20, "gpu/test_device.py::test_launch"),
        part("pinned", "host memory that two processes lock", 25, "gpu/test_memory.py::test_pinned"),
        part("calibrate", "calibration of links between GPUs", 55, "gpu/test_communicators.py::test_calibrate"),
        part("threads", "ranks that are threads", 50, "gpu/test_communicators.py::test_threads", environment=_THREADS),
        part("variants", "the gather with other parameters", 50, "gpu/test_rows.py::test_variants"),
    ]  # fmt: skip
    folders = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    if sanitizer := shutil.which("compute-sanitizer", path=folders):
        chosen = (f"tests/{kernels}", "-k", "not waits and not gives-up and not loads")
        prefix = (sanitizer, "--tool", "memcheck", "--error-exitcode", "9")
        found.append(
            Part("sanitizer", "compute-sanitizer memcheck on the kernel tests", 50, chosen, (), prefix)
        )
    return found


def run_part(part: Part, limit: float, quick: bool, folder: Path) -> Outcome:
    """Run one part for at most ``limit`` seconds; what it prints and finds is in ``folder`` while it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    out, findings = folder / f"{part.name}.txt", folder.absolute() / f"{part.name}.json"
    findings.unlink(missing_ok=True)
    # A process that hangs says where when it is ended, and so do the ranks that it started.
    ours = {"PYTHONFAULTHANDLER": "1", FINDINGS: str(findings), QUICK: "1" if quick else ""}
    start = time.monotonic()
    with out.open("w") as stream:
        stream.write(f"{part.name}: {part.title}\n")
        stream.flush()
        process = subprocess.Popen(
            part.command,
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **ours, **dict(part.environment)},
        )
        try:
            status = "good" if process.wait(limit) == 0 else "bad"
        except subprocess.TimeoutExpired:
            _stop(process)
            status = "out of time"
        except BaseException:  # Ctrl-C
            _stop(process)
            raise
    if part.name == "compile" and status == "good":
        compiled_mark().touch()
    text = out.read_text(errors="replace")
    return Outcome(part, status, time.monotonic() - start, text, _read_findings(findings))


def _read_findings(path: Path) -> list[Any]:
    """The findings of a part's tests: one JSON value a line."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError):  # none, or the last one is cut
        return []


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a part and the processes that it started."""
    try:
        os.killpg(process.pid, signal.SIGABRT)
        time.sleep(_STACK_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()

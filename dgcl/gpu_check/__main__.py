"""``python -m dgcl.gpu_check``: everything that needs a GPU, in one go, and one report with the device named.

Each part runs in a process of its own under a time limit, most important first, so that one that hangs
costs neither the others nor what it found so far. Leaves ``gpu-report.md`` and ``gpu-report.json``. Needs
the repository (for the tests), an NVIDIA driver, and torch with CUDA; nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
KERNEL_TESTS: Final = "tests/kernels/test_cuda_device.py"
#: Named one by one: a bare machine lacks what other tests import.
TESTS: Final = (KERNEL_TESTS, "tests/dgcl/device/test_device_program.py")
SECTION: Final = "dgcl.gpu_check.sections"


@dataclass(frozen=True)
class Part:
    """One part of the check.

    Attributes:
        name, title: For the command line, and for people.
        seconds: Its time limit.
        command: What is run; a section when it is empty.
    """

    name: str
    title: str
    seconds: float
    command: tuple[str, ...] = ()


def parts() -> list[Part]:
    """All parts, most important first."""
    python = sys.executable
    found = [
        Part("environment", "Machine", 60),
        Part("probe-driver", "Driver and compiler", 120),
        Part("tests", "Tests", 240, (python, *PYTEST, "-m", "gpu", *TESTS)),
        Part("ranks", "Communicators of 2, 4 and 8 processes: rows and gradients", 300),
        Part("speeds", "Communicators: speeds, and what a call costs the host", 300),
        Part("rows", "Row kernels", 240),
        Part("exchanges", "Exchanges of ranks on one device", 300),
        Part("faults", "A late rank, a dead rank", 180),
        Part("capture", "A training step of two processes in a CUDA graph", 120),
        Part("threads", "Ranks that are threads", 120),
        Part("probe-launch", "Host time of launches", 60),
        Part("probe-ipc", "Memory of another process", 60),
        Part("probe-open_late", "Opening memory while a kernel waits", 60),
        Part("probe-own_handle", "A handle in its own process", 60),
        Part("probe-flags", "Flags between two processes", 90),
        Part("probe-slices", "Waiting beside working", 90),
        Part("probe-pinned", "Locked host memory of two processes", 90),
        Part("probe-graph", "Capture into a CUDA graph", 90),
        Part("probe-nccl", "NCCL with two ranks on one GPU", 90),
        Part("variants", "Variants of the gather", 180),
    ]
    if sanitizer := shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    ):
        checked = (
            python,
            *PYTEST,
            "-m",
            "gpu",
            KERNEL_TESTS,
            "-k",
            "not waits and not gives_up and not loads",
        )
        command = (sanitizer, "--tool", "memcheck", "--error-exitcode", "9", *checked)
        found.append(Part("sanitizer", "compute-sanitizer memcheck on the kernel tests", 240, command))
    return found


@dataclass(frozen=True)
class Outcome:
    """What became of a part."""

    part: Part
    status: str  # "good", "bad", "out of time", "left out"
    seconds: float
    text: str
    found: Any


def run_part(part: Part, limit: float, quick: bool) -> Outcome:
    """Run one part for at most ``limit`` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out, findings = Path(folder, "out"), Path(folder, "found.json")
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
            )
            try:
                status = "good" if process.wait(limit) == 0 else "bad"
            except subprocess.TimeoutExpired:
                _stop(process)
                status = "out of time"
        found = json.loads(findings.read_text())["found"] if findings.is_file() else None
        return Outcome(part, status, time.monotonic() - start, out.read_text(errors="replace"), found)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a part and the processes that it started."""
    import os
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def render(outcomes: Sequence[Outcome], device: str) -> str:
    """The report as Markdown."""
    lines = [f"# gpu-check on {device}", "", "| part | | seconds |", "| --- | --- | ---: |"]
    lines += [f"| {o.part.title} | {o.status} | {o.seconds:.0f} |" for o in outcomes]
    for outcome in outcomes:
        if outcome.status == "left out":
            continue
        text = outcome.text.strip()
        # Sections print Markdown; what other programs print, and tracebacks, is quoted.
        plain = bool(outcome.part.command) or outcome.found is None
        lines += ["", f"## {outcome.part.title}", ""]
        lines += ["```", *text.splitlines()[-60:], "```"] if plain else [text]
    return "\n".join(lines) + "\n"


def find_device() -> str:
    """The device's name.

    Raises:
        RuntimeError: There is none that torch can use; says why.
    """
    try:
        import torch
    except ImportError as error:
        raise RuntimeError(f"torch cannot be imported: {error}") from None
    if not torch.cuda.is_available():
        built = torch.version.cuda or "none"
        raise RuntimeError(
            f"torch {torch.__version__} (built for CUDA: {built}) sees no CUDA device; this needs an NVIDIA "
            "GPU, its driver, and a CUDA build of torch"
        )
    return str(torch.cuda.get_device_name())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit status."""
    known = parts()
    parser = argparse.ArgumentParser(prog="python -m dgcl.gpu_check", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build"), metavar="FOLDER", help="for the report")
    parser.add_argument("--only", metavar="PARTS", help=f"some of: {','.join(part.name for part in known)}")
    parser.add_argument(
        "--seconds", type=float, default=1700.0, help="for everything; what is left is left out"
    )
    parser.add_argument("--quick", action="store_true", help="little data: whether it works, not how fast")
    chosen = parser.parse_args(arguments)
    wanted = None if chosen.only is None else chosen.only.split(",")
    if unknown := set(wanted or ()) - {part.name for part in known}:
        parser.error(f"--only: unknown {', '.join(sorted(unknown))}")
    try:
        device = find_device()
    except RuntimeError as error:
        sys.stderr.write(f"gpu-check: {error}\n")
        return 2

    chosen.output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + chosen.seconds
    outcomes: list[Outcome] = []
    for part in known:
        if wanted is not None and part.name not in wanted:
            continue
        left = min(part.seconds, deadline - time.monotonic())
        if left < 5:
            outcomes.append(Outcome(part, "left out", 0.0, "", None))
            continue
        outcome = run_part(part, left, chosen.quick)
        outcomes.append(outcome)
        sys.stdout.write(f"{part.name}: {outcome.status} ({outcome.seconds:.0f} s)\n")
        sys.stdout.flush()
        # After every part, so that being stopped from outside costs nothing that was found.
        _write(chosen.output, outcomes, device)
    _write(chosen.output, outcomes, device)
    sys.stdout.write(render(outcomes, device))
    return 0 if outcomes and all(outcome.status == "good" for outcome in outcomes) else 1


def _write(folder: Path, outcomes: Sequence[Outcome], device: str) -> None:
    (folder / "gpu-report.md").write_text(render(outcomes, device))
    report = {
        "device": device,
        "parts": [
            {"name": o.part.name, "status": o.status, "seconds": o.seconds, "found": o.found, "text": o.text}
            for o in outcomes
        ],
    }
    (folder / "gpu-report.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    sys.exit(main())

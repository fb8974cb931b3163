"""One part of gpu-check: ``python -m dgcl.gpu_check.sections NAME [--json FILE] [--quick]``.

Prints Markdown while it goes, so that what was found stays when it is stopped, and leaves the same as JSON.
The exit status is 0 when everything is right and every target was reached, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from dgcl.gpu_check.launching import Say
from dgcl.gpu_check.measurement import Size

#: For a look at whether everything works; not for numbers to keep.
QUICK: Final = Size(num_bytes=1 << 26, num_peers=3, repeats=3)

Section = Callable[[Size, Say], tuple[Any, bool]]


def environment(size: Size, say: Say) -> tuple[Any, bool]:
    """The device and the software."""
    import importlib.metadata

    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("torch", "numba", "numba-cuda", "numpy", "cupy-cuda13x", "triton"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found["device"] = properties.name
        found["multiprocessors"] = properties.multi_processor_count
        found["memory, GB"] = round(properties.total_memory * 1e-9, 1)
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["devices"] = torch.cuda.device_count()
    smi = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
        "--format=csv,noheader",
    ]
    try:
        found["nvidia-smi"] = subprocess.run(smi, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        found["nvidia-smi"] = str(error)
    for name, value in found.items():
        say(f"- {name}: {value}")
    return found, True


def compile_host(size: Size, say: Say) -> tuple[Any, bool]:
    """What the host runs is compiled here, once, so that no other part waits for it: planner, runtime, enqueuer."""
    import time

    import dgcl
    from dgcl.gpu_check import ranks as work
    from dgcl.gpu_check.programs import make_programs

    found = {}
    for name, run in (
        ("plans", lambda: [make_programs(4, 1 << 10, method) for method in ("direct", "spst")]),
        ("exchanges", lambda: dgcl.launch(work.check_rank, 2, 1 << 7, "direct", "cpu")),
        ("folds of floats", lambda: dgcl.launch(work.precision_rank, 2, 1 << 7, "direct", "cpu")),
    ):
        start = time.perf_counter()
        run()
        found[name] = round(time.perf_counter() - start, 1)
        say(f"- {name}: {found[name]} s")
    return found, True


def rows(size: Size, say: Say) -> tuple[Any, bool]:
    """Row kernels against the device's own copy."""
    from dgcl.gpu_check.gpu import Gpu
    from dgcl.gpu_check.row_speed import run_rows

    lines = run_rows(Gpu(), size, say)
    return [line.to_json() for line in lines], all(line.good for line in lines)


def variants(size: Size, say: Say) -> tuple[Any, bool]:
    """Other ways to gather; only their correctness counts."""
    from dgcl.gpu_check.gpu import Gpu
    from dgcl.gpu_check.row_speed import run_variants

    lines = run_variants(Gpu(), size, say)
    return [line.to_json() for line in lines], all(line.good for line in lines)


def exchanges(size: Size, say: Say) -> tuple[Any, bool]:
    """Whole exchanges of ranks that are streams."""
    from dgcl.gpu_check.exchange_speed import run_exchanges
    from dgcl.gpu_check.gpu import Gpu

    lines = run_exchanges(Gpu(), size, say)
    return [line.to_json() for line in lines], all(line.good for line in lines)


def whole(name: str) -> Section:
    """A part in which whole communicators run."""

    def run(size: Size, say: Say) -> tuple[Any, bool]:
        from dgcl.gpu_check.communicator import CHECKS

        return CHECKS[name](size, say, "cuda")

    return run


def probe(name: str) -> Section:
    """A probe as a section. What it finds is neither good nor bad; that it runs is."""

    def run(size: Size, say: Say) -> tuple[Any, bool]:
        from dgcl.gpu_check.probes import PROBES

        found = PROBES[name]()
        for what, value in found.items():
            say(f"- {what}: {value}")
        return found, True

    return run


#: All sections, by name.
SECTIONS: Final[dict[str, Section]] = {
    "environment": environment,
    "compile": compile_host,
    "rows": rows,
    "exchanges": exchanges,
    "variants": variants,
    **{
        name: whole(name)
        for name in (
            "ranks",
            "threads",
            "bench",
            "precision",
            "faults",
            "capture",
            "hosts",
            "nccl",
            "calibrate",
        )
    },
    **{
        f"probe-{name}": probe(name)
        for name in (
            "driver",
            "launch",
            "ipc",
            "open_late",
            "own_handle",
            "flags",
            "slices",
            "pinned",
            "graph",
            "nccl",
        )
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one section; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dgcl.gpu_check.sections", description=__doc__)
    parser.add_argument("name", choices=SECTIONS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="leave the findings there")
    parser.add_argument("--quick", action="store_true", help="little data, few repeats")
    chosen = parser.parse_args(arguments)

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    found, good = SECTIONS[chosen.name](QUICK if chosen.quick else Size(), say)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"good": good, "found": found}, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

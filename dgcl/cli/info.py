"""The command ``dgcl info``: prints versions, the machine and settings, to look at or to send with a report.

Packages are asked for their versions and not imported, but by ``--check``, which runs an exchange. Of the environment
only variables that begin as in ``SETTINGS`` are shown: others may be secrets.

Called by `bench` and `dgcl/cli/__init__`. Free to change while a report has those settings and no other variable, and
wrong rows give exit status 1 (`tests/dgcl/cli/test_info.py`).
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

from dgcl import __version__
from dgcl.cli.arguments import option
from dgcl.cli.output import print_fields, print_json, say, size, step
from dgcl.topology.copy_rates import available_cores
from dgcl.topology.detect.sysfs import Sysfs
from dgcl.topology.table import aligned

REQUIRED = ("torch", "numpy", "scipy", "highspy", "networkx", "numba", "pymetis")
OPTIONAL = {
    "dgl": "comm.local_graph('dgl')",
    "torch_geometric": "comm.local_graph('pyg')",
    "kaminpar": "partition='kaminpar'",
    "matplotlib": "plots",
    "nvidia-ml-py": "topology='auto' on GPUs",
}

#: Beginnings of the names of environment variables that decide how ranks run; others are nobody's business.
SETTINGS = (
    "DGCL_", "NUMBA_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "GLOO_", "NCCL_", "CUDA_VISIBLE_DEVICES",
    "TORCH_DISTRIBUTED_", "TORCH_NCCL_", "SLURM_STEP_", "SLURM_PROCID", "OMPI_COMM_", "PMI_",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PYTHONHASHSEED", "DGLBACKEND",
)  # fmt: skip


def add_parser(verbs: Any) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        "info",
        help="versions, machine, settings: what a bug report needs",
        description="Print versions, the machine, and settings that matter. A bug report needs"
        " `dgcl info --check --json > info.json`.",
    )
    option(parser, "--check", "also exchange rows between two ranks, and say whether they are right")
    parser.runs(info)


def info(args: argparse.Namespace) -> int:
    """Print what is installed and what it runs on; exit status 1 when rows were wrong."""
    report: dict[str, Any] = {
        "dgcl": __version__,
        "source": _commit(),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in (*REQUIRED, *OPTIONAL)},
        "machine": describe_machine(),
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)
        },
    }
    if args.check:
        with step("exchanging rows between two ranks"):
            report["check"] = _check()
    if args.json:
        print_json(report)
    else:
        _print(report)
    return 0 if report.get("check", {}).get("right", True) else 1


def _commit() -> str | None:
    """The commit of a source tree; None for an installed package, or without git."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        said = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() or None


def _check() -> dict[str, Any]:
    """Exchange rows between two ranks, and say whether they are right, and how long that took."""
    begin = time.monotonic()
    try:
        right = _exchange_is_right()
        result: dict[str, Any] = {"right": right, "error": None if right else "rows that arrived were wrong"}
    except Exception as error:  # whatever it is belongs into the report
        result = {"right": False, "error": "".join(traceback.format_exception(error))}
    return {**result, "seconds": round(time.monotonic() - begin, 3)}


def _exchange_is_right() -> bool:
    import torch

    import dgcl

    def exchange() -> bool:
        comm = dgcl.build_comm_info(torch.tensor([[0, 1, 2, 3, 0], [3, 2, 1, 0, 2]]), "uniform")
        rows = comm.expand(comm.owned_ids.double()[:, None])
        return bool((rows[:, 0] == torch.cat([comm.owned_ids, comm.halo_ids])).all())

    return all(dgcl.launch(exchange, 2))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_machine() -> dict[str, Any]:
    """System, processor, memory and GPUs, as JSON values."""
    host = Sysfs().host()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": host.model or None,
        "cores": available_cores(),
        "memory_bytes": host.memory_bytes,
        "shared_memory_free_bytes": shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0,
        "gpu_driver": _first_match("/proc/driver/nvidia/version", r"Kernel Module\D*([\d.]+)"),
        "gpus": [
            _first_match(folder / "information", r"Model:\s*(.+)") or "unknown"
            for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
        ],
    }


def _first_match(path: str | Path, pattern: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text(errors="replace"))
    except OSError:
        return None
    return match[1].strip() if match else None


def _print(report: dict[str, Any]) -> None:
    machine = report["machine"]
    gpus = machine["gpus"]
    print_fields(
        [
            (
                "dgcl",
                f"{report['dgcl']}{' at ' + report['source'] if report['source'] else ''}"
                f"  ({Path(__file__).resolve().parents[1]})",
            ),
            ("python", f"{report['python']}  ({sys.executable})"),
            ("system", machine["system"]),
            ("cpu", f"{machine['cpu'] or 'unknown'}, {machine['cores']} cores for this process"),
            ("memory", size(machine["memory_bytes"])),
            ("/dev/shm", f"{size(machine['shared_memory_free_bytes'])} free"),
            (
                "gpus",
                f"{len(gpus)}: {', '.join(gpus)}; driver {machine['gpu_driver']}" if gpus else "none",
            ),
        ]
    )
    say()
    rows = [
        (package, present or "missing", OPTIONAL.get(package, "required"))
        for package, present in report["packages"].items()
    ]
    say(aligned(("package", "version", "for"), rows, range(3)))
    say()
    if report["environment"]:
        say(aligned(("setting", "value"), list(report["environment"].items()), range(2)))
    else:
        say("no setting in the environment")
    if "check" in report:
        check = report["check"]
        say(f"\ncheck     {'rows are right' if check['right'] else check['error']} ({check['seconds']:g} s)")

"""``dgcl info``: versions, the machine, optional packages, what is compiled. Imports none of them."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from dgcl import __version__
from dgcl.cli.output import print_fields, print_json, print_table, size

REQUIRED = ("torch", "numpy", "scipy", "networkx", "numba", "pymetis")
OPTIONAL = {
    "dgl": "comm.local_graph('dgl')",
    "torch_geometric": "comm.local_graph('pyg')",
    "matplotlib": "plots",
}


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    verbs.add_parser(
        name, help="versions, machine, optional packages, compiled code", description=__doc__
    ).runs(info)


def info(args: argparse.Namespace) -> int:
    """Print what is installed and what it runs on."""
    found = {
        "dgcl": __version__,
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in (*REQUIRED, *OPTIONAL)},
        "machine": describe_machine(),
        "compiled_cache": _compiled_cache(),
    }
    if args.json:
        print_json(found)
    else:
        _print(found)
    return 0


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_machine() -> dict[str, Any]:
    """System, processor, memory and GPUs, as JSON values."""
    shm = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "shared_memory_bytes": shm.total if shm else 0,
        "shared_memory_free_bytes": shm.free if shm else 0,
        "gpus": [
            _first_match(folder / "information", r"Model:\s*(.+)") or "unknown"
            for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
        ],
    }


def _first_match(path: str | Path, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(errors="replace"))
    except OSError:
        return None
    return found.group(1).strip() if found else None


def _compiled_cache() -> dict[str, Any]:
    """Find the machine code that numba keeps: beside the source files, or where the user told numba to."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    root = Path(given) if given else Path(__file__).resolve().parents[1]
    # Walking with followlinks also finds the caches behind the package's own symlinks in a source tree.
    files = [
        Path(folder) / name
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if name.endswith((".nbi", ".nbc"))
    ]
    return {
        "folder": str(root),
        "functions": sum(file.suffix == ".nbi" for file in files),
        "bytes": sum(file.stat().st_size for file in files),
    }


def _print(found: dict[str, Any]) -> None:
    machine, cache = found["machine"], found["compiled_cache"]
    gpus = machine["gpus"]
    print_fields(
        [
            ("dgcl", f"{found['dgcl']}  ({Path(__file__).resolve().parents[1]})"),
            ("python", f"{found['python']}  ({sys.executable})"),
            ("system", machine["system"]),
            ("cpu", f"{machine['cpu'] or 'unknown'}, {machine['cores']} cores for this process"),
            ("memory", size(machine["memory_bytes"])),
            (
                "/dev/shm",
                f"{size(machine['shared_memory_bytes'])}, {size(machine['shared_memory_free_bytes'])} free",
            ),
            ("gpus", f"{len(gpus)}: {', '.join(gpus)}" if gpus else "none"),
            (
                "compiled",
                f"{cache['functions']} functions, {size(cache['bytes'])}  ({cache['folder']})"
                if cache["functions"]
                else "nothing yet: the first run compiles, later ones load",
            ),
        ]
    )
    print()
    rows = [
        (package, present or "missing", OPTIONAL.get(package, "required"))
        for package, present in found["packages"].items()
    ]
    print_table(("package", "version", "for"), rows, left=3)

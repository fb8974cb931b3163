"""``python -m tests.gpu`` (``make gpu-check``): everything that needs a GPU, and one report that names the device.

The ``gpu`` tests run in parts (:mod:`tests.gpu.parts`), each in a process of its own under a time limit, most valuable
first, so that one that fails or hangs costs neither the others nor what it found so far. ``gpu-report.md`` and
``gpu-report.json`` are written before and after every part; with ``--resume`` a later call keeps them and runs what is
missing. Needs the repository, an NVIDIA driver, torch with CUDA, numba and pytest; nothing is fetched.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.gpu.parts import SECONDS, Outcome, parts, run_part
from tests.gpu.report import read_report, render, write_report

_LEAST: Final = 5.0  # seconds that are worth starting a part
_NEEDED: Final = ("numpy", "scipy", "networkx", "torch", "numba", "pytest", "hypothesis")


def find_device() -> str:
    """The device's name.

    Raises:
        RuntimeError: There is none that torch can use, or a package is missing; says which.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise RuntimeError(
            f"{sys.executable} lacks {', '.join(missing)}: install them ({sys.executable} -m pip install "
            f"{' '.join(missing)}), or name another Python with make gpu-check GPU_PYTHON=..."
        )
    try:
        import torch
    except (ImportError, OSError) as error:
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
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build"), metavar="FOLDER", help="for the report")
    parser.add_argument("--only", metavar="PARTS", help=f"some of: {','.join(part.name for part in known)}")
    parser.add_argument("--without", metavar="PARTS", help="all but these")
    parser.add_argument(
        "--resume", action="store_true", help="keep the report in FOLDER, and run what has not come to an end"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help=f"for this call, default {SECONDS:.0f}; what does not fit is left out",
    )
    parser.add_argument("--quick", action="store_true", help="little data: whether it works, not how fast")
    chosen = parser.parse_args(arguments)
    wanted, unwanted = (
        None if given is None else set(given.split(",")) for given in (chosen.only, chosen.without)
    )
    for option, given in (("--only", wanted), ("--without", unwanted)):
        if unknown := (given or set()) - {part.name for part in known}:
            parser.error(f"{option}: unknown {', '.join(sorted(unknown))}")
    try:
        device = find_device()
    except RuntimeError as error:
        sys.stderr.write(f"gpu-check: {error}\n")
        return 2

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    chosen.output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + chosen.seconds
    outcomes = read_report(chosen.output, known, device) if chosen.resume else {}

    def record(outcome: Outcome) -> None:
        """Write the report: before and after every part, so that nothing is lost when the check is killed."""
        outcomes[outcome.part.name] = outcome
        write_report(chosen.output, [outcomes[part.name] for part in known if part.name in outcomes], device)

    for part in known:
        earlier = outcomes.get(part.name)
        if wanted is not None and part.name not in wanted:
            continue
        if (unwanted and part.name in unwanted) or (wanted is None and earlier and earlier.has_ended):
            continue
        left = min(part.seconds, deadline - time.monotonic())
        if left < _LEAST:
            if earlier is None:
                record(Outcome(part, "left out", 0.0, "", []))
            continue
        record(Outcome(part, "running", 0.0, "", []))
        outcome = run_part(part, left, chosen.quick, chosen.output / "gpu-parts")
        sys.stdout.write(f"{part.name}: {outcome.status} ({outcome.seconds:.0f} s)\n")
        sys.stdout.flush()
        record(outcome)
    sys.stdout.write(render([outcomes[part.name] for part in known if part.name in outcomes], device))
    return 0 if outcomes and all(outcome.status == "good" for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

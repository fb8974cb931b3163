"""What the first command on a machine waits for: `dgcl plan` and `make demo`, without machine code on disk and with it.

Each of the two has a fresh cache folder of its own (NUMBA_CACHE_DIR), which its second run finds filled. The graph is
drawn: 100,000 vertices, 1,000,000 edges. Needs `make` once before. Seconds are of the wall clock, from the start of the
command; CPU seconds are of all its processes. A few minutes.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgcl.graph import save_graph
from docs.figures.framework import HERE, Figure, Run, communities, machine

PAGE = "performance.md"


def timed(command: list[str], cache: Path) -> tuple[float | None, float, float]:
    """Seconds to the first epoch if there is one, to the end, and CPU seconds."""
    before, begin, first_epoch = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), None
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE.parents[1]
    )
    for line in process.stdout:
        if re.match(r" +1 +\d", line):
            first_epoch = time.perf_counter() - begin
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed ({process.returncode})")
    total, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return first_epoch, total, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def cold_start(run: Run) -> Figure:
    """Both commands, twice each."""
    seconds = dict.fromkeys(("first epoch, s", "end, s", "CPU s"), ".1f")

    def rows() -> Iterator[list[Any]]:
        with tempfile.TemporaryDirectory() as folder:
            graph = Path(folder) / "graph.npz"
            save_graph(graph, communities(100_000, 1_000_000, 50))
            plan = f"-m dgcl plan {graph} --topology dgx1 --compare direct,spst".split()
            for name, command in run.some(
                [("dgcl plan", [sys.executable, *plan]), ("make demo", ["make", "demo"])]
            ):
                for state in ("none", "all"):
                    yield [f"`{name}`", state, *timed(command, Path(folder) / name.replace(" ", "-"))]

    return Figure({"command": "", "machine code on disk": "", **seconds}, rows(), machine())


FIGURES = {"cold-start": cold_start}

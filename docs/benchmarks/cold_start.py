"""What the first command on a machine waits for: `dgcl plan` and `make demo`, without machine code on disk and with it.

    python docs/benchmarks/cold_start.py [--write docs/cold_start.md]

Each of the two has a fresh cache folder of its own (NUMBA_CACHE_DIR), which its second run finds filled. The graph is
drawn: 100,000 vertices, 1,000,000 edges, of which 80 % stay in communities of 50. Needs `make` once before. Seconds are
of the wall clock, from the start of the command; CPU seconds are of all its processes. A few minutes.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from marked import print_into

ROOT = Path(__file__).resolve().parents[2]
VERTICES, EDGES = 100_000, 1_000_000


def draw(path: Path) -> None:
    """A graph with communities."""
    from dgcl.graph import as_graph, save_graph

    rng = np.random.default_rng(0)
    heads = rng.integers(0, VERTICES, EDGES)
    near = heads // 50 * 50 + rng.integers(0, 50, EDGES)
    tails = np.where(rng.random(EDGES) < 0.8, near, rng.integers(0, VERTICES, EDGES))
    save_graph(path, as_graph(np.stack([tails, heads]), num_nodes=VERTICES))


def timed(command: list[str], cache: Path) -> tuple[float, float, float]:
    """Seconds to the first epoch (nan: there is none) and to the end, and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin, first_epoch = time.perf_counter(), float("nan")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    assert process.stdout is not None
    for line in process.stdout:
        if re.match(r" +1 +\d", line):
            first_epoch = time.perf_counter() - begin
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed ({process.returncode})")
    total = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return first_epoch, total, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def machine() -> str:
    """The processor, its cores, and how busy it was with other things."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    busy = os.getloadavg()[0]
    return (
        f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}; load before the runs: {busy:.1f}"
        f"{' (the machine was shared: only CPU seconds can be compared)' if busy > 0.5 else ''}"
    )


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", metavar="PAGE", help="put the table between the marks of this page")
    given = parser.parse_args()
    rows = [
        f"{machine()}.",
        "",
        "| command | machine code on disk | first epoch, s | end, s | CPU s |",
        "| --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["NUMBA_CACHE_DIR"] = str(place / "drawing")
        draw(place / "graph.npz")
        plan = [sys.executable, "-m", "dgcl", "plan", str(place / "graph.npz"), "--topology", "dgx1"]
        for name, command in {"dgcl plan": plan, "make demo": ["make", "demo"]}.items():
            for state in ("none", "all"):
                epoch, end, cpu = timed(command, place / name.replace(" ", "-"))
                shown = "" if np.isnan(epoch) else f"{epoch:.1f}"
                rows.append(f"| `{name}` | {state} | {shown} | {end:.1f} | {cpu:.1f} |")
                print(rows[-1], file=sys.stderr, flush=True)
    print_into(given.write, "cold-start", "\n".join(rows))


if __name__ == "__main__":
    main()

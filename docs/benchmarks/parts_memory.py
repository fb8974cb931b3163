"""What ranks hold at most: a graph and features given on rank 0, against parts and features that each rank maps.

    python docs/benchmarks/parts_memory.py [--graph FILE] [--parts 4] [--width 128] [--write docs/cluster.md]

The parts are made by `dgcl partition --out DIR/`; each way then runs under torchrun with these ranks, up to one
exchange. A figure is the peak resident memory of a rank's process (VmHWM), mapped files included; a rank that has only
started has no graph yet. Without --graph the graph is drawn: 400,000 vertices with 4 million edges, of which
80 % stay in one of 8 blocks. About a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from marked import print_into

VERTICES, EDGES = 400_000, 4_000_000
WAYS = {
    "given": "graph and features on rank 0",
    "mapped": "parts and features mapped by each rank",
}


def peak_megabytes() -> float:
    """The peak so far of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1000


def be_rank(way: str, folder: str) -> None:
    """Come to one exchange, and write down what it took."""
    import torch

    import dgcl

    torch.set_num_threads(1)
    dgcl.init()
    import dgcl.communicator

    place = Path(folder)
    rank = int(os.environ["RANK"])
    started = peak_megabytes()
    if way == "given":
        first = rank == 0
        dgcl.build_comm_info(str(place / "graph.npz") if first else None, "uniform")
        rows = dgcl.dispatch_features(torch.from_numpy(np.load(place / "x.npy")) if first else None)
    else:
        dgcl.load_comm_info(place / "parts")
        rows = dgcl.dispatch_features(np.load(place / "x.npy", mmap_mode="r"))
    dgcl.graph_allgather(rows)
    found = {"started": started, "peak": peak_megabytes(), "rows": rows.nbytes / 1e6}
    (place / f"{way}{rank}.json").write_text(json.dumps(found))


def draw(path: Path) -> None:
    """A graph with communities."""
    from dgcl.graph import as_graph, save_graph

    rng = np.random.default_rng(0)
    heads = rng.integers(0, VERTICES, EDGES)
    near = heads // (VERTICES // 8) * (VERTICES // 8) + rng.integers(0, VERTICES // 8, EDGES)
    tails = np.where(rng.random(EDGES) < 0.8, near, rng.integers(0, VERTICES, EDGES))
    save_graph(path, as_graph(np.stack([tails, heads]), num_nodes=VERTICES))


def measure(given: argparse.Namespace, place: Path) -> dict[str, list[dict[str, Any]]]:
    """Both ways, by rank."""
    from dgcl.graph import read_graph

    if given.graph:
        (place / "graph.npz").symlink_to(Path(given.graph).resolve())
    else:
        draw(place / "graph.npz")
    num_vertices = read_graph(place / "graph.npz").graph.num_nodes
    features = np.lib.format.open_memmap(place / "x.npy", "w+", np.float32, (num_vertices, given.width))
    features[:] = 1.0
    del features
    parts = [
        "partition",
        str(place / "graph.npz"),
        "--parts",
        str(given.parts),
        "--out",
        f"{place / 'parts'}/",
    ]
    subprocess.run([sys.executable, "-m", "dgcl", *parts], check=True, stdout=subprocess.DEVNULL)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.parts}"]
    for way in WAYS:
        command = [*run, str(Path(__file__).resolve()), "--rank", way, "--folder", str(place)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return {
        way: [json.loads((place / f"{way}{rank}.json").read_text()) for rank in range(given.parts)]
        for way in WAYS
    }


def table(found: dict[str, list[dict[str, Any]]], size: int) -> list[str]:
    """The page's lines."""
    started = max(rank["started"] for ranks in found.values() for rank in ranks)
    rows = found["given"][0]["rows"]
    lines = ["| | rank 0 | other ranks |", "| --- | --- | --- |"]
    for way, words in WAYS.items():
        first, *others = (round(rank["peak"]) for rank in found[way])
        lines.append(f"| {words} | {first} MB | {min(others)} to {max(others)} MB |")
    return [
        *lines,
        "",
        f"{len(found['given'])} ranks; the features are {size / 1e6:.0f} MB, rank 0's share of them {rows:.0f} MB."
        f" A rank that has only started takes {started:.0f} MB.",
    ]


def main() -> int:
    """Measure and print, or be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="of features, float32")
    parser.add_argument("--write", default="", help="page to put the table into")
    parser.add_argument("--rank", choices=sorted(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        be_rank(given.rank, given.folder)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given, Path(folder))
        lines = table(found, (Path(folder) / "x.npy").stat().st_size)
    print_into(given.write, "memory", "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

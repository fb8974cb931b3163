"""What ranks hold at most, by where a graph comes from. About a minute."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import dgcl
from dgcl.graph import save_graph
from dgcl.ranks.context import context
from docs.figures.framework import Figure, Run, communities, machine, resident

PAGE = "cluster.md"
RANKS, FEATURES = 4, 128
GIVEN, MAPPED = "graph and features on rank 0", "parts and features mapped by each rank"


def hold(way: str | None, folder: Path) -> list[tuple[float, float]]:
    """MB that each rank held at most up to one exchange, and of its features; without a way, that has only started."""
    control = context.require_control()
    size = 0
    if way:
        first = way == MAPPED or control.rank == 0
        features = np.load(folder / "x.npy", mmap_mode="r" if way == MAPPED else None) if first else None
        if way == MAPPED:
            dgcl.load_comm_info(folder / "parts")
        else:
            dgcl.build_comm_info(str(folder / "graph.npz") if first else None, "uniform")
            features = None if features is None else torch.from_numpy(features)
        rows = dgcl.dispatch_features(features)
        dgcl.graph_allgather(rows)
        size = rows.nbytes
    return control.exchange((resident("VmHWM") / 1e6, size / 1e6))


def memory(run: Run) -> Figure:
    """The peak resident memory of a rank's process, mapped files included."""
    num_nodes, num_edges = (4_000, 40_000) if run.quick else (400_000, 4_000_000)
    rows, shares = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_graph(folder / "graph.npz", communities(num_nodes, num_edges, num_nodes // 8))
        np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (num_nodes, FEATURES))[:] = 1.0
        parts = [
            "partition",
            str(folder / "graph.npz"),
            "--ranks",
            str(RANKS),
            "--out",
            f"{folder / 'parts'}/",
        ]
        subprocess.run([sys.executable, "-m", "dgcl", *parts], check=True, stdout=subprocess.DEVNULL)
        for way in (None, GIVEN, MAPPED):
            held = dgcl.launch(hold, RANKS, way, folder, ranks="processes")[0]
            (first, share), *others = held
            shares.append(share)
            others = [each for each, _ in others]
            rows.append(
                [way or "a rank that has only started", first, f"{min(others):.0f} to {max(others):.0f} MB"]
            )
    total = num_nodes * FEATURES * 4 / 1e6
    note = f"{RANKS} ranks; the features are {total:.0f} MB, rank 0's share of them {shares[1]:.0f} MB."
    return Figure({"": "", "rank 0": "{:.0f} MB", "other ranks": ""}, rows, machine(), note)


FIGURES = {"memory": memory}

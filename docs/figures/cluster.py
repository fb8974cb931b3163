"""What ranks hold at most, by where a graph comes from; and how far training scales on paper. About five minutes.

`scale` adds up the epoch of a GCN of LAYERS layers of WIDTH floats on one rank. Assumptions all; nothing overlaps:

    arithmetic    forward and backward: every edge's row is read twice at MEMORY bytes/s, and every vertex costs
                  3 x 2 WIDTH^2 operations at FLOPS
    fixed         FIXED seconds: starting kernels and the optimizer, however few the vertices
    exchanges     LAYERS forward and LAYERS - 1 backward (features want no gradient): the plan's prediction, and MESSAGE
                  seconds for each message of the busiest rank, which the plan does not count
    gradients     all ranks sum LAYERS WIDTH^2 parameters: twice over the slowest connection, in 2 log2(P) messages
"""

import itertools
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dgcl
from dgcl.graph import save_graph
from dgcl.planner import Plan, PlanOptions
from dgcl.planner.synthetic import SHAPES
from dgcl.ranks.context import context
from docs.figures.framework import Figure, Run, communities, machine, resident
from docs.figures.planner import drawn_plan

PAGE = "cluster.md"
RANKS, FEATURES = 4, 128
GIVEN, MAPPED = "graph and features on rank 0", "parts and features mapped by each rank"
LAYERS, WIDTH, MEMORY, FLOPS, FIXED, MESSAGE = 2, 256, 1.2e12, 6e13, 2e-4, 2e-6
WORLDS = {"com-orkut": (16, 32, 64, 128, 256), "web-google": (16, 32, 64, 128, 256, 512, 1024)}
PAYS = 1.1  # an epoch must become this much shorter when the ranks are doubled


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


def messages(plan: Plan) -> tuple[int, int]:
    """Messages of the rank that sends or receives most, peer to peer and planned."""
    pairs = plan.relation.pair_rows() > 0
    direct = int(max(pairs.sum(0).max(), pairs.sum(1).max()))
    trees, size = plan.trees, plan.relation.world_size
    sent = np.unique((trees.edge_stage.astype(np.int64) * size + trees.edge_src) * size + trees.edge_dst)
    ends = (sent // size % size, sent % size)
    return direct, max(int(np.bincount(end, minlength=size).max()) for end in ends)


def epochs(graph: str, worlds: tuple[int, ...]) -> Iterator[list[Any]]:
    """One row for each number of ranks."""
    shape, options, before = SHAPES[graph], PlanOptions(row_bytes=4 * WIDTH, time_limit=15.0, gap=0.01), None
    for ranks in worlds:
        plan, planning = drawn_plan(graph, ranks, options)
        arithmetic = 2 * LAYERS * shape.num_edges / ranks * 4 * WIDTH / MEMORY
        arithmetic += LAYERS * shape.num_vertices / ranks * 6 * WIDTH**2 / FLOPS
        slowest = 1e9 * min(connection.bandwidth for connection in plan.topology.connections)
        gradients = 2 * LAYERS * WIDTH**2 * 4 / slowest + 2 * math.log2(ranks) * MESSAGE
        counts = messages(plan)
        exchanges = [
            seconds + MESSAGE * count
            for seconds, count in zip((plan.direct_seconds, plan.predicted_seconds), counts, strict=True)
        ]
        direct, planned = (arithmetic + FIXED + (2 * LAYERS - 1) * each + gradients for each in exchanges)
        best = min(direct, planned)
        yield [
            ranks, 1e3 * arithmetic, 1e3 * exchanges[0], counts[0], 1e3 * exchanges[1], counts[1], 1e3 * direct,
            1e3 * planned, before and before / best, planning / (direct - planned) if direct > planned else None,
        ]  # fmt: skip
        before = best


def scale(run: Run) -> list[Figure]:
    """Epochs on ever more ranks of machines of type dgx_a100, and where more of them stop paying."""
    columns = {
        "ranks": "", "arithmetic ms": ".2f", "exchange ms, direct": ".3f", "messages, direct": "",
        "exchange ms, planned": ".3f", "messages, planned": "", "epoch ms, direct": ".2f", "epoch ms, planned": ".2f",
        "against half the ranks": ".2f", "epochs that pay for planning": ",.0f",
    }  # fmt: skip
    figures = []
    for graph, worlds in WORLDS.items():
        rows = list(epochs(graph, worlds[: 2 if run.quick else None]))
        pays = itertools.takewhile(lambda row: row[8] is None or row[8] >= PAYS, rows)
        verdict = (
            f"Each doubling up to {list(pays)[-1][0]} ranks shortens the epoch by {PAYS:g} times or more."
        )
        title = f"**{graph}**, {SHAPES[graph].num_vertices:,} vertices, {SHAPES[graph].num_edges:,} edges:"
        figures.append(Figure(columns, rows, title, verdict))
    return figures


FIGURES = {"memory": memory, "scale": scale}

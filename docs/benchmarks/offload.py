"""Offload in figures: rows by way to divide vertices, epochs beside those in memory, and rates beside the disk's own.

    python docs/benchmarks/offload.py GRAPHS/ [--store /dev/shm] [--disk FOLDER]
        [--only rows|epochs|rates] [--write docs/offload_figures.md]

Rows are counted, so they are the same on every machine. Epochs are of a GCN of three layers, 128 wide, on ogbn_arxiv
with ranks as processes, in turns, on the machine that is named; the least of twelve counts. Some minutes.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from marked import print_into
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.graph import as_graph
from dgcl.offload.offline import OfflineRanks
from dgcl.partition import partition_graph

GRAPHS = ("uk_2007_05_100k", "ogbn_arxiv")
CHUNK_BY = ("metis", "range")
RANKS, CHUNKS, WIDTHS, TURNS, EPOCHS = 2, 16, (128, 128, 128, 40), 3, 4
COUNTED = ("graph", "chunks by", "V_ori", "V_p2p", "V_ru", "loaded", "slots")
RUN = (
    "ranks",
    "rows",
    "layers",
    "epoch s",
    "of memory's",
    "CPU s",
    "of memory's",
    "loaded / predicted",
    "loss differs",
)
RATES = ("graph", "rows", "loaded MB", "MB/s", "disk's own MB/s", "share")


def counted(graphs: Path) -> Iterator[tuple[str, ...]]:
    """Rows of two ranks with 16 chunks each."""
    for name in GRAPHS:
        graph = as_graph(graphs / f"{name}.npz")
        part = partition_graph(graph, RANKS)
        made = {by: OfflineRanks(graph, part, RANKS, chunk_by=by).arrange(CHUNKS) for by in CHUNK_BY}
        for by, one in made.items():
            v_ori, v_p2p, v_ru = one.volumes
            assert one.schedule.host_rows.sum() <= v_ru
            yield (
                name,
                by,
                *(
                    f"{rows / graph.num_nodes:.3f}"
                    for rows in (v_ori, v_p2p, v_ru, one.schedule.host_rows.sum())
                ),
                str(max(one.schedule.num_slots)),
            )


class Layer(nn.Module):
    """Means, a product, and what follows."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.product = nn.Linear(width_in, width_out)
        generator = torch.Generator().manual_seed(width_in * width_out)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / width_in**0.5)

    def forward(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        """Of a chunk, or of all rows."""
        return self.of_aggregate(g.mean(src))

    def of_aggregate(self, rows: Tensor) -> Tensor:
        """What follows the means."""
        return self.product(rows).relu()


class OfAggregate(nn.Module):
    """The same, given the means."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, rows: Tensor) -> Tensor:
        """Of means."""
        return self.layer.of_aggregate(rows)


def epochs(path: Path, how: str, store: str | None, chunks: int) -> tuple[float, float, float, float]:
    """(seconds, CPU seconds, loss, rows loaded / predicted) of one rank: the least of some epochs after a first."""
    graph = as_graph(path)
    comm = dgcl.build_comm_info(graph, "uniform")
    layers = [Layer(*pair) for pair in pairwise(WIDTHS)]
    generator = torch.Generator().manual_seed(0)
    features, labels = (
        torch.randn(graph.num_nodes, WIDTHS[0], generator=generator),
        torch.arange(graph.num_nodes) % 40,
    )
    off, g = None, None
    if how == "memory":
        g, x, y = comm.local_graph("csr"), comm.dispatch_features(features), comm.dispatch_features(labels)
    else:
        off = dgcl.Offload(comm, chunks=chunks, store=store)
        x, y = off.dispatch_features(features), off.dispatch_features(labels)

    def step() -> Tensor:
        h = x
        for number, layer in enumerate(layers):
            if off is None:
                rows = dgcl.graph_allgather(h)
                h = layer(g, rows, h)
            elif how == "kept":
                h = off.layer(OfAggregate(layer), h, aggregate="mean", constant=number == 0, keep=True)
            else:
                h = off.layer(layer, h)
        loss = dgcl.nn.cross_entropy(h, y) if off is None else off.cross_entropy(h, y)
        loss.backward()
        dgcl.nn.sync_gradients([p for layer in layers for p in layer.parameters()])
        return loss.detach()

    step()
    before = off.account.rows["loaded"] if off else 0
    took = []
    for _ in range(EPOCHS):
        comm.control.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        loss = step()
        comm.control.barrier()
        took.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = (min(column) for column in zip(*took, strict=True))
    share = 1.0
    if off:
        loaded = float(comm.all_reduce_sum(torch.tensor(off.account.rows["loaded"] - before)))
        share = loaded / (EPOCHS * off._arrangement.delivered[0] * (2 if how == "kept" else 3))
        off.close()
    comm.close()
    return wall, cpu, float(loss), share


def measured(graphs: Path, store: str) -> Iterator[tuple[str, ...]]:
    """Epochs in memory and in chunks, in turns."""
    kinds = {
        "in memory": ("memory", None, 1),
        "computed again, 8 chunks": ("again", store, 8),
        "kept aggregates, 8 chunks": ("kept", store, 8),
    }
    for ranks in (1, 4):
        best: dict[str, list[float]] = {}
        for _ in range(TURNS):
            for name, kind in kinds.items():
                how = "threads" if ranks == 1 else "processes"
                runs = dgcl.launch(epochs, ranks, graphs / "ogbn_arxiv.npz", *kind, ranks=how)
                row = [max(run[0] for run in runs), sum(run[1] for run in runs), *runs[0][2:]]
                best[name] = [min(pair) for pair in zip(best.get(name, row), row, strict=True)]
        base = best["in memory"]
        for name, (wall, cpu, loss, share) in best.items():
            yield (
                str(ranks),
                f"files in {store}" if kinds[name][1] else "memory",
                name,
                f"{wall:.2f}",
                f"{wall / base[0]:.2f}",
                f"{cpu:.2f}",
                f"{cpu / base[1]:.2f}",
                f"{share:.3f}",
                f"{abs(loss - base[2]) / abs(base[2]):.0e}",
            )


def rates(graphs: Path, folder: str) -> Iterator[tuple[str, ...]]:
    """What loading takes from a disk, pages given up after each read, beside one long read of the same file."""
    graph = as_graph(graphs / "ogbn_arxiv.npz")
    dgcl.init()
    comm = dgcl.build_comm_info(graph)
    off = dgcl.Offload(comm, chunks=8, store=folder, store_cached=False)
    width = 1024
    x = off.dispatch_features(
        np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (graph.num_nodes, width), (0, 0))
    )
    x = x.memory  # as it is stored
    started = time.perf_counter()
    size = off.store.read(x, slice(0, off.num_owned)).nbytes
    own = size / (time.perf_counter() - started)
    mover, tables, seconds, loaded = off._machinery.mover, off._machinery.tables, 0.0, off.store.bytes_read
    slots = torch.zeros(tables.num_slots, width)
    for batch in tables.batches:
        started = time.perf_counter()
        mover.bring([x], [slots], batch.load, None, again=False)
        seconds += time.perf_counter() - started
    loaded = off.store.bytes_read - loaded
    rate = loaded / seconds
    yield (
        "ogbn_arxiv",
        f"{width} wide",
        f"{loaded / 1e6:.0f}",
        f"{rate / 1e6:.0f}",
        f"{own / 1e6:.0f}",
        f"{rate / own:.2f}",
    )


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """A table, printed as it grows."""
    lines = ["| " + " | ".join(header) + " |", f"|{' --- |' * len(header)}"]
    for row in rows:
        lines.append("| " + " | ".join(row) + " |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", type=Path, help="folder of graph files")
    parser.add_argument("--store", default="/dev/shm", help="memory-backed files, for epochs")
    parser.add_argument("--disk", help="a folder on a disk, for rates")
    parser.add_argument("--write", default="", help="page to put the tables into")
    parser.add_argument("--only", choices=["rows", "epochs", "rates"], help="one table of the three")
    given = parser.parse_args()
    made = {
        "rows": lambda: table(COUNTED, counted(given.graphs)),
        "epochs": lambda: (
            f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n\n"
            + table(RUN, measured(given.graphs, given.store))
        ),
        "rates": lambda: table(RATES, rates(given.graphs, given.disk)),
    }
    for name, make in made.items():
        if given.only in (None, name) and (given.disk or name != "rates"):
            print_into(given.write, f"offload-{name}", make())
    return 0


if __name__ == "__main__":
    sys.exit(main())

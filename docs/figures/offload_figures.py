"""Offload in figures: rows by way to divide vertices, and epochs beside those in memory. Some minutes.

Rows are counted, so they are the same on every machine. Epochs are of a model of three layers, 128 wide, on ogbn_arxiv
with ranks as processes, in turns, with files in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.graph import as_graph
from docs.figures.framework import Figure, Run, machine, on_ranks, turns

PAGE = "offload_figures.md"
GRAPHS, CHUNK_BY, RANKS, CHUNKS = ("uk_2007_05_100k", "ogbn_arxiv"), ("metis", "range"), 2, 16
WIDTHS, STORE = (128, 128, 128, 40), "/dev/shm"
WAYS = {"in memory": 0, "computed again, 8 chunks": 3, "kept aggregates, 8 chunks": 2}
"""Times that an epoch loads each row of a layer, by way."""


def rows_on_rank(path: Path, by: str) -> tuple[list[int], int]:
    """V_ori, V_p2p, V_ru and the rows that a forward loads, over all ranks; and the slots of this one."""
    comm = dgcl.build_comm_info(as_graph(path), "uniform")
    arrangement = dgcl.Offload(comm, chunks=CHUNKS, chunk_by=by)._arrangement
    return [*arrangement.volumes, arrangement.delivered[0]], arrangement.tables.num_slots


def rows(run: Run) -> Figure:
    """Rows over vertices of two ranks with 16 chunks each."""
    columns = dict.fromkeys(("V_ori", "V_p2p", "V_ru", "loaded, optimal"), ".3f")

    def counted() -> Iterator[list[Any]]:
        for name in run.some(GRAPHS):
            num_nodes = run.graph(name).num_nodes
            for by in CHUNK_BY:
                counts, slots = zip(*dgcl.launch(rows_on_rank, RANKS, run.path(name), by), strict=True)
                yield [name, by, *(rows / num_nodes for rows in counts[0]), max(slots)]

    return Figure({"graph": "", "chunks by": "", **columns, "slots": ""}, counted())


class Layer(nn.Module):
    """Means, a product, and what follows."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        torch.manual_seed(width_in * width_out)
        self.product = nn.Linear(width_in, width_out)

    def forward(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        """Rows of a chunk, or all rows."""
        return self.of_means(g.mean(src))

    def of_means(self, rows: Tensor) -> Tensor:
        """What follows the means."""
        return self.product(rows).relu()


class OfMeans(nn.Module):
    """A layer whose input is the means."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.forward = layer.of_means
        self.layer = layer


def step(way: str, layers: list[Layer], off: Any, comm: dgcl.Communicator, x: Any, y: Any) -> float:
    """The loss of an epoch without an optimizer."""
    for number, layer in enumerate(layers):
        if off is None:
            x = layer(comm.local_graph("csr"), dgcl.graph_allgather(x, comm), x)
        elif way.startswith("kept"):
            x = off.layer(OfMeans(layer), x, aggregate="mean", constant=number == 0, keep=True)
        else:
            x = off.layer(layer, x)
    loss = dgcl.nn.loss(F.cross_entropy, comm=comm)(x, y) if off is None else off.cross_entropy(x, y)
    loss.backward()
    dgcl.nn.sync_gradients(nn.ModuleList(layers), comm=comm)
    return loss.item()


def epochs_on_rank(path: Path, rounds: int) -> list[list[Any]]:
    """Of each way: seconds of an epoch, rows loaded over those predicted, the difference of the loss."""
    graph, calls, losses, loaded = as_graph(path), {}, {}, {}
    torch.manual_seed(0)
    features, labels = torch.randn(graph.num_nodes, WIDTHS[0]), torch.arange(graph.num_nodes) % 40
    for way, times in WAYS.items():
        comm = dgcl.build_comm_info(graph, "uniform")
        off = dgcl.Offload(comm, chunks=8, store=STORE) if times else None
        place = off or comm
        x, y = place.dispatch_features(features), place.dispatch_features(labels)
        layers = [Layer(*pair) for pair in pairwise(WIDTHS)]
        calls[way] = partial(step, way, layers, off, comm, x, y)
        calls[way]()
        before = off.account.rows["loaded"] if off else 0
        losses[way] = calls[way]()
        if off:
            rows = comm.all_reduce_sum(torch.tensor(off.account.rows["loaded"] - before))
            loaded[way] = float(rows) / (times * off._arrangement.delivered[0])
    times = turns(comm, calls, rounds)
    first = times["in memory"]
    return [
        [way, time.median, time.ratio(first), loaded.get(way), abs(losses[way] / losses["in memory"] - 1)]
        for way, time in times.items()
    ]


def epochs(run: Run) -> Figure:
    """Epochs in memory and in chunks."""
    columns = {"ranks": "", "layers": "", "epoch s": ".2f", "of memory's": ".2f", "loaded / predicted": ".3f"}
    rows = (
        [ranks, *row]
        for ranks in run.some((1, 4))
        for row in on_ranks(epochs_on_rank, ranks, run.path("ogbn_arxiv"), run.rounds)
    )
    return Figure({**columns, "loss differs by": ".0e"}, rows, machine())


FIGURES = {"offload-rows": rows, "offload-epochs": epochs}

"""Aggregations against the exchange of halo rows, alone and in epochs of whole models. About ten minutes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from docs.figures.framework import Figure, Run, machine, on_ranks, sum_error, turns
from docs.figures.windows import on_first_rank, there_and_back, total

PAGE = "aggregation_figures.md"
EXCHANGES = ("uk_2007_05_100k", "ogbn_arxiv")
EPOCHS = ("ogbn_arxiv", "uk_2007_05_100k", "amazon_computers", "coauthor_physics")
WIDTH, CLASSES, STEPS = 128, 40, 4
WIDTHS = list(itertools.pairwise([WIDTH, WIDTH, WIDTH, CLASSES]))
MODELS = ("SAGE", "GCN")
WAYS = ("DGL's layers", "head", "auto", "cover", "auto, inputs constant")


def exchanges_on_rank(path: Path, ranks: int, rounds: int) -> list[list[Any]]:
    """Of each placement: rows needed and rows moved there and back, seconds, error."""
    graph, part = on_first_rank(path, ranks)
    rows, calls = [], {}
    for edges in ("head", "tail", "cover"):
        comm = dgcl.build_comm_info(graph, part=part, edges=edges)
        whole = torch.rand(comm.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0))
        x, aggregate = comm.dispatch_features(whole).requires_grad_(), comm.aggregator()
        calls[edges] = partial(there_and_back, aggregate, x)
        calls[edges]()
        before = sum(int(sent.sum()) for sent in comm.bytes_sent.values())
        calls[edges]()
        moved = sum(int(sent.sum()) for sent in comm.bytes_sent.values()) - before
        needed, moved = total(comm, 2 * (comm.num_halo + len(comm.local.partial_ids)), moved // (4 * WIDTH))
        result = comm.collect(aggregate(x.detach()))
        rows.append([edges, needed, moved, 0.0 if graph is None else sum_error(graph, whole, result)])
    times, head = turns(comm, calls, rounds), rows[0]
    return [
        [
            *row[:3],
            head[2] / max(row[2], 1),
            1e3 * times[row[0]].median,
            times["head"].ratio(times[row[0]]),
            row[3],
        ]
        for row in rows
    ]


class Model(nn.Module):
    """Three layers with the same parameters: ours wherever edges are summed, or DGL's behind ``graph_allgather``."""

    def __init__(self, kind: str, block: Any = None) -> None:
        super().__init__()
        self.layers, self.block = nn.ModuleList(), block
        for width_in, width_out in WIDTHS:
            torch.manual_seed(len(self.layers))
            if kind == "SAGE":
                layer = dgcl.nn.SAGEConv(width_in, width_out)
                values = layer.lin_l.weight, layer.lin_r.weight, layer.lin_l.bias
            else:
                layer = dgcl.nn.GCNConv(width_in, width_out, add_self_loops=False)  # they are in the graph
                values = layer.lin.weight.t(), layer.bias
            if block is not None:
                layer, parameters = _of_dgl(kind, width_in, width_out)
                for parameter, value in zip(parameters, values, strict=True):
                    parameter.data.copy_(value.data)
            self.layers.append(layer)

    def forward(self, x: Any, comm: dgcl.Communicator) -> Tensor:
        """Logits."""
        for number, layer in enumerate(self.layers):
            x = torch.relu(x) if number else x
            x = layer(x, comm) if self.block is None else layer(self.block, dgcl.graph_allgather(x, comm))
        return x


def _of_dgl(kind: str, width_in: int, width_out: int) -> tuple[nn.Module, tuple[nn.Parameter, ...]]:
    import dgl.nn

    if kind == "SAGE":
        layer = dgl.nn.SAGEConv(width_in, width_out, "mean")
        return layer, (layer.fc_neigh.weight, layer.fc_self.weight, layer.fc_self.bias)
    layer = dgl.nn.GraphConv(width_in, width_out, allow_zero_in_degree=True)
    return layer, (layer.weight, layer.bias)


def step(model: nn.Module, optimizer: Any, x: Any, comm: dgcl.Communicator) -> float:
    """The loss of an epoch."""
    optimizer.zero_grad()
    loss = dgcl.nn.loss(F.cross_entropy, comm=comm)(model(x, comm), comm.owned_ids % CLASSES)
    loss.backward()
    dgcl.nn.sync_gradients(model, comm=comm)
    optimizer.step()
    return loss.item()


def epochs_on_rank(path: Path, ranks: int, rounds: int, kind: str) -> list[list[Any]]:
    """Of each way: seconds of an epoch, against the others, and how far the losses of the first few differ."""
    graph, part = on_first_rank(path, ranks)
    losses, calls, names = {}, {}, {}
    for way in WAYS:
        edges = "head" if way == WAYS[0] else way.split(",")[0]
        comm = dgcl.build_comm_info(graph, part=part, edges=edges)
        model = Model(kind, comm.local_graph("dgl") if way == WAYS[0] else None)
        generator = torch.Generator().manual_seed(1)
        x = comm.dispatch_features(torch.rand(comm.num_nodes, WIDTH, generator=generator))
        if way == WAYS[-1]:
            x = comm.aggregator().constant(x)
        calls[way] = partial(step, model, torch.optim.SGD(model.parameters(), lr=0.1), x, comm)
        losses[way] = [calls[way]() for _ in range(STEPS)]
        names[way] = way.replace("auto", f"auto: {comm.edges}")
    times = turns(comm, calls, rounds)
    return [
        [
            names[way], 1e3 * time.median, times[WAYS[0]].ratio(time), time.ratio(times["head"]),
            max(abs(a / b - 1) for a, b in zip(losses[way], losses[WAYS[0]], strict=True)),
        ]
        for way, time in times.items()
    ]  # fmt: skip


def exchanges(run: Run) -> Figure:
    """Sums there and back by the rank that adds an edge."""
    columns = {
        "graph, both ways": "", "edges": "", "rows there and back": "", "moved": "", "head / it": ".2f", "ms": ".2f",
        "head's ms / it": ".2f", "error": ".0e",
    }  # fmt: skip
    names = run.some(EXCHANGES)
    rows = (
        [name, *row]
        for name in names
        for row in on_ranks(exchanges_on_rank, 4, run.path(name), 4, run.rounds)
    )
    return Figure(columns, rows, machine())


def epochs(run: Run) -> Figure:
    """Epochs of whole models."""
    columns = {
        "graph, both ways": "", "ranks": "", "model": "", "way": "", "ms an epoch": ".0f", "DGL's / it": ".2f",
        "it / head": ".2f", "loss differs by": ".0e",
    }  # fmt: skip

    def rows() -> Iterator[list[Any]]:
        for name, ranks, kind in itertools.product(run.some(EPOCHS), run.some((2, 4)), run.some(MODELS)):
            for row in on_ranks(epochs_on_rank, ranks, run.path(name), ranks, run.rounds, kind):
                yield [name, ranks, kind, *row]

    return Figure(columns, rows(), machine())


FIGURES = {"exchanges": exchanges, "epochs": epochs}

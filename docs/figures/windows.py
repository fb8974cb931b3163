"""Aggregations in windows and stacks in place: what they hold, and how long they take. About five minutes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.graph import Graph, read_graph
from dgcl.nn.in_place import _stacks
from dgcl.partition import partition_graph
from dgcl.ranks.context import context
from docs.figures.framework import Figure, Run, both_ways, machine, on_ranks, sum_error, turns

PAGE = "windows.md"
GRAPH, RANKS, WIDTH, CHANNELS = "ogbn_arxiv", 4, 128, (128, 208, 208, 172)
WINDOWS: dict[str, dict[str, Any]] = {
    "1": {}, "2": {"windows": 2}, "4": {"windows": 4}, "8": {"windows": 8}, "4, by owner": {"by": "owner"},
}  # fmt: skip
MB = 1e6


def on_first_rank(path: Path, ranks: int = RANKS) -> tuple[Graph | None, Any]:
    """The graph and its parts on rank 0, which gives the others theirs."""
    if context.require_control().rank:
        return None, None
    graph = both_ways(read_graph(path).graph)
    return graph, partition_graph(graph, ranks)


def pool_bytes(comm: Any) -> int:
    """Bytes that a rank's buffers take: whole segments, all windows of all widths so far."""
    return int(comm.transport.runtime.pool.bytes_allocated)


def total(comm: dgcl.Communicator, *counts: int) -> list[int]:
    """The sums over all ranks."""
    return [sum(column) for column in zip(*comm.control.exchange(counts), strict=True)]


def there_and_back(aggregate: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """An aggregation and its gradient."""
    x.grad = None
    aggregate(x).sum().backward()


def aggregations(path: Path, rounds: int) -> list[list[Any]]:
    """Of each way to divide rows: bytes of buffers over all ranks, seconds there and back, the error."""
    graph, part = on_first_rank(path)
    rows, calls = [], {}
    for name, options in WINDOWS.items():
        comm = dgcl.build_comm_info(graph, "uniform", part=part)
        whole = torch.rand(comm.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0))
        x = comm.dispatch_features(whole).requires_grad_()
        aggregate = comm.aggregator(**options)
        with torch.no_grad():
            result = comm.collect(aggregate(x), None)
        forward = pool_bytes(comm)
        calls[name] = partial(there_and_back, aggregate, x)
        calls[name]()
        halo, forward, both = total(comm, comm.num_halo * WIDTH * 4, forward, pool_bytes(comm))
        error = 0.0 if graph is None or result is None else sum_error(graph, whole, result)
        rows.append([name, forward / MB, forward / halo, both / MB, both / halo, error])
    times = turns(comm, calls, rounds)
    return [[*row[:5], 1e3 * times[row[0]].median, times[row[0]].ratio(times["1"]), row[5]] for row in rows]


class OneByOne(nn.Module):
    """The stack's model, of layers that autograd differentiates."""

    def __init__(self, stack: dgcl.nn.InPlaceGCN) -> None:
        super().__init__()
        self.convs, self.p = stack.convs, stack.options.p

    def forward(self, x: Any, comm: dgcl.Communicator) -> Tensor:
        """Logits."""
        for conv in self.convs[:-1]:
            x = dgcl.nn.dropout(torch.relu(conv(x, comm)), self.p, comm=comm)
        return self.convs[-1](x, comm)


def saved_bytes(model: nn.Module, x: Any, comm: dgcl.Communicator) -> int:
    """Bytes of storages that autograd keeps of a forward, parameters left out; and of its result."""
    storages = {}

    def keep(saved: Tensor) -> Tensor:
        storages[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        keep(model(x, comm))
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storages.values())


def step(model: nn.Module, x: Any, comm: dgcl.Communicator) -> float:
    """The loss of a training step without an optimizer."""
    model.zero_grad()
    labels, mask = comm.owned_ids % CHANNELS[-1], comm.owned_ids % 3 == 0
    loss = dgcl.nn.loss(F.cross_entropy, comm=comm)(model(x, comm), labels, mask=mask)
    loss.backward()
    return loss.item()


def stacks_on_rank(path: Path, rounds: int) -> list[list[Any]]:
    """Of layers one by one, and of the stack: bytes of rows over all ranks, seconds of a step, the loss."""
    graph, part = on_first_rank(path)
    rows, calls, losses = [], {}, []
    for name, windows in (("GCNConv", None), ("InPlaceGCN", None), ("InPlaceGCN, 8 windows", 8)):
        comm = dgcl.build_comm_info(graph, "uniform", part=part)
        stack = dgcl.nn.InPlaceGCN(CHANNELS, dropout=0.5, windows=windows)
        generator = torch.Generator().manual_seed(0)
        for parameter in stack.parameters():
            nn.init.normal_(parameter, 0, 0.1, generator=generator)
        model = OneByOne(stack) if name == "GCNConv" else stack
        features = torch.rand(comm.num_nodes, CHANNELS[0], generator=generator)
        x = comm.aggregator().constant(comm.dispatch_features(features))
        calls[name] = partial(step, model, x, comm)
        losses.append(calls[name]())
        kept, predicted = saved_bytes(model, x, comm), 0
        if model is stack:
            kept += _stacks[stack][comm].num_bytes
            predicted = stack.memory(comm, constant=True).total
        kept, pool, predicted = (count / MB for count in total(comm, kept, pool_bytes(comm), predicted))
        rows.append([name, kept, pool, kept + pool, predicted or None])
    times = turns(comm, calls, rounds)
    return [
        [*row, 1e3 * times[row[0]].median, times[row[0]].ratio(times["GCNConv"]), abs(loss / losses[0] - 1)]
        for row, loss in zip(rows, losses, strict=True)
    ]


def where() -> str:
    """What was measured, and on what."""
    return f"{machine()} {GRAPH}, both ways, with self loops; {RANKS} ranks."


def windows(run: Run) -> Figure:
    """Aggregations in windows."""
    size, ratio = "{:.1f} MB", ".3f"
    columns = {
        "windows": "", "buffers, forward": size, "of the halo": ratio, "and backward": size, "of the halo, both": ratio,
        "ms, both": ".0f", "of whole": ".2f", "error": ".0e",
    }  # fmt: skip
    rows = on_ranks(aggregations, RANKS, run.path(GRAPH), run.rounds)
    return Figure(columns, rows, f"{where()} Rows of {WIDTH} float32.")


def stacks(run: Run) -> Figure:
    """A model's training step."""
    columns = dict.fromkeys(("rows kept", "buffers", "together", "predicted"), "{:.0f} MB")
    columns = {"stack": "", **columns, "ms a step": ".0f", "of GCNConv": ".2f", "loss differs by": ".0e"}
    rows = on_ranks(stacks_on_rank, RANKS, run.path(GRAPH), run.rounds)
    widths = ", ".join(map(str, CHANNELS))
    return Figure(
        columns, rows, f"{where()} A training step of widths {widths}, constant inputs, dropout 0.5:"
    )


FIGURES = {"windows": windows, "stacks": stacks}

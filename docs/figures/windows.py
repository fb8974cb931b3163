"""Aggregations in windows: what they hold, and how long they take. Two minutes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.graph import Graph, read_graph
from dgcl.partition import partition_graph
from dgcl.ranks.context import context
from docs.figures.framework import Figure, Run, both_ways, machine, on_ranks, sum_error, turns

PAGE = "windows.md"
GRAPH, RANKS, WIDTH = "ogbn_arxiv", 4, 128
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


FIGURES = {"windows": windows}

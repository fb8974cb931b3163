"""What placements of edges and balanced parts save: rows that travel, edges of the fullest rank, predicted time.

For each graph, in 8 METIS parts on a dgx1. Counts and times are the planner's, so they are the same on every machine;
the error is that of a sum over in-edges on 8 ranks that are threads. Some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import dgcl
from dgcl.graph import Graph
from dgcl.partition import BALANCES, balance_weights, partition_graph
from dgcl.planner import PlanOptions
from dgcl.program.strategy import Problem
from dgcl.topology import resolve_topology
from dgcl.topology.latencies import without_latencies
from dgcl.workers.exchanges import EDGES, Exchanges, exchanges_of, workers_of
from dgcl.workers.strategy import EdgePlacement
from docs.figures.framework import Figure, Run, both_ways, sum_error

PAGE = "placements.md"
PARTS, TOPOLOGY = 8, "dgx1"
GRAPHS = ("ogbn_arxiv", "web_google_scc", "coauthor_physics", "amazon_computers", "uk_2007_05_100k")
SYMMETRIC = ("ogbn_arxiv", "uk_2007_05_100k")  # also with every edge both ways
TWO = ("head", "cover")


def receipts(exchanges: Exchanges) -> int:
    """Rows and partial sums that the busiest rank receives."""
    received, fold = np.zeros(PARTS, np.int64), exchanges.fold.relation
    dests, counts = exchanges.expand.relation.dests[:, 0], exchanges.expand.relation.count
    for rank in range(PARTS):
        received[rank] = counts[(dests >> np.uint64(rank)) & np.uint64(1) > 0].sum()
    np.add.at(received, fold.source, fold.count * np.bitwise_count(fold.dests[:, 0]).astype(np.int64))
    return int(received.max())


def aggregate(graph: Graph, part: np.ndarray, x: torch.Tensor) -> torch.Tensor | None:
    """The sum over in-edges with the edges at a cover; whole, on rank 0."""
    comm = dgcl.build_comm_info(graph, TOPOLOGY, part=part, edges="cover")
    return comm.collect(comm.aggregator()(comm.dispatch_features(x)))


def rows_of(name: str, graph: Graph) -> Iterator[list[Any]]:
    """One row for each way to balance parts."""
    topology = without_latencies(resolve_topology(TOPOLOGY))
    for balance in BALANCES:
        weights = balance_weights(graph, balance, "metis")
        part = partition_graph(graph, PARTS, topology=topology, vertex_weights=weights)
        every = {e: exchanges_of(graph, part, workers_of(e, graph, part, PARTS), PARTS) for e in EDGES}
        problem = Problem(graph, part, topology, "auto", PlanOptions())
        moved = {edges: sum(one.rows) for edges, one in every.items()}
        x = torch.rand(graph.num_nodes, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        yield [
            name, balance, *(rows / graph.num_nodes for rows in moved.values()), moved["head"] / max(moved["cover"], 1),
            *(receipts(every[edges]) for edges in TWO), *(every[edges].imbalance for edges in TWO),
            *(1e6 * EdgePlacement(edges).planned(problem).exchange_seconds for edges in TWO),
            sum_error(graph, x, dgcl.launch(aggregate, PARTS, graph, part, x)[0]),
        ]  # fmt: skip


def placements(run: Run) -> Figure:
    """Each graph, as it is and both ways."""
    columns = {
        "graph": "", "parts of equal": "", **{f"rows/vertex {edges}": ".3f" for edges in EDGES}, "head / cover": ".2f",
        "busiest rank receives, head": "", "cover": "", **{f"edges max/mean {edges}": ".2f" for edges in TWO},
        "predicted us, head": ".1f", "predicted us, cover": ".1f", "error": ".0e",
    }  # fmt: skip

    def rows() -> Iterator[list[Any]]:
        for name in run.some(GRAPHS):
            yield from rows_of(name, run.graph(name))
            if name in SYMMETRIC:
                yield from rows_of(f"{name}, both ways", both_ways(run.graph(name), loops=False))

    return Figure(columns, rows())


FIGURES = {"placements": placements}

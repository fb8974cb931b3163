"""What placements of edges and balanced parts save: rows that travel, edges of the fullest rank, predicted time.

    python docs/benchmarks/placements.py GRAPHS/ [--write docs/placements.md]

For each graph file of a folder, in 8 METIS parts on a dgx1. All counts and times are the planner's, so they are the
same on every machine; the last column is an aggregation that was run, on 8 ranks that are threads. Some minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from marked import print_into
from scipy.sparse import csr_array
from windows import both_ways

import dgcl
from dgcl.graph import Graph
from dgcl.graph.files import read_graph
from dgcl.partition import BALANCES, balance_weights, partition_graph
from dgcl.topology import resolve_topology
from dgcl.topology.latencies import without_latencies
from dgcl.workers.exchanges import EDGES, Exchanges, exchanges_of, workers_of
from dgcl.workers.plans import plan_exchanges

PARTS, TOPOLOGY = 8, "dgx1"
GRAPHS = ("ogbn_arxiv", "web_google_scc", "coauthor_physics", "amazon_computers", "uk_2007_05_100k")
SYMMETRIC = ("ogbn_arxiv", "uk_2007_05_100k")  # also with every edge both ways
HEADER = (
    "graph",
    "parts of equal",
    *(f"rows/vertex {edges}" for edges in EDGES),
    "head / cover",
    "busiest rank receives, head",
    "cover",
    *(f"edges max/mean {edges}" for edges in ("head", "cover")),
    "predicted us, head",
    "cover",
    "error",
)


def receipts(made: Exchanges) -> int:
    """Rows and partial sums that the busiest rank receives."""
    received = np.zeros(PARTS, np.int64)
    relation = made.expand.relation
    for rank in range(PARTS):
        wants = (relation.dests[:, 0] >> np.uint64(rank)) & np.uint64(1) > 0
        received[rank] += relation.count[wants].sum()
    relation = made.fold.relation
    np.add.at(
        received, relation.source, relation.count * np.bitwise_count(relation.dests[:, 0]).astype(np.int64)
    )
    return int(received.max())


def aggregate(graph: Graph, part: np.ndarray, x: torch.Tensor) -> torch.Tensor | None:
    """The sum over in-edges with the edges at a cover; whole, on rank 0."""
    comm = dgcl.build_comm_info(graph, TOPOLOGY, part=part, edges="cover")
    return comm.collect(comm.aggregator()(comm.dispatch_features(x)))


def error_of(graph: Graph, part: np.ndarray) -> float:
    """The largest relative difference between that sum and a sparse product in float64."""
    x = torch.rand(graph.num_nodes, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ones = np.ones(graph.num_edges)
    shape = (graph.num_nodes, graph.num_nodes)
    wanted = csr_array((ones, graph.indices, graph.indptr), shape=shape) @ x.numpy()
    found = dgcl.launch(aggregate, PARTS, graph, part, x)[0]
    return float((np.abs(found.numpy() - wanted) / np.maximum(wanted, 1)).max())


def lines(name: str, graph: Graph) -> list[str]:
    """The rows of one graph."""
    topology, rows = without_latencies(resolve_topology(TOPOLOGY)), []
    for balance in BALANCES:
        weights = balance_weights(graph, balance, "metis")
        part = partition_graph(graph, PARTS, topology=topology, vertex_weights=weights)
        made = {e: exchanges_of(graph, part, workers_of(e, graph, part, PARTS), PARTS) for e in EDGES}
        moved = {edges: sum(one.rows) for edges, one in made.items()}
        seconds = {e: plan_exchanges(made[e], topology).exchange_seconds for e in ("head", "cover")}
        cells = [
            name,
            balance,
            *(f"{moved[edges] / graph.num_nodes:.3f}" for edges in EDGES),
            f"{moved['head'] / moved['cover']:.2f}",
            *(str(receipts(made[edges])) for edges in ("head", "cover")),
            *(f"{made[edges].imbalance:.2f}" for edges in ("head", "cover")),
            *(f"{1e6 * seconds[edges]:.1f}" for edges in ("head", "cover")),
            f"{error_of(graph, part):.0e}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", type=Path, help="folder of graph files")
    parser.add_argument("--write", default="", help="page to put the table into")
    given = parser.parse_args()
    rows = ["| " + " | ".join(HEADER) + " |", f"|{' --- |' * len(HEADER)}"]
    for name in GRAPHS:
        graph = read_graph(given.graphs / f"{name}.npz").graph
        rows += lines(name, graph)
        if name in SYMMETRIC:
            rows += lines(f"{name}, both ways", both_ways(graph, loops=False))
    print_into(given.write, "placements", "\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``dgcl partition --method auto``: METIS's and random parts side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dgcl.cli.output import print_table, seconds, step

if TYPE_CHECKING:
    from dgcl.graph import Graph
    from dgcl.prepare.parts_choice import PredictedParts
    from dgcl.topology import Topology


def predicted_parts(args: argparse.Namespace, graph: Graph, topology: Topology) -> list[PredictedParts]:
    """What an aggregation takes with METIS's and with random parts."""
    from dgcl.planner import PlanOptions
    from dgcl.planner.methods import METHODS
    from dgcl.prepare.parts_choice import predict_parts

    if args.work is not None:
        edge_seconds = args.work[0]
    else:
        from dgcl.frameworks.layer_work import measure_work

        with step("measuring what an edge costs here; for other ranks give --work"):
            edge_seconds = measure_work(args.row_bytes).edge
    options = PlanOptions(row_bytes=args.row_bytes, seed=args.seed)
    planner = args.planner if args.planner in METHODS else "auto"
    with step(f"partitioning {graph.num_nodes} vertices into {args.parts} parts by metis and at random"):
        return predict_parts(
            graph, topology, planner, options, balance=args.balance, edge_seconds=edge_seconds
        )


def prediction_facts(parts: PredictedParts) -> dict[str, Any]:
    """As JSON values."""
    return {
        "rows": parts.rows,
        "most_rows": parts.most_rows,
        "most_edges": int(parts.edges.max(initial=0)),
        "imbalance": parts.imbalance,
        "exchange_seconds": parts.exchange_seconds,
        "sum_seconds": parts.sum_seconds,
        "seconds": parts.seconds,
    }


def print_predicted(predicted: list[PredictedParts]) -> None:
    """A line for each way, the chosen one marked; edges summed at their heads."""
    chosen = min(predicted, key=lambda parts: parts.seconds)
    print()
    print_table(
        ("parts by", "rows", "most on a rank", "edges max/mean", "exchange", "sums", "aggregation"),
        [
            (
                f"{each.method} <-" if each is chosen else each.method,
                str(each.rows),
                str(each.most_rows),
                f"{each.imbalance:.2f}",
                seconds(each.exchange_seconds),
                seconds(each.sum_seconds),
                seconds(each.seconds),
            )
            for each in predicted
        ],
    )

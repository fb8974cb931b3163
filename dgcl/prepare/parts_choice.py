"""``partition="auto"``: METIS's parts or random ones, by the predicted seconds of an aggregation.

METIS keeps rows on their ranks, and on graphs with hubs gives some ranks far more edges than others; random parts have
almost equal numbers of edges, and send almost all rows. What is faster depends on the links and on what an edge takes
that is summed: both are planned, with edges summed at their heads, and the sums of the fullest rank added.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.partition import balance_weights, partition_graph
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.relation.classes import halo_classes

if TYPE_CHECKING:
    from dgcl.topology import Topology

__all__ = ["AUTO", "PredictedParts", "explain_parts", "fastest_parts", "predict_parts"]

AUTO = "auto"
_CANDIDATES = ("metis", "random")

_log = logging.getLogger("dgcl")


@dataclass(frozen=True, eq=False)
class PredictedParts:
    """Parts, and what an aggregation takes with them.

    Attributes:
        method: How they were made.
        part: (N,) int32 the owner of each vertex.
        rows: Rows that all ranks receive.
        most_rows: Rows of the rank that receives most.
        edges: (P,) in-edges of each part's vertices.
        exchange_seconds, sum_seconds: Predicted: of the exchange, and of the sums of the fullest rank.
    """

    method: str
    part: NDArray[np.int32]
    rows: int
    most_rows: int
    edges: NDArray[np.int64]
    exchange_seconds: float
    sum_seconds: float

    @property
    def seconds(self) -> float:
        """Both, one after the other."""
        return self.exchange_seconds + self.sum_seconds

    @property
    def imbalance(self) -> float:
        """Edges of the fullest rank over the mean; 1 where there are none."""
        return float(self.edges.max() / self.edges.mean()) if self.edges.any() else 1.0


def predict_parts(
    graph: Graph,
    topology: Topology,
    planner: str = "auto",
    options: PlanOptions | None = None,
    *,
    balance: str = "vertices",
    edge_seconds: float = 0.0,
    block: int = 1,
) -> list[PredictedParts]:
    """Make parts by each method, plan their exchange, and predict its seconds and those of the sums.

    Args:
        graph, topology: What is partitioned, for which machine.
        planner, options: As for :func:`dgcl.planner.make_plan`.
        balance, block: As for :func:`dgcl.partition.partition_graph`, of METIS.
        edge_seconds: What an edge takes that is summed.
    """
    options, num_parts = options or PlanOptions(), topology.num_devices
    candidates = []
    for method in _CANDIDATES:
        weights = balance_weights(graph, balance, method) if method == "metis" else None
        try:
            part = partition_graph(
                graph, num_parts, topology=topology, method=method, seed=options.seed, vertex_weights=weights,
                block=block,
            )  # fmt: skip
        except MemoryError as error:
            _log.warning("partition='auto' leaves %s out: %s", method, error)
            continue
        relation = halo_classes(graph, part, num_parts).relation
        plan = make_plan(relation, topology, planner, options)
        edges = np.bincount(part, weights=graph.in_degrees(), minlength=num_parts).astype(np.int64)
        candidates.append(
            PredictedParts(
                method,
                part,
                relation.deliveries,
                int(relation.pair_rows().sum(axis=0).max(initial=0)),
                edges,
                plan.predicted_seconds,
                edge_seconds * int(edges.max(initial=0)),
            )
        )
    return candidates


def fastest_parts(predicted: Sequence[PredictedParts]) -> PredictedParts:
    """What is predicted fastest, the first of those that are equally fast; logged at INFO."""
    chosen = min(predicted, key=lambda parts: parts.seconds)
    _log.info("%s", explain_parts(predicted, chosen))
    return chosen


def explain_parts(predicted: Sequence[PredictedParts], chosen: PredictedParts) -> str:
    """Why parts were chosen, in a line."""
    said = [
        f"{parts.method} {parts.seconds:.3g} s an aggregation ({parts.exchange_seconds:.3g} s of exchange),"
        f" {parts.rows} rows, {parts.imbalance:.2f} times the mean number of edges on the fullest rank"
        for parts in (chosen, *(other for other in predicted if other is not chosen))
    ]
    return f"partition='auto' chose {'; '.join(said)}"

"""No communication between layers: every rank holds all that its vertices depend on (the paper's
Replication).

To compute K layers alone, a rank holds its own vertices (ring 0) and all from which a path of at most K
edges leads to one of them: those at distance k are ring k. It computes every layer for all it holds. Rows of
ring K have no in-edges here and are wrong after the first layer, those of ring K - 1 after the second; own
rows are right after K layers, which is all that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dgcl.bench.problems import Problem, from_needs
from dgcl.build import Share, connect, prepare
from dgcl.communicator import Communicator
from dgcl.graph import Graph
from dgcl.local_graph import LocalGraph


@dataclass(frozen=True)
class ReplicationCost:
    """What K layers without communication cost, as factors of what the graph itself takes.

    Attributes:
        rows: Rows held by all ranks together, over vertices: memory, and the dense part of every layer.
        edges: Edges that all ranks sum over together in a layer, over edges.
    """

    rows: float
    edges: float


class ReplicatedCommunicator(Communicator):
    """A communicator whose layers exchange nothing.

    ``halo_ids`` are all replicas, and the local graph has all of them as heads as well. So a layer takes and
    gives ``num_local`` rows, :meth:`expand` has nothing to do, and the first ``num_owned`` rows of the last
    layer's output count. Inputs come with their replicas from ``dispatch_features(x, halo=True)``.
    """

    def expand(self, rows: Tensor) -> Tensor:
        """The rows, which are all here already.

        Raises:
            ValueError: They are not ``(num_local, *F)``.
        """
        self._check(rows, self.num_local, "num_owned + num_halo (replicas included)")
        return rows


def connect_replicated(
    problem: Callable[[], Problem], hops: int, timeout: float
) -> tuple[ReplicatedCommunicator, ReplicationCost]:
    """Give every rank what it needs for ``hops`` layers. Collective; ``problem`` is called on rank 0."""
    costs: list[ReplicationCost] = []

    def shares() -> Sequence[Share]:
        whole = problem()
        made = replicate(whole, hops)
        costs.append(replication_cost(whole, made))
        return made

    comm = connect(shares, ReplicatedCommunicator, timeout)
    cost: ReplicationCost = comm.control.broadcast(costs[0] if costs else None)
    return comm, cost


def replicate(problem: Problem, hops: int) -> list[Share]:
    """Every rank's share: a plan that brings all its replicas, and a local graph over them."""
    if hops < 1:
        raise ValueError(f"layers must be at least 1 (got {hops})")
    graph, part, world_size = problem.graph, problem.part, problem.world_size
    near = hops_away(graph, part, world_size, hops)
    needs = [(rank, np.flatnonzero(distance >= 0)) for rank, distance in enumerate(near)]
    wide = from_needs(f"{problem.name}, {hops} hops", part, world_size, needs)
    shares = prepare(wide.graph, world_size, f"uniform{world_size}", part=part, method="direct")
    return [
        replace(
            share,
            local=_graph_of_all(graph, share.program.owned_ids, share.program.halo_ids, distance < hops),
            sizes=(graph.num_nodes, graph.num_edges),
        )
        for share, distance in zip(shares, near, strict=True)
    ]


def replication_cost(problem: Problem, shares: Sequence[Share]) -> ReplicationCost:
    """Compare what the ranks hold with the graph."""
    rows = sum(share.program.num_local for share in shares)
    edges = sum(share.local.num_edges for share in shares)
    return ReplicationCost(rows / problem.graph.num_nodes, edges / max(problem.graph.num_edges, 1))


def hops_away(graph: Graph, part: NDArray[Any], world_size: int, hops: int) -> list[NDArray[np.int16]]:
    """For each rank ``(N,)`` int16: how many edges lead from each vertex to the nearest one of the rank's
    own, -1 beyond ``hops``.

    Time O(hops * E) for each rank.
    """
    heads = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    distances = []
    for rank in range(world_size):
        distance = np.where(part == rank, 0, -1).astype(np.int16)
        for hop in range(1, hops + 1):
            reached = graph.indices[distance[heads] == hop - 1]
            distance[reached[distance[reached] < 0]] = hop
        distances.append(distance)
    return distances


def _graph_of_all(
    graph: Graph, owned: NDArray[np.int64], replicas: NDArray[np.int64], complete: NDArray[np.bool_]
) -> LocalGraph:
    """The in-edges of all vertices that a rank holds, as far as it holds their sources (``complete``)."""
    held = np.concatenate([owned, replicas])
    local_of = np.full(graph.num_nodes, -1, np.int32)
    local_of[held] = np.arange(len(held), dtype=np.int32)
    in_degrees, out_degrees = graph.in_degrees()[held], graph.out_degrees()[held]
    here = np.where(complete[held], in_degrees, 0)
    indptr = np.concatenate([[0], np.cumsum(here)]).astype(np.int64)
    edges = np.arange(indptr[-1]) + np.repeat(graph.indptr[held] - indptr[:-1], here)
    return LocalGraph(
        owned_ids=held,
        halo_ids=np.empty(0, np.int64),
        indptr=indptr,
        indices=local_of[graph.indices[edges]],
        edge_first=graph.indptr[held],
        edge_order=None if graph.edge_ids is None else graph.edge_ids[edges],
        in_degrees=in_degrees,
        out_degrees=out_degrees,
        num_nodes_global=graph.num_nodes,
    )

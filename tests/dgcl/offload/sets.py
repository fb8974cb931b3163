"""Graphs in chunks for the tests, and what the definitions say of them, set by set."""

import numpy as np

from dgcl.graph import Graph, as_graph
from dgcl.offload.chunks import Chunk, Chunking, cut_chunk
from dgcl.relation.demand import halo_demand
from dgcl.relation.local_graph import LocalGraph
from tests.support.local_graphs import local_graph_of
from tests.support.proof import wanted_by

Sets = list[list[set[int]]]


def random_graph(num_nodes: int, num_edges: int, seed: int) -> Graph:
    """A directed multigraph with loops."""
    edges = np.random.default_rng(seed).integers(0, num_nodes, (2, num_edges))
    return as_graph(edges, num_nodes=num_nodes)


def local_graphs(graph: Graph, part: np.ndarray, num_ranks: int) -> list[LocalGraph]:
    wanted = halo_demand(graph, part, num_ranks)
    return [
        local_graph_of(graph, np.flatnonzero(part == rank), wanted_by(rank, wanted))
        for rank in range(num_ranks)
    ]


def chunks_of(
    graph: Graph, part: np.ndarray, num_ranks: int, num_chunks: int, chunk_by: str = "range"
) -> list[list[Chunk]]:
    """Chunks of every rank; "random" is no way of the library's."""

    def rows_of(local: LocalGraph) -> list[np.ndarray]:
        if chunk_by != "random":
            return Chunking(local, chunk_by).rows(num_chunks)
        pieces = np.array_split(np.random.default_rng(0).permutation(local.num_owned), num_chunks)
        return [np.sort(rows) for rows in pieces]

    return [
        [cut_chunk(local, rows) for rows in rows_of(local)] for local in local_graphs(graph, part, num_ranks)
    ]


def held_sets(reads: Sets, owner: np.ndarray) -> Sets:
    """M_ij by its definition."""
    unions = [set().union(*batch) for batch in zip(*reads, strict=True)]
    return [
        [{v for v in union if owner[v] == rank} | mine for union, mine in zip(unions, of_rank, strict=True)]
        for rank, of_rank in enumerate(reads)
    ]


def fewest_loads(held: list[set[int]], capacity: int) -> int:
    """Loads of the best of all caches of a capacity: every choice of what stays is tried."""
    costs = {frozenset[int](): 0}
    for need in held:
        after: dict[frozenset[int], int] = {}
        for cache, cost in costs.items():
            loads = cost + len(need - cache)
            spare = sorted(cache - need)
            for bits in range(1 << len(spare)):
                stays = {v for k, v in enumerate(spare) if bits >> k & 1}
                if len(stays) + len(need) <= capacity:
                    kept = frozenset(need | stays)
                    after[kept] = min(after.get(kept, loads), loads)
        costs = after
    return min(costs.values())

"""The graph of copies: what each machine holds, as one graph in parts.

Copies are numbered machine by machine; within a machine core copies come first, then replicas, each in ascending
order of their vertices. So ascending numbers, the order in which programs keep rows, put a rank's core rows
first.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.csr import Graph, index_dtype
from dgcl.relation.local_graph import RankEdges, edge_places, edges_into, pointer
from dgcl.replication.counts import CopyCounts


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies of all machines.

    Attributes:
        graph: The in-edges among them, each machine's apart; those of a vertex in the order of the vertex.
        origin: (C,) int64, the vertex of each copy.
        part: (C,) int32, the rank that keeps it.
        core: (P,) int64, how many of each rank's copies are core; its first ones.
    """

    graph: Graph
    origin: NDArray[np.int64]
    part: NDArray[np.int32]
    core: NDArray[np.int64]


def hop_distances(graph: Graph, core: NDArray[np.bool_], hops: int) -> NDArray[np.int16]:
    """(N,) how many edges lead from each vertex to the nearest of ``core`` (N,), at least; -1 beyond ``hops``."""
    from dgcl.replication.kernels import spread_hops

    hop_of = np.where(core, np.int16(0), np.int16(-1))
    spread_hops(graph.indptr, graph.indices, hop_of, hops)
    return hop_of


def copy_graph(graph: Graph, part: NDArray[np.int32], counts: CopyCounts) -> Copies:
    """Copy what each machine needs, and let its ranks share the replicas.

    A replica goes to the rank that reads it most, by edges from one hop nearer (hop by hop outwards), among
    those with free places: every rank keeps as many rows as :meth:`CopyCounts.owned` says. The same input gives
    the same copies. Time O(K * (N + E)) for each machine; memory as :meth:`CopyCounts.bytes_to_build` says, and 2
    bytes for each vertex of a hop set and rank of its machine.

    Args:
        graph: N vertices.
        part: (N,) owner of each.
        counts: Of this graph in these parts.
    """
    num_copies, num_edges = int(counts.rows.sum()), int(counts.edges.sum())
    origin = np.empty(num_copies, np.int64)
    keepers = np.empty(num_copies, np.int32)
    indptr = np.zeros(num_copies + 1, np.int64)
    indices = np.empty(num_edges, index_dtype(num_copies))
    number = np.full(graph.num_nodes, -1, indices.dtype)
    quota = counts.owned()
    degrees = graph.in_degrees()
    first = first_edge = 0
    for machine in range(len(counts.rows)):
        ranks = np.flatnonzero(counts.machine_of_rank == machine)
        hop_of = hop_distances(graph, counts.machine_of_rank[part] == machine, counts.hops)
        held = np.concatenate([np.flatnonzero(hop_of == 0), np.flatnonzero(hop_of > 0)])
        last = first + len(held)
        number[held] = np.arange(first, last, dtype=number.dtype)
        for of in (hop_of == 0, (hop_of > 0) & (hop_of < counts.hops)):  # as they are held
            sources = graph.indices[np.repeat(of, degrees)]
            indices[first_edge : first_edge + len(sources)] = number[sources]
            first_edge += len(sources)
        indptr[first + 1 : last + 1] = np.where(hop_of[held] < counts.hops, degrees[held], 0)
        origin[first:last] = held
        keepers[first:last] = _share_out(graph, part, hop_of, ranks, counts, quota)[held]
        number[held] = -1
        first = last
    np.cumsum(indptr, out=indptr)
    return Copies(Graph(num_copies, indptr, indices), origin, keepers, counts.core)


def _share_out(
    graph: Graph,
    part: NDArray[np.int32],
    hop_of: NDArray[np.int16],
    ranks: NDArray[np.int64],
    counts: CopyCounts,
    quota: NDArray[np.int64],
) -> NDArray[np.int32]:
    """(N,) int32: the rank that keeps each vertex's copy on this machine; -1 where there is none."""
    from dgcl.replication.kernels import assign_keepers, count_votes

    local_rank = np.full(len(counts.core), -1, np.int32)  # rank -> its number within the machine
    local_rank[ranks] = np.arange(len(ranks), dtype=np.int32)
    keeper = np.where(hop_of == 0, local_rank[part], np.int32(-1))
    free = (quota - counts.core)[ranks]
    place = np.full(graph.num_nodes, -1, np.int32)
    for hop in range(1, counts.hops + 1):
        members = np.flatnonzero(hop_of == hop)
        place[members] = np.arange(len(members), dtype=np.int32)
        votes = np.zeros((len(members), len(ranks)), np.uint16)
        count_votes(graph.indptr, graph.indices, hop_of, hop, place, keeper, votes)
        kept = np.empty(len(members), np.int32)
        assign_keepers(votes, free, kept)
        keeper[members] = kept
    assert not free.any()
    return np.where(keeper >= 0, ranks.astype(np.int32)[keeper], np.int32(-1))


def edges_of_copies(copies: Copies, graph: Graph, rank: int) -> RankEdges:
    """The edges of a rank's copies, with the places that they have in ``graph``."""
    mine = np.flatnonzero(copies.part == rank)
    edges, first = edges_into(copies.graph, mine), graph.indptr[copies.origin[mine]]
    order = None if graph.edge_ids is None else graph.edge_ids[edge_places(first, pointer(edges.degrees))]
    return replace(edges, first=first, order=order)

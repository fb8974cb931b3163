"""The edges that each rank sums, in local ids, where ranks other than their heads' owners sum some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.program.strategy import Rows
from dgcl.relation.local_graph import LocalGraph

__all__ = ["build_worker_graphs"]


def build_worker_graphs(
    graph: Graph, worker: NDArray[np.int32], rows: Iterable[Rows]
) -> Iterator[LocalGraph]:
    """The local graphs of ranks, one at a time; :func:`~dgcl.relation.local_graph.build_local_graphs` for workers.

    In-edges of a head keep the order of the graph. Memory: 16 bytes for each edge and 8 for each vertex, beside the
    graph of one rank.

    Args:
        graph: The whole graph.
        worker: (E,) the rank that sums each edge, in the order of ``graph.indices``.
        rows: Of each rank, in the order of ranks.

    Raises:
        ValueError: A rank sums an edge of which it has no row.
    """
    num_ranks = int(worker.max(initial=-1)) + 1
    by_worker = np.argsort(worker, kind="stable")
    first = np.zeros(num_ranks + 1, np.int64)
    np.cumsum(np.bincount(worker, minlength=num_ranks), out=first[1:])
    heads = np.repeat(np.arange(graph.num_nodes, dtype=graph.indices.dtype), graph.in_degrees())
    in_degrees, out_degrees = graph.in_degrees(), graph.out_degrees()
    for rank, (owned, halo, partial) in enumerate(rows):
        mine = by_worker[first[rank] : first[rank + 1]] if rank < num_ranks else by_worker[:0]
        head = _numbered(heads[mine], (owned, partial), graph.num_nodes, rank)
        order = np.argsort(head, kind="stable")
        mine = mine[order]
        indptr = np.zeros(len(owned) + len(partial) + 1, np.int64)
        np.cumsum(np.bincount(head, minlength=len(indptr) - 1), out=indptr[1:])
        local = np.concatenate([owned, halo])
        yield LocalGraph(
            owned_ids=owned,
            halo_ids=halo,
            indptr=indptr,
            indices=_numbered(graph.indices[mine], (owned, halo), graph.num_nodes, rank),
            edge_first=graph.indptr[owned],
            edge_order=mine if graph.edge_ids is None else graph.edge_ids[mine],
            in_degrees=in_degrees[local],
            out_degrees=out_degrees[local],
            num_nodes_global=graph.num_nodes,
            partial_ids=partial,
            partial_in_degrees=in_degrees[partial],
        )


def _numbered(
    ids: NDArray[np.int32], rows: tuple[NDArray[np.int64], NDArray[np.int64]], num_nodes: int, rank: int
) -> NDArray[np.int32]:
    """The local row of each vertex: first those of ``rows[0]``, then those of ``rows[1]``."""
    row_of = np.full(num_nodes, -1, np.int32)
    row_of[rows[0]] = np.arange(len(rows[0]))
    row_of[rows[1]] = np.arange(len(rows[0]), len(rows[0]) + len(rows[1]))
    numbers = row_of[ids]
    if len(numbers) and numbers.min() < 0:
        missing = int(ids[np.argmin(numbers)])
        raise ValueError(f"rank {rank} sums an edge of vertex {missing}, of which it has no row")
    return numbers

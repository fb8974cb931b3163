"""What it would cost to replicate instead of communicate (DGCL paper, section 2.2 and Figure 4)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.graph.csr import require_graph
from dgcl.partition.check import as_num_parts, check_part
from dgcl.partition.streaming import EdgeStream, blocks_of
from dgcl.topology.checks import check_index


def replication_factors(graph: Graph, part: Any, num_parts: int, hops: int = 3) -> NDArray[np.float64]:
    """Return how many parts hold a vertex on average, if each holds all that K layers read.

    To compute K layers without communication, a part must hold its own vertices and every vertex from which a
    path of at most K edges leads to one of them. The factor is the number of vertices that all parts hold
    together, divided by the number of vertices; 1 means no replication.

    Args:
        graph: the graph.
        part: (N,) integers, the owner of each vertex.
        num_parts: number of parts P.
        hops: the largest K, >= 1.

    Returns:
        (hops,) float64, the factors for K = 1, 2, ..., hops.

    Raises:
        ValueError, TypeError: `part` does not fit the graph or `num_parts`.
    """
    require_graph(graph)
    num_parts = as_num_parts(num_parts)
    owners = check_part(part, graph.num_nodes, num_parts)
    held = np.zeros(check_hops(hops) + 1, np.int64)
    for _, hop, masks in holders_by_hop(graph, owners, num_parts, hops):
        held[hop] += np.bitwise_count(masks).sum(dtype=np.int64)
    return held[1:] / graph.num_nodes


def holders_by_hop(
    graph: Graph | EdgeStream, owners: NDArray[np.int32], num_parts: int, hops: int
) -> Iterator[tuple[int, int, NDArray[np.uint64]]]:
    """Yield ``(first, hop, masks)`` for hops from 0 on, 64 parts at a time.

    Bit b of ``masks[v]`` tells whether part ``first + b`` holds v for ``hop`` layers; masks are valid until the
    next but one. Parts are taken 64 at a time, one bit each, and spread along the edges hop by hop: time O(hops * E *
    P / 64), memory 16 bytes per vertex however large the neighbourhoods are.
    """
    from dgcl.partition.kernels import spread_holders

    for first in range(0, num_parts, 64):
        inside = (owners >= first) & (owners < first + 64)
        now = np.where(inside, np.uint64(1) << (owners & 63).astype(np.uint64), np.uint64(0))
        yield first, 0, now
        after = np.empty_like(now)
        for hop in range(1, hops + 1):
            after[:] = now
            for block in blocks_of(graph):
                spread_holders(block.indptr, block.indices, now, after)
            now, after = after, now
            yield first, hop, now


def check_hops(hops: Any) -> int:
    """Return a number of hops as an int.

    Raises:
        TypeError, ValueError: not an integer from 1 to 1000.
    """
    return check_index(hops, "hops", 1, 1000)

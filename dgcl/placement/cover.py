"""Chooses the rank that sums each edge so that the fewest rows travel: the placement "cover".

Between ranks i and j an edge from u (owned by i) to v (owned by j) is served if u's row travels to j, or a partial sum
for v travels from i. The rows that serve all edges of the pair are a vertex cover of a bipartite graph, and a smallest
one is as large as a maximum matching (Koenig's theorem). Loops are in ``cover_kernels``.
Called by `exchanges`. Free to change while no cover found by a maximum matching has fewer rows, an early end costs no
more than is reported, and no rank exceeds ``imbalance`` that would not with sums at the head
(`tests/dgcl/placement/test_exchanges.py`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.graph.csr import index_dtype

# A node belongs to one ordered pair, (u, j) or
# (v, i), so all pairs with the same j are one bipartite graph, and one run of a matching algorithm covers them.
#
# The cover is Koenig's: nodes of the left side that no alternating path reaches from an unmatched left node, and
# nodes of the right side that one reaches. Every node of a minimum cover serves an edge that no other serves, so as
# many rows travel as the matching has edges. A matching that takes too long ends early: the cover is then nearly
# minimum. No more rows travel than with ``head`` or ``tail`` either way.
#
# It counts rows for each pair: a row that travels to two ranks of another machine counts twice although a plan may
# carry it there once. With ``group`` the pairs are those of groups of ranks (machines), and edges within a group are
# summed at the head.
#: Edges that a matching looks at: in any, and for each cut edge into its group. Few graphs need as many.
MOST = 10**8, 10


def cover(
    graph: Graph,
    part: NDArray[np.int32],
    num_parts: int,
    *,
    group: NDArray[np.int64] | None = None,
    imbalance: float | None = None,
) -> tuple[NDArray[Any], int]:
    """The rank that sums every edge under a minimum vertex cover of each pair of ranks.

    Time O(M) for M cut edges between nodes (a vertex and a rank), after which a matching ends early. Memory, beside the
    result, 16 bytes for each cut edge into a group, and about 20 for each node.

    Args:
        graph: The graph.
        part: (N,) the owner of each vertex.
        num_parts: How many ranks.
        group: (P,) the group of each rank, in which an edge is summed at its head; None: every rank by itself.
        imbalance: No rank sums more than this times the mean number of edges, or than it would with every edge at
            its head: partial sums that save the fewest rows for each edge are given up first. None: no bound.

    Returns:
        (E,) the rank that sums each edge, in the order of ``graph.indices``; and how many rows a minimum cover may
        save where a matching ended early, else 0.
    """
    from dgcl.placement import cover_kernels

    groups = np.arange(num_parts) if group is None else np.asarray(group)
    part, home = (each.astype(np.min_scalar_type(num_parts)) for each in (part, groups[part]))
    degrees, excess = graph.in_degrees(), 0
    summed_by = np.repeat(part, degrees)
    heads = np.flatnonzero(degrees)
    heads = heads[np.argsort(home[heads], kind="stable")]
    for mine in np.split(heads, np.flatnonzero(np.diff(home[heads])) + 1):
        nodes = np.empty((3, degrees[mine].sum()), index_dtype(graph.num_edges))
        *sizes, num_cut = cover_kernels.join_cut(graph.indptr, graph.indices, mine, home, *nodes)
        left, right, cut = nodes[:, :num_cut]
        sent, more = cover_kernels.sent_rows(left, right, *sizes, MOST[0] + MOST[1] * num_cut)
        at_tail = cut[~sent[left]]
        summed_by[at_tail] = part[graph.indices[at_tail]]
        excess += more
    if imbalance is not None:
        _give_up(summed_by, graph, part, num_parts, imbalance)
    return summed_by, excess


def _give_up(
    summed_by: NDArray[Any], graph: Graph, part: NDArray[Any], num_parts: int, imbalance: float
) -> None:
    """Give partial sums up, back to the owners of their heads, to keep every rank's edges within the bound."""
    heads = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    at_tail = np.flatnonzero(summed_by != part[heads])
    own = np.bincount(part[heads], minlength=num_parts)
    load = np.bincount(summed_by, minlength=num_parts)
    most = np.maximum(imbalance * len(heads) / num_parts, own)
    # A head and the rank that sums it make one partial sum, given up as a whole: it saves at most one row for each of
    # its edges, so the shortest go first.
    keys, sums, edges = np.unique(
        heads[at_tail] * num_parts + summed_by[at_tail], return_inverse=True, return_counts=True
    )
    place, owner = keys % num_parts, part[keys // num_parts]
    dropped = np.zeros(len(keys), bool)
    # The owners get these edges back and may then have to give up sums of their own: repeated until no load changes.
    while True:
        before = dropped.sum()
        for rank in np.flatnonzero(load > most):
            mine = np.flatnonzero((place == rank) & ~dropped)
            mine = mine[np.argsort(edges[mine], kind="stable")]
            taken = mine[: np.searchsorted(np.cumsum(edges[mine]), load[rank] - most[rank]) + 1]
            dropped[taken] = True
            load[rank] -= edges[taken].sum()
            np.add.at(load, owner[taken], edges[taken])
        if dropped.sum() == before:
            break
    back = at_tail[dropped[sums]]
    summed_by[back] = part[heads[back]]

"""``cover``: edges summed so that the fewest rows travel, by a minimum vertex cover of each pair of ranks.

Between ranks i and j an edge from u (owned by i) to v (owned by j) is served if u's row travels to j, or a partial
sum for v travels from i. The rows that serve all edges of the pair are a vertex cover of a bipartite graph, and a
smallest one is as large as a maximum matching (Koenig's theorem). A node belongs to one ordered pair, (u, j) or
(v, i), so all pairs are one bipartite graph and one run of Hopcroft and Karp's algorithm (scipy's) covers them all.

The cover is Koenig's: nodes of the left side that no alternating path reaches from an unmatched left node, and
nodes of the right side that one reaches. Every node of a minimum cover serves an edge that no other serves, so as
many rows travel as the matching has edges, never more than with ``head`` or ``tail``.

It counts rows for each pair: a row that travels to two ranks of another machine counts twice although a plan may
carry it there once. With ``group`` the pairs are those of groups of ranks (machines), and edges within a group are
summed at the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph


def cover(
    graph: Graph,
    part: NDArray[np.int32],
    num_parts: int,
    *,
    group: NDArray[np.int64] | None = None,
    imbalance: float | None = None,
) -> NDArray[np.int32]:
    """The worker of every edge under a minimum vertex cover of each pair of ranks.

    Time O(M sqrt(N)) for M cut edges between N nodes (a vertex and a rank), in practice near O(M); memory about 60
    bytes for each cut edge beside the result.

    Args:
        graph: The graph.
        part: (N,) the owner of each vertex.
        num_parts: How many ranks.
        group: (P,) the group of each rank, in which an edge is summed at its head; None: every rank by itself.
        imbalance: No rank sums more than this times the mean number of edges, or than it would with every edge at
            its head: partial sums that save the fewest rows for each edge are given up first. None: no bound.

    Returns:
        (E,) int32 the rank that sums each edge, in the order of ``graph.indices``.

    Raises:
        ValueError: ``imbalance`` below 1.
    """
    if imbalance is not None and not imbalance >= 1:
        raise ValueError(f"imbalance must be at least 1, the mean (got {imbalance!r})")
    heads = np.repeat(np.arange(graph.num_nodes, dtype=graph.indices.dtype), graph.in_degrees())
    head_owner, tail_owner = part[heads], part[graph.indices]
    worker = head_owner.copy()
    groups = np.arange(num_parts) if group is None else np.asarray(group)
    to, come = groups[head_owner], groups[tail_owner]
    cut = np.flatnonzero(to != come)
    if len(cut) == 0:
        return worker
    pairs = _Pairs.of(graph.indices[cut], to[cut], heads[cut], come[cut], len(groups))
    by_tail = ~pairs.sent()[pairs.left]
    if imbalance is not None:
        by_tail &= ~_given_up(pairs, by_tail, head_owner, tail_owner[cut], cut, num_parts, imbalance)
    worker[cut[by_tail]] = tail_owner[cut][by_tail]
    return worker


@dataclass(frozen=True, eq=False)
class _Pairs:
    """All bipartite graphs between pairs of groups as one.

    Attributes:
        left, right: (M,) the nodes of each cut edge: (tail, group of the head) and (head, group of the tail).
        num_left, num_right: How many nodes each side has.
    """

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    num_left: int
    num_right: int

    @classmethod
    def of(cls, tails: Any, to: Any, heads: Any, come: Any, num_groups: int) -> _Pairs:
        """Number the nodes that the cut edges have."""
        left, num_left = _numbered(tails.astype(np.int64) * num_groups + to)
        right, num_right = _numbered(heads.astype(np.int64) * num_groups + come)
        return cls(left, right, num_left, num_right)

    def sent(self) -> NDArray[np.bool_]:
        """(num_left,) whether a tail's row is sent: left nodes of Koenig's cover."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching

        ones = np.ones(len(self.left), np.int8)
        edges = csr_array((ones, (self.left, self.right)), shape=(self.num_left, self.num_right))
        edges.sum_duplicates()
        partner = maximum_bipartite_matching(edges, perm_type="column").astype(np.int64)
        matched = np.flatnonzero(partner >= 0)
        if len(matched) == self.num_left:
            return np.ones(self.num_left, bool)
        # Alternating paths: from a source to unmatched left nodes, by any edge to the right, by a matching edge back.
        num_nodes = self.num_left + self.num_right + 1
        free = np.flatnonzero(partner < 0)
        indptr = np.zeros(num_nodes + 1, np.int64)
        indptr[1 : self.num_left + 1] = np.diff(edges.indptr)
        indptr[self.num_left + partner[matched] + 1] = 1
        indptr[num_nodes] = len(free)
        np.cumsum(indptr, out=indptr)
        back = np.argsort(partner[matched])
        indices = np.concatenate([edges.indices + self.num_left, matched[back], free])
        paths = csr_array((np.ones(len(indices), np.int8), indices, indptr), shape=(num_nodes, num_nodes))
        reached = breadth_first_order(paths, num_nodes - 1, directed=True, return_predecessors=False)
        sent = np.ones(self.num_left, bool)
        sent[reached[reached < self.num_left]] = False
        return sent


def _numbered(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Equal keys as equal numbers from 0 on, and how many there are."""
    unique, numbers = np.unique(keys, return_inverse=True)
    return numbers, len(unique)


def _given_up(
    pairs: _Pairs,
    by_tail: NDArray[np.bool_],
    head_owner: NDArray[np.int32],
    tail_owner: NDArray[np.int32],
    cut: NDArray[np.int64],
    num_parts: int,
    imbalance: float,
) -> NDArray[np.bool_]:
    """(M,) cut edges whose partial sums are given up to keep their workers within the bound."""
    own = np.bincount(head_owner, minlength=num_parts)
    at_tail = np.flatnonzero(by_tail)
    load = own + np.bincount(tail_owner[at_tail], minlength=num_parts)
    load -= np.bincount(head_owner[cut[at_tail]], minlength=num_parts)
    most = np.maximum(imbalance * len(head_owner) / num_parts, own)
    # A right node and the rank that sums it make one partial sum, given up as a whole: it saves at most one row for
    # each of its edges, so the shortest go first.
    sums, num_sums = _numbered(pairs.right[at_tail] * num_parts + tail_owner[at_tail])
    edges = np.bincount(sums, minlength=num_sums)
    worker, owner = np.zeros(num_sums, np.int64), np.zeros(num_sums, np.int64)
    worker[sums], owner[sums] = tail_owner[at_tail], head_owner[cut[at_tail]]
    dropped = np.zeros(num_sums, bool)
    # The owners get these edges back and may then have to give up sums of their own: repeated until no load changes.
    while True:
        before = dropped.sum()
        for rank in np.flatnonzero(load > most):
            mine = np.flatnonzero((worker == rank) & ~dropped)
            mine = mine[np.argsort(edges[mine], kind="stable")]
            taken = mine[: np.searchsorted(np.cumsum(edges[mine]), load[rank] - most[rank]) + 1]
            dropped[taken] = True
            load[rank] -= edges[taken].sum()
            np.add.at(load, owner[taken], edges[taken])
        if dropped.sum() == before:
            break
    result = np.zeros(len(cut), bool)
    result[at_tail[dropped[sums]]] = True
    return result

"""Computes the two exchanges of an aggregation: rows sent to the ranks that sum edges, partial sums sent to owners.

The first is called *expand*, the second *fold*; the definition stands below. Each is a relation of vertices and ranks
that a planner takes as it takes any other. The ranks of a fold are its *contributors*: it is planned as the expand of
the same relation, whose way its rows travel backwards.
Called by `placement_strategy`, `dgcl/grid/grid_strategy`, `dgcl/prepare/local_edges` and `dgcl/communicator`. Free to
change while each edge's sum finds its source's row and the owner of its head, with as many rows as sets of pairs say
(`tests/dgcl/placement/test_exchanges.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.placement.cover import cover
from dgcl.relation.classes import ItemClasses, build_classes
from dgcl.relation.demand import demand_of_pairs

#: Placements of edges, by the names that users type.
EDGES = ("head", "tail", "cover")


# With summed_by(u, v) the rank that sums edge u->v:
#
#     expand = {(u, r): summed_by(u, v) = r for some v, r != owner(u)}      the ranks that want u's row
#     fold   = {(v, r): summed_by(u, v) = r for some u, r != owner(v)}      the ranks that contribute to v
#     aggregate = fold . local sum . expand         its adjoint: fold of gradients . local sum^T . expand of those of y
#
# Every edge is summed by one rank, which has x_u and contributes to y_v by definition, so y is the full sum. Rows
# received in one aggregation, over all ranks: those of both demands together; its adjoint moves as many.
@dataclass(frozen=True, eq=False)
class Exchanges:
    """What travels in an aggregation.

    Attributes:
        summed_by: (E,) the rank that sums each edge, in the order of ``graph.indices``.
        expand: Vertices by the ranks that want their rows.
        fold: Vertices by the ranks that contribute partial sums to them.
        edges: (P,) int64 edges that each rank sums.
    """

    summed_by: NDArray[Any]
    expand: ItemClasses
    fold: ItemClasses
    edges: NDArray[np.int64]

    @property
    def rows(self) -> tuple[int, int]:
        """Rows received by all ranks: (expanded, folded)."""
        return self.expand.relation.deliveries, self.fold.relation.deliveries


def imbalance_of(edges: NDArray[np.int64]) -> float:
    """Edges of the fullest rank over the mean; 1 where there are no edges."""
    return float(edges.max() / edges.mean()) if edges.any() else 1.0


def summing_ranks(
    edges: str,
    graph: Graph,
    part: NDArray[np.int32],
    num_parts: int,
    *,
    group: NDArray[np.int64] | None = None,
    imbalance: float | None = None,
) -> tuple[NDArray[Any], int]:
    """``(E,)`` the rank that sums each edge, in the order of ``graph.indices``, by the name of the way to choose it.

    Also how many rows a minimum cover may save, where it was not found: see :func:`dgcl.placement.cover.cover`.

    Args:
        edges: One of :data:`EDGES`.
        graph, part, num_parts: The graph, the owner of each vertex, and how many ranks there are.
        group, imbalance: As for :func:`dgcl.placement.cover.cover`; for ``cover`` alone.

    Raises:
        ValueError: An unknown name.
    """
    if edges == "cover":
        return cover(graph, part, num_parts, group=group, imbalance=imbalance)
    owner = part.astype(np.min_scalar_type(num_parts))
    if edges == "head":
        return np.repeat(owner, graph.in_degrees()), 0
    if edges == "tail":
        return owner[graph.indices], 0
    raise ValueError(f"edges must be one of {', '.join(EDGES)} (got {edges!r})")


def exchanges_of(graph: Graph, part: NDArray[np.int32], summed_by: NDArray[Any], num_parts: int) -> Exchanges:
    """The exchanges that a placement has.

    Args:
        graph: The graph.
        part: (N,) the owner of each vertex.
        summed_by: (E,) the rank that sums each edge, of :func:`summing_ranks`.
        num_parts: How many ranks.

    Raises:
        ValueError: ``summed_by`` has another length than the graph's edges.
    """
    if len(summed_by) != graph.num_edges:
        raise ValueError(
            f"summed_by must have an entry for each of the graph's {graph.num_edges} edges (got {len(summed_by)})"
        )
    heads = np.repeat(np.arange(len(part), dtype=graph.indices.dtype), graph.in_degrees())
    expand, fold = (
        build_classes(demand_of_pairs(part, ends, summed_by, num_parts)) for ends in (graph.indices, heads)
    )
    pieces = np.array_split(summed_by, num_parts)  # which are counted as int64
    edges = np.sum([np.bincount(each, minlength=num_parts) for each in pieces], 0)
    return Exchanges(summed_by, expand, fold, edges)

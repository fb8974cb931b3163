"""What :mod:`tests.dgcl.placement.test_exchanges` shares with other tests."""

import numpy as np

from dgcl.graph import Graph, as_graph
from dgcl.relation.classes import ItemClasses


def toy_24() -> Graph:
    """u -> (u + 1) mod 24, u -> (5 u + 2) mod 24 and u -> u, without duplicates: 72 edges."""
    edges = {(u, v) for u in range(24) for v in ((u + 1) % 24, (5 * u + 2) % 24, u)}
    return as_graph(np.array(sorted(edges)).T, 24)


def in_ranges(num_nodes: int, num_parts: int) -> np.ndarray:
    return (np.arange(num_nodes) * num_parts // num_nodes).astype(np.int32)


def pairs(graph: Graph) -> list[tuple[int, int]]:
    """(tail, head) of each edge, in the order of ``graph.indices``."""
    heads = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    return list(zip(graph.indices.tolist(), heads.tolist(), strict=True))


def sets_of(classes: ItemClasses) -> set[tuple[int, int]]:
    """(vertex, rank) pairs of a relation."""
    found = set()
    items = np.split(classes.items, np.cumsum(classes.relation.count))
    for words, of_class in zip(classes.relation.dests, items, strict=False):
        ranks = [r for r in range(classes.relation.world_size) if int(words[r // 64]) >> (r % 64) & 1]
        for item in of_class.tolist():
            found |= {(item, rank) for rank in ranks}
    return found


def star(num_leaves: int) -> tuple[Graph, np.ndarray]:
    """Leaves of rank 0, all read by one vertex of rank 1: one partial sum instead of all rows."""
    edges = np.stack([np.arange(num_leaves), np.full(num_leaves, num_leaves)])
    return as_graph(edges, num_leaves + 1), np.array([0] * num_leaves + [1], np.int32)

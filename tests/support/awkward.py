"""Graphs that break what assumes too much, with partitions of them, for the tests of what runs on ranks."""

from dataclasses import dataclass

import numpy as np

from dgcl.graph import Graph, as_graph
from dgcl.relation.local_graph import LocalGraph
from tests.support.local_graphs import local_graph_of


@dataclass(frozen=True)
class Case:
    """A graph, how its vertices are dealt to ranks, and which of them are trained on."""

    name: str
    edges: np.ndarray  # (2, E) int64
    num_nodes: int
    train: np.ndarray  # (N,) bool
    in_blocks: bool = False  # whether ranks own ranges of vertices, or vertices in turn

    def part(self, world_size: int) -> np.ndarray:
        vertices = np.arange(self.num_nodes)
        return vertices * world_size // self.num_nodes if self.in_blocks else vertices % world_size

    @property
    def graph(self) -> Graph:
        return as_graph(self.edges, num_nodes=self.num_nodes)

    def local_graphs(self, world_size: int) -> list[LocalGraph]:
        """What each rank would hold; halo rows in an order that no one would guess."""
        part = self.part(world_size)
        rows = []
        for rank in range(world_size):
            read = np.unique(self.edges[0][part[self.edges[1]] == rank])
            halo = np.random.default_rng(rank).permutation(read[part[read] != rank])
            rows.append((np.flatnonzero(part == rank), halo))
        return [local_graph_of(self.graph, *each) for each in rows]

    def __str__(self) -> str:
        return self.name


def _random_edges(num_nodes: int, num_edges: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, num_nodes, (2, num_edges))


def _both_ways(edges: np.ndarray) -> np.ndarray:
    return np.concatenate([edges, edges[::-1]], axis=1)


def _cases() -> list[Case]:
    every_third = np.arange(26) % 3 == 0
    plain = _random_edges(26, 90, seed=1)
    plain = plain[:, plain[0] != plain[1]]
    loops = np.tile(np.array([1, 1, 4, 9, 9, 9, 20]), (2, 1))
    few = _random_edges(18, 60, seed=3)
    islands = np.concatenate([_random_edges(13, 40, seed=4), 13 + _random_edges(13, 40, seed=5)], axis=1)
    hub = np.stack([np.arange(1, 26), np.zeros(25, np.int64)])
    return [
        Case("directed", plain, 26, every_third),
        Case("self-loops", np.concatenate([plain, loops], axis=1), 26, every_third),
        Case("multi-edges", np.concatenate([plain[:, :40], plain, plain[:, 20:30]], axis=1), 26, every_third),
        Case("isolated-vertices", few, 26, every_third, in_blocks=True),  # on all of the last of 3 or 4 ranks
        Case("no-halo-on-two-ranks", islands, 26, every_third, in_blocks=True),
        Case("one-rank-trains", plain, 26, np.arange(26) < 3, in_blocks=True),
        Case("fewer-vertices-than-ranks", np.array([[0, 1, 2, 0, 2], [1, 2, 0, 0, 0]]), 3, np.arange(3) < 2),
        Case("hub", _both_ways(hub), 26, every_third),
        Case("no-edges", np.zeros((2, 0), np.int64), 26, every_third),
    ]


CASES = _cases()
"""All of them."""

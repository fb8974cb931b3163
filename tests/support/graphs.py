"""Graphs for tests: random multigraphs, the worked example, and the real ones where they are present."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from dgcl.graph import Graph

REAL_GRAPHS = Path(__file__).parents[3] / "shared" / "data" / "graphs"

# Edges u->v between three parts, with what each pair of parts exchanges, found by hand.
HAND_EDGES = np.array([[0, 0, 1, 2, 3, 4, 5], [1, 5, 2, 4, 0, 3, 2]])
HAND_PART = np.array([0, 0, 1, 1, 2, 2])
HAND_NEEDS = {(0, 1): {1}, (0, 2): {0}, (1, 0): {3}, (1, 2): {2}, (2, 1): {4, 5}}


@st.composite
def edge_indices(draw: st.DrawFn, max_nodes: int = 20, max_edges: int = 60) -> tuple[int, NDArray[np.int64]]:
    """(N, edge_index (2, E)): any directed multigraph, with loops and isolated vertices."""
    num_nodes = draw(st.integers(1, max_nodes))
    vertices = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(vertices, vertices), max_size=max_edges))
    return num_nodes, np.array(edges, np.int64).reshape(-1, 2).T


def edge_list(graph: Graph) -> list[tuple[int, int]]:
    """A graph's edges (u, v) in the user's order."""
    sources, destinations = graph.edges()
    return list(zip(sources.tolist(), destinations.tolist(), strict=True))


def random_parts(num_nodes: int, num_parts: int, seed: int) -> NDArray[np.int64]:
    """A part for every vertex, each as likely; parts may be empty."""
    return np.random.default_rng(seed).integers(0, num_parts, num_nodes)


def real_graph(name: str) -> Path:
    """The path of a real graph; the test is skipped where it is not."""
    path = REAL_GRAPHS / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not present")
    return path

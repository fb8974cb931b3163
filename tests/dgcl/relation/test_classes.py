"""dgcl.relation.classes: who reads whom, against the definition."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import as_graph
from dgcl.relation.classes import ItemClasses, halo_classes
from tests.support.graphs import HAND_EDGES, HAND_NEEDS, HAND_PART, edge_indices, random_parts
from tests.support.samples import named


def as_dict(classes: ItemClasses) -> dict[tuple[int, int], list[int]]:
    """(source, destinations as an integer) -> vertices, in the order of the classes."""
    relation = classes.relation
    items = np.split(classes.items, np.cumsum(relation.count))
    return {
        (int(relation.source[c]), sum(1 << d for d in relation.dest_ranks(c))): items[c].tolist()
        for c in range(relation.num_classes)
    }


def expected_classes(edges: np.ndarray, part: np.ndarray) -> dict[tuple[int, int], list[int]]:
    """The same, vertex by vertex."""
    dests: dict[int, int] = {}
    for u, v in edges.T.tolist():
        if part[u] != part[v]:
            dests[u] = dests.get(u, 0) | 1 << int(part[v])
    classes: dict[tuple[int, int], list[int]] = {}
    for u in sorted(dests):
        classes.setdefault((int(part[u]), dests[u]), []).append(u)
    return dict(sorted(classes.items()))


def assert_consistent(classes: ItemClasses):
    assert len(classes.items) == classes.relation.num_vertices


@pytest.mark.parametrize("world_size", [3, 8, 9, 64, 65, 1024])
def test_worked_example(world_size: int):
    classes = halo_classes(as_graph(HAND_EDGES), HAND_PART, world_size)
    needs: dict[tuple[int, int], set[int]] = {}
    for (source, dests), vertices in as_dict(classes).items():
        for d in range(world_size):
            if dests >> d & 1:
                needs.setdefault((source, d), set()).update(vertices)
    assert needs == HAND_NEEDS
    assert classes.relation.world_size == world_size


@given(
    edge_indices(max_nodes=40, max_edges=150),
    st.sampled_from([1, 2, 3, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 200, 1024]),
    st.integers(0, 1000),
)
def test_classes_are_those_of_the_definition(drawn: tuple[int, np.ndarray], world_size: int, seed: int):
    num_nodes, edges = drawn
    part = random_parts(num_nodes, world_size, seed)
    classes = halo_classes(as_graph(edges, num_nodes=num_nodes), part, world_size)
    expected = expected_classes(edges, part)
    assert list(as_dict(classes).items()) == list(expected.items())  # the order too
    assert_consistent(classes)


@pytest.mark.parametrize("world_size", [5, 40, 100, 1000])
def test_many_classes(world_size: int):
    """Tables grow and are refilled; masks that share their highest bits are told apart."""
    num_nodes = 6000
    rng = np.random.default_rng(world_size)
    part = rng.integers(0, world_size, num_nodes)
    part[: num_nodes // 2] = 0  # so that masks differ only in low bits for many vertices of one owner
    edges = rng.integers(0, num_nodes, (2, 8 * num_nodes))
    tops = np.flatnonzero(part >= world_size - 6)
    edges[1, : len(edges[1]) // 2] = rng.choice(tops, len(edges[1]) // 2)
    classes = halo_classes(as_graph(edges, num_nodes=num_nodes), part, world_size)
    assert list(as_dict(classes).items()) == list(expected_classes(edges, part).items())
    assert_consistent(classes)


def test_without_boundary():
    classes = halo_classes(as_graph([[0, 1, 2], [1, 0, 2]]), [0, 0, 1], 2)
    assert classes.relation.num_classes == len(classes.items) == 0


@named(
    "part, world_size, error, message",
    {
        "length": ([0, 1], 2, ValueError, r"one entry per vertex, 3 \(got 2\)"),
        "range": ([0, 2, 1], 2, ValueError, r"part\[1\] is 2: must be a part 0\.\.1"),
        "dtype": ([0.0, 1.0, 1.0], 2, TypeError, "part must hold integers"),
        "world-size": ([0, 0, 0], 0, ValueError, "must be an integer from 1 to"),
    },
)
def test_bad_part_is_named(part: Any, world_size: int, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        halo_classes(as_graph([[0], [1]], num_nodes=3), part, world_size)

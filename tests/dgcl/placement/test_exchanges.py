"""Placements of edges, judged by sets and a maximum matching: who sums what, which rows travel, and how few."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from dgcl.graph import Graph, as_graph
from dgcl.placement.cover import MOST, cover
from dgcl.placement.exchanges import EDGES, exchanges_of, summing_ranks
from tests.support.exchanges import pairs, sets_of, star


@st.composite
def problems(draw: st.DrawFn) -> tuple[Graph, np.ndarray, int]:
    num_nodes = draw(st.integers(1, 12))
    num_parts = draw(st.integers(1, 5))
    vertex = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(vertex, vertex), max_size=24))
    part = draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    array = np.array(edges, np.int64).reshape(-1, 2).T
    return as_graph(array, num_nodes), np.array(part, np.int32), num_parts


@given(problems(), st.sampled_from(EDGES))
def test_each_edge_finds_its_source_and_its_sum_its_owner(problem: tuple[Graph, np.ndarray, int], edges: str):
    graph, part, num_parts = problem
    made = exchanges_of(graph, part, summing_ranks(edges, graph, part, num_parts)[0], num_parts)
    expand = {(u, w) for (u, _), w in zip(pairs(graph), made.summed_by.tolist(), strict=True) if w != part[u]}
    fold = {(v, w) for (_, v), w in zip(pairs(graph), made.summed_by.tolist(), strict=True) if w != part[v]}
    assert sets_of(made.expand) == expand
    assert sets_of(made.fold) == fold
    assert made.rows == (len(expand), len(fold))
    assert made.edges.tolist() == [made.summed_by.tolist().count(rank) for rank in range(num_parts)]
    if edges == "head":
        assert not fold
    if edges == "tail":
        assert not expand


@given(problems(), st.sampled_from([MOST, (0, 0), (-1, 0)]))
def test_no_cover_moves_fewer_rows(problem: tuple[Graph, np.ndarray, int], most: tuple[int, int]):
    """Nor head and tail, and where the search ends early by no more than is said."""
    graph, part, num_parts = problem
    with patch("dgcl.placement.cover.MOST", most):
        choices = [summing_ranks(edges, graph, part, num_parts) for edges in EDGES]
    *others, rows = (sum(exchanges_of(graph, part, summed_by, num_parts).rows) for summed_by, _ in choices)
    excess = choices[-1][1]
    cut = [(u * num_parts + part[v], v * num_parts + part[u]) for u, v in pairs(graph) if part[u] != part[v]]
    size = num_parts * graph.num_nodes
    matrix = csr_array((np.ones(len(cut)), np.array(cut, int).reshape(-1, 2).T), (size, size))
    least = np.count_nonzero(maximum_bipartite_matching(matrix) >= 0)  # as many as a smallest cover (Koenig)
    assert least <= rows <= min(least + excess, *others)
    assert most != MOST or not excess


TWO_SUMS = as_graph(np.array([[0, 1, 2, 3], [4, 4, 5, 5]]), 6), np.array([0, 0, 0, 0, 1, 1], np.int32)
# Rank 0's partial sum, given up, would bring rank 1 to 4 edges of 5: each rank has as many as with the head.
LOADED = (
    as_graph(np.array([[0, 7, 9, 0, 1], [0, 0, 0, 2, 2]]), 10),
    np.array([0, 0, 1, 0, 0, 0, 0, 1, 0, 1], np.int32),
)


@pytest.mark.parametrize(
    "problem, imbalance, rows, edges",
    [
        pytest.param(star(10), None, (0, 1), [10, 0], id="a hub is summed where its sources are"),
        pytest.param(star(10), 1.0, (10, 0), [0, 10], id="a partial sum is given up"),
        pytest.param(TWO_SUMS, 1.0, (2, 1), [2, 2], id="one of two, no more than the bound needs"),
        pytest.param(LOADED, 1.0, None, [3, 2], id="nobody else is overloaded"),
    ],
)
def test_hubs_and_bounds(problem, imbalance: float | None, rows: tuple[int, int] | None, edges: list[int]):
    graph, part = problem
    made = exchanges_of(graph, part, cover(graph, part, 2, imbalance=imbalance)[0], 2)
    assert made.edges.tolist() == edges
    assert rows in (None, made.rows)


def skewed(seed: int) -> tuple[Graph, np.ndarray, int]:
    """Hubs at both ends of edges: without a bound some rank sums more than its share, and than with the head."""
    random = np.random.default_rng(seed)
    edges = random.permutation(400)[np.minimum(random.zipf(1.3, (2, 6000)) - 1, 399)]
    return as_graph(edges, 400), random.integers(0, 8, 400).astype(np.int32), 8


@example(skewed(0), 1.0)
@example(skewed(3), 1.0)
@example(skewed(10), 1.05)
@given(problems(), st.sampled_from([1.0, 1.2, 2.0]))
def test_a_bound_overloads_nobody_that_the_head_does_not(
    problem: tuple[Graph, np.ndarray, int], imbalance: float
):
    graph, part, num_parts = problem
    bounded = np.bincount(cover(graph, part, num_parts, imbalance=imbalance)[0], minlength=num_parts)
    at_head = np.bincount(part, graph.in_degrees(), num_parts)
    most = imbalance * graph.num_edges / num_parts
    assert (bounded <= np.maximum(most, at_head)).all()


def test_pairs_of_machines():
    # Ranks 0 and 1 are one machine, 2 and 3 another: within a machine edges are summed at the head.
    graph = as_graph(np.array([[0, 1, 0, 1], [2, 2, 1, 3]]), 4)
    part = np.arange(4, dtype=np.int32)
    summed_by, _ = cover(graph, part, 4, group=np.array([0, 0, 1, 1]))
    by_edge = dict(zip(pairs(graph), summed_by.tolist(), strict=True))
    assert by_edge[0, 1] == 1
    assert sum(exchanges_of(graph, part, summed_by, 4).rows) <= 4


def test_unknown_names_are_refused():
    graph, part = star(2)
    with pytest.raises(ValueError, match=r"edges must be one of head, tail, cover \(got 'heads'\)"):
        summing_ranks("heads", graph, part, 2)
    with pytest.raises(ValueError, match=r"an entry for each of the graph's 2 edges \(got 3\)"):
        exchanges_of(graph, part, np.zeros(3, np.int32), 2)

"""dgcl.graph, dgcl.graph.build_csr: every edge once, by destination, in the user's order, or an error."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import Graph, as_graph
from dgcl.graph.build_csr import graph_from_csr, graph_from_edges
from dgcl.graph.csr import index_dtype
from tests.support.graphs import edge_indices
from tests.support.samples import named


def in_edges(graph: Graph) -> list[list[tuple[int, int]]]:
    """(source, edge id) of every vertex's in-edges, in order."""
    edge_ids = np.arange(graph.num_edges) if graph.edge_ids is None else graph.edge_ids
    pairs = list(zip(graph.indices.tolist(), edge_ids.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(graph.indptr[:-1], graph.indptr[1:], strict=True)]


def expected_in_edges(num_nodes: int, edges: np.ndarray) -> list[list[tuple[int, int]]]:
    """The same, from the definition."""
    rows: list[list[tuple[int, int]]] = [[] for _ in range(num_nodes)]
    for e, (u, v) in enumerate(edges.T.tolist()):
        rows[v].append((u, e))
    return rows


@given(edge_indices(), st.sampled_from([np.int64, np.int32, np.uint64, np.int8, np.dtype(">i4")]))
def test_edge_index_is_grouped_by_destination(drawn: tuple[int, np.ndarray], dtype: Any):
    num_nodes, edges = drawn
    graph = as_graph(edges.astype(dtype), num_nodes=num_nodes)
    assert in_edges(graph) == expected_in_edges(num_nodes, edges)
    assert (graph.indptr.dtype, graph.indices.dtype) == (np.int64, np.int32)
    sources, destinations = graph.edges()
    np.testing.assert_array_equal(np.stack([sources, destinations]), edges)
    np.testing.assert_array_equal(graph.in_degrees(), np.bincount(edges[1], minlength=num_nodes))
    np.testing.assert_array_equal(graph.out_degrees(), np.bincount(edges[0], minlength=num_nodes))


@given(edge_indices())
def test_csr_of_out_neighbours_counts_edges_by_position(drawn: tuple[int, np.ndarray]):
    num_nodes, edges = drawn
    edges = edges[:, np.argsort(edges[0], kind="stable")]
    indptr = np.searchsorted(edges[0], np.arange(num_nodes + 1))
    assert in_edges(as_graph((indptr, edges[1]))) == expected_in_edges(num_nodes, edges)


@given(edge_indices())
def test_csr_of_in_neighbours_is_taken_as_it_is(drawn: tuple[int, np.ndarray]):
    num_nodes, edges = drawn
    edges = edges[:, np.argsort(edges[1], kind="stable")]
    indptr = np.searchsorted(edges[1], np.arange(num_nodes + 1))
    graph = graph_from_csr(indptr, edges[0], by_head=True)
    assert graph.edge_ids is None
    assert in_edges(graph) == expected_in_edges(num_nodes, edges)


@pytest.mark.parametrize("num_nodes", [4096, 2_000_000])
def test_many_edges_and_a_hub(num_nodes: int):
    rng = np.random.default_rng(num_nodes)
    edges = rng.integers(0, num_nodes, (2, 100_000))
    edges[1, ::5] = num_nodes - 1
    edges[1, 1::5] = rng.integers(0, num_nodes, 20_000) // 4096 * 4096
    by_head = np.argsort(edges[1], kind="stable")
    by_source = edges[:, np.argsort(edges[0], kind="stable")]
    indptr = np.searchsorted(by_source[0], np.arange(num_nodes + 1))

    graph = as_graph(edges, num_nodes=num_nodes)
    np.testing.assert_array_equal(graph.edge_ids, by_head)
    np.testing.assert_array_equal(graph.indices, edges[0][by_head])

    graph = as_graph((indptr, by_source[1]))
    by_head = np.argsort(by_source[1], kind="stable")
    np.testing.assert_array_equal(graph.edge_ids, by_head)
    np.testing.assert_array_equal(graph.indices, by_source[0][by_head])


def test_edges_grouped_already_are_not_copied():
    edges = np.array([[3, 0, 1, 2], [0, 1, 1, 3]], np.int32)
    graph = as_graph(edges)
    assert graph.edge_ids is None
    assert np.shares_memory(graph.indices, edges)


@named(
    "edges, num_nodes",
    {
        "lists": ([[0, 5], [1, 0]], 6),
        "fortran-order": (np.array([[0, 1], [5, 0]]).T.copy().T, 6),
        "strided": (np.array([[0, 0, 5, 0], [1, 0, 0, 0]])[:, ::2], 6),
    },
)
def test_number_of_vertices_is_the_largest_id_plus_one(edges: Any, num_nodes: int):
    assert as_graph(edges).num_nodes == num_nodes
    assert as_graph(edges, num_nodes=9).num_nodes == 9
    assert as_graph(edges, num_nodes=np.int32(9)).num_nodes == 9


@named("edges", {"lists": [[], []], "array": np.empty((2, 0), np.int64), "untyped": np.empty((2, 0))})
def test_graph_without_edges(edges: Any):
    graph = as_graph(edges, num_nodes=3)
    assert graph.num_edges == 0
    assert graph.indptr.tolist() == [0, 0, 0, 0]
    assert graph.out_degrees().tolist() == [0, 0, 0]


@pytest.mark.parametrize("degree", [0, 1, 255, 256, 257, 512, 70_000])
def test_out_degrees_beyond_a_byte(degree: int):
    graph = as_graph(np.array([[2] * degree + [0], [1] * degree + [2]]), num_nodes=3)
    assert graph.out_degrees().tolist() == [1, 0, degree]
    assert graph.out_degrees().dtype == np.int64


def test_graph_passes_through():
    graph = as_graph([[0], [1]])
    assert as_graph(graph) is graph
    assert as_graph(graph, num_nodes=2) is graph
    with pytest.raises(ValueError, match="num_nodes is 3, but the graph has 2 vertices"):
        as_graph(graph, num_nodes=3)


@named(
    "obj, num_nodes, error, message",
    {
        "id": ([[0, 1], [1, 7]], 5, ValueError, r"edge 1 is 1 -> 7, .* 5 vertices, 0\.\.4, .*at least 8"),
        "source": ([[0, 9], [1, 0]], 5, ValueError, "edge 1 is 9 -> 0"),
        "negative-source": ([[0, -1], [1, 0]], 5, ValueError, "edge 1 is -1 -> 0.*ids start at 0"),
        "largest": (
            np.array([[2**31 - 1], [0]], np.int32),
            5,
            ValueError,
            "edge 0 is 2147483647 -> 0.*at least 2147483648",
        ),
        "negative": ([[0, 1], [-2, 0]], None, ValueError, "edge 0 is 0 -> -2.*ids start at 0"),
        "only-negative": (np.array([[-1], [-1]]), None, ValueError, "edge 0 is -1 -> -1"),
        "float": (np.array([[0.0], [1.0]]), 2, TypeError, "integers.*float64"),
        "bool": (np.array([[True], [False]]), 2, TypeError, "integers.*booleans"),
        "text": (np.array([["0"], ["1"]]), 2, TypeError, "integers.*<U1"),
        "objects": (np.array([[None], [1]]), 2, TypeError, "integers.*object"),
        "ragged": ([[0, 1], [1]], 2, ValueError, "rectangular"),
        "uint64": (np.array([[2**63], [0]], np.uint64), None, ValueError, r"2\*\*63"),
        "transposed": (np.zeros((3, 2), int), 2, ValueError, r"\(2, E\).*\(3, 2\).*transpose"),
        "matrix": (np.zeros((5, 5), int), 5, ValueError, r"\(2, E\).*csr_array"),
        "one-dimension": (np.zeros(4, int), 2, ValueError, r"2 dimensions \(got shape \(4,\)\)"),
        "huge": ([[0], [10**12]], None, ValueError, "1000000000001 vertices of 1 edges.*pass num_nodes"),
        "no-vertices-known": ([[], []], None, ValueError, "no edge to tell the number"),
        "zero-vertices": ([[0], [1]], 0, ValueError, "integer from 1.*got 0"),
        "negative-vertices": ([[0], [1]], -1, ValueError, "integer from 1.*got -1"),
        "float-vertices": ([[0], [1]], 2.0, TypeError, "num_nodes must be an integer.*2.0"),
        "bool-vertices": ([[0], [1]], True, TypeError, "num_nodes must be an integer.*True"),
        "falls": ((np.array([0, 2, 1]), np.array([0])), None, ValueError, "never fall.*2 at 1 and 1 at 2"),
        "overflow": ((np.array([0, 2**31 - 1, -5], np.int32), [0]), None, ValueError, "did int32 overflow"),
        "too-long": (([0, 1, 3], [0]), None, ValueError, r"end at the number of indices, 1 \(got 3\)"),
        "not-from-zero": (([1, 1], [0]), None, ValueError, r"start at 0 \(got 1\).*\(2, E\)"),
        "csr-no-vertices": (([0], []), None, ValueError, "a graph needs a vertex \\(got 1\\)"),
        "csr-id": (([0, 1, 2], [0, 2]), None, ValueError, "edge 1 is 1 -> 2"),
        "csr-negative": (([0, 0, 0, 1], [-1]), None, ValueError, "edge 0 is 2 -> -1"),
        "csr-count": (([0, 1], [0]), 2, ValueError, "for 1 vertices, but num_nodes is 2"),
        "csr-float": (([0.0, 1.0], [0]), None, TypeError, "indptr must hold integers"),
        "csr-bool": (([0, 1], [False]), None, TypeError, "indices must hold integers"),
        "triple": (([0, 1], [0], [1.0]), None, ValueError, r"\(indptr, indices\) \(got 3 items\)"),
        "dict": ({"a": 1}, None, TypeError, "networkx graph.*got builtins.dict"),
        "none": (None, None, TypeError, "got builtins.NoneType"),
    },
)
def test_bad_input_is_named(obj: Any, num_nodes: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=f"(?s){message}"):
        as_graph(obj, num_nodes=num_nodes)


def test_csc_id_out_of_range_names_its_edge():
    with pytest.raises(ValueError, match="edge 2 is 3 -> 1"):
        graph_from_csr([0, 1, 3, 3], [0, 2, 3], by_head=True)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match=r"as many sources as destinations \(got 2 and 1\)"):
        graph_from_edges([0, 1], [0])


@named(
    "changed, message",
    {
        "dtype": ({"indptr": np.array([0, 1, 1], np.int32)}, "indptr must be a numpy array of int64"),
        "index-dtype": ({"indices": np.array([0])}, "indices must be a numpy array of int32"),
        "length": ({"indptr": np.array([0, 1])}, r"indptr must have shape \(3,\)"),
        "falls": ({"indptr": np.array([0, 2, 1])}, "never fall"),
        "range": ({"indices": np.array([2], np.int32)}, r"0\.\.1 \(got 2\.\.2\)"),
        "edge-ids": ({"edge_ids": np.array([1])}, r"permutation of 0\.\.0"),
        "no-vertices": ({"num_nodes": 0}, "integer from 1"),
    },
)
def test_graph_checks_its_arrays(changed: dict[str, Any], message: str):
    good: dict[str, Any] = {
        "num_nodes": 2,
        "indptr": np.array([0, 1, 1]),
        "indices": np.array([1], np.int32),
        "edge_ids": None,
    }
    Graph(**good)
    with pytest.raises((ValueError, TypeError), match=message):
        Graph(**{**good, **changed})


def test_ids_are_wide_enough():
    assert index_dtype(2**31 - 1) == np.int32
    assert index_dtype(2**31) == np.int64


def test_out_csr_of_ascending_heads_needs_no_edge_ids():
    graph = graph_from_csr([0, 1, 1, 3], [0, 1, 2])
    assert graph.edge_ids is None
    assert in_edges(graph) == [[(0, 0)], [(2, 1)], [(2, 2)]]

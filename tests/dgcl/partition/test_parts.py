"""dgcl.partition: every vertex gets a part, no part goes without, and few edges are cut."""

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import Graph, as_graph
from dgcl.graph.graph_files import read_graph
from dgcl.partition import BALANCES, METHODS, balance_weights, partition_graph
from dgcl.topology import Connection, Device, Topology
from tests.support.graphs import edge_indices, real_graph
from tests.support.samples import named

FEW_EDGES_CUT = pytest.mark.parametrize("method", ["metis", "kaminpar", "streaming"])


def machine(places: list[tuple[int, int]]) -> Topology:
    """Devices at (machine, socket), all joined to one switch."""
    devices = tuple(Device(f"gpu{r}", machine, socket) for r, (machine, socket) in enumerate(places))
    wires = tuple(Connection(f"wire{r}", "PCIe", f"gpu{r}", "switch", 10.0) for r in range(len(places)))
    return Topology("machine", devices, wires)


def cliques(num_cliques: int, size: int, chain: int = 1) -> Graph:
    """Directed cliques, neighbours in a ring of `chain`-clique groups joined by one edge, more weakly between
    groups.

    Clique k has the vertices v with v % num_cliques == k, so that ranges of vertices are the worst parts.
    """
    edges = [
        (k + num_cliques * i, k + num_cliques * j)
        for k in range(num_cliques)
        for i in range(size)
        for j in range(size)
    ]
    for k in range(num_cliques - 1):
        joined = 4 if (k + 1) % chain else 1
        edges += [(k + num_cliques * i, k + 1 + num_cliques * i) for i in range(joined)]
    return as_graph(np.array(edges).T)


@given(
    edge_indices(max_nodes=60, max_edges=200), st.integers(1, 12), st.sampled_from(METHODS), st.integers(0, 5)
)
def test_every_part_has_vertices(drawn: tuple[int, np.ndarray], num_parts: int, method: str, seed: int):
    num_nodes, edges = drawn
    graph = as_graph(edges, num_nodes=num_nodes)
    part = partition_graph(graph, num_parts, method=method, seed=seed)
    assert (part.shape, part.dtype) == ((num_nodes,), np.int32)
    sizes = np.bincount(part, minlength=num_parts)
    assert len(sizes) == num_parts
    assert np.count_nonzero(sizes) == min(num_nodes, num_parts)
    if method in ("random", "range"):
        assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(part, partition_graph(graph, num_parts, method=method, seed=seed))


def test_range_keeps_the_order():
    part = partition_graph(as_graph([[0], [6]]), 3, method="range")
    assert part.tolist() == sorted(part.tolist())


def test_random_depends_on_the_seed():
    graph = as_graph([[0], [99]])
    first, second = (partition_graph(graph, 4, method="random", seed=seed) for seed in (0, 1))
    assert (first != second).any()


@FEW_EDGES_CUT
def test_few_edges_cut_finds_the_cliques(method: str):
    part = partition_graph(cliques(4, 30), 4, method=method)
    assert all(len(set(part[k::4])) == 1 for k in range(4))
    assert len(set(part[:4])) == 4


@FEW_EDGES_CUT
def test_levels_and_targets_of_every_method(method: str):
    """A machine of one device and one of three: a quarter of 40 cliques in a chain is on the first."""
    part = partition_graph(
        cliques(40, 20, chain=4), 4, topology=machine([(0, 0)] + [(1, 0)] * 3), method=method
    )
    sizes = np.bincount(part, minlength=4)
    assert sizes.max() <= 1.04 * 200
    assert sizes.min() >= 100


@named(
    "places",
    {
        "machines": [(0, 0)] * 4 + [(1, 0)] * 4,
        "machines-interleaved": [(0, 0), (1, 0)] * 4,
        "sockets-interleaved": [(0, 1), (0, 0), (0, 0), (0, 1), (0, 0), (0, 1), (0, 1), (0, 0)],
        "machines-and-sockets": [(0, s) for s in (0, 0, 1, 1)] + [(1, s) for s in (0, 0, 1, 1)],
    },
)
def test_part_r_is_for_device_r(places: list[tuple[int, int]]):
    """Two weakly joined halves of four cliques each: each half must land on one machine (or socket)."""
    graph = cliques(8, 30, chain=4)
    part = partition_graph(graph, 8, topology=machine(places))
    homes = [places[r] for r in part[:8]]  # of clique k
    assert sorted(part[:8]) == list(range(8))
    assert all(len(set(part[k::8])) == 1 for k in range(8))
    level = 0 if len({place[0] for place in places}) > 1 else 1
    assert len({home[level] for home in homes[:4]}) == 1
    assert len({home[level] for home in homes[4:]}) == 1
    if level == 0 and len(set(places)) == 4:  # cliques 0, 1, ... form a chain: neighbours share a socket
        assert all(homes[k] == homes[k + 1] for k in (0, 2, 4, 6))


def test_uneven_machines_get_their_share():
    """Five devices, two on one machine and three on the other: all parts alike, in spite of uneven groups."""
    rng = np.random.default_rng(0)
    graph = as_graph(rng.integers(0, 5000, (2, 40_000)), num_nodes=5000)
    part = partition_graph(graph, 5, topology=machine([(1, 0), (0, 0), (1, 0), (1, 0), (0, 0)]))
    sizes = np.bincount(part)
    assert sizes.max() <= 1.05 * 1000


@named(
    "method, tolerance", {"close": ("metis", 0.01), "loose": ("metis", 0.2), "kaminpar": ("kaminpar", 0.05)}
)
def test_vertex_weights_are_balanced(method: str, tolerance: float):
    rng = np.random.default_rng(0)
    graph = as_graph(rng.integers(0, 4000, (2, 20_000)), num_nodes=4000)
    weights = np.where(np.arange(4000) < 1000, 9, 1)
    part = partition_graph(graph, 4, method=method, vertex_weights=weights, balance_tolerance=tolerance)
    assert np.bincount(part, weights=weights).max() <= (1 + tolerance) * weights.sum() / 4 + 9


def test_weights_of_nothing_are_equal():
    graph = as_graph(np.random.default_rng(0).integers(0, 400, (2, 2000)), num_nodes=400)
    part = partition_graph(graph, 4, vertex_weights=np.zeros(400, int))
    np.testing.assert_array_equal(part, partition_graph(graph, 4))


@pytest.mark.parametrize("num_nodes", [1, 3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_as_many_parts_as_vertices_or_more(num_nodes: int, method: str, caplog):
    graph = as_graph(np.zeros((2, 0), int), num_nodes=num_nodes)
    with caplog.at_level(logging.WARNING, logger="dgcl"):
        part = partition_graph(graph, 4, method=method)
    assert part.tolist() == list(range(num_nodes))
    said = [record.getMessage() for record in caplog.records]
    assert said == (
        [
            f"the graph has {num_nodes} vertices for 4 parts: parts from {num_nodes} on own none; fewer ranks would do"
        ]
        if num_nodes < 4
        else []
    )


@named(
    "edges",
    {
        "no-edges": np.zeros((2, 0), int),
        "only-loops": np.stack([np.arange(40)] * 2),
        "one-loop-many-times": np.zeros((2, 500), int),
        "star": np.stack([np.zeros(39, int), np.arange(1, 40)]),
    },
)
@pytest.mark.parametrize(
    "method, num_parts", [("metis", 2), ("metis", 7), ("metis", 39), ("kaminpar", 39), ("streaming", 39)]
)
def test_graphs_that_metis_dislikes(edges: np.ndarray, method: str, num_parts: int):
    part = partition_graph(as_graph(edges, num_nodes=40), num_parts, method=method)
    assert set(part.tolist()) == set(range(num_parts))


@named(
    "options, error, message",
    {
        "method": (
            {"method": "spectral"},
            ValueError,
            "metis, kaminpar, streaming, random, range.*'spectral'",
        ),
        "no-parts": ({"num_parts": 0}, ValueError, "num_parts must be an integer from 1"),
        "float-parts": ({"num_parts": 2.0}, TypeError, "num_parts must be an integer"),
        "seed": ({"seed": -1}, ValueError, "seed must be an integer from 0"),
        "float-seed": ({"seed": 0.5}, TypeError, "seed must be an integer"),
        "topology": ({"topology": machine([(0, 0)] * 3)}, ValueError, "3 devices, but num_parts is 2"),
        "weights": ({"vertex_weights": [1, 2]}, ValueError, r"one entry per vertex, 9 \(got 2\)"),
        "negative-weights": ({"vertex_weights": [-1] * 9}, ValueError, r"must be >= 0 \(got -1\)"),
        "float-weights": ({"vertex_weights": [0.5] * 9}, TypeError, "must hold integers"),
        "heavy-weights": ({"vertex_weights": [2**61] * 9}, ValueError, "scale them down"),
        "unused": (
            {"vertex_weights": [1] * 9, "method": "range"},
            ValueError,
            "go with method 'auto' or 'metis' or",
        ),
        "tolerance": ({"balance_tolerance": 0}, ValueError, "balance_tolerance must be a positive number"),
    },
)
def test_bad_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        partition_graph(as_graph([[0], [8]]), **{"num_parts": 2, **options})


def test_real_graph():
    graph = read_graph(real_graph("web_google_scc")).graph
    part = partition_graph(graph, 8)
    sizes = np.bincount(part)
    assert sizes.max() <= 1.04 * graph.num_nodes / 8
    sources, destinations = graph.edges()
    assert (part[sources] != part[destinations]).mean() < 0.02  # 0.875 at random


def test_edges_are_balanced():
    rng = np.random.default_rng(0)
    dense = rng.integers(0, 1000, (2, 30_000))
    sparse = [1000 * k + rng.integers(0, 1000, (2, 3000)) for k in (1, 2, 3)]
    graph = as_graph(np.concatenate([dense, *sparse], 1), num_nodes=4000)
    found = {}
    for balance in BALANCES:
        part = partition_graph(graph, 4, vertex_weights=balance_weights(graph, balance, "metis"))
        edges = np.bincount(part, weights=graph.in_degrees(), minlength=4)
        found[balance] = edges.max() / edges.mean()
    assert found["edges"] < 1.15
    assert found["vertices"] > 1.5


def test_a_bad_balance_is_refused():
    graph = as_graph(np.array([[0, 1], [1, 0]]), num_nodes=2)
    with pytest.raises(ValueError, match="balance must be one of vertices, edges"):
        balance_weights(graph, "rows", "metis")
    with pytest.raises(ValueError, match="goes with partition method 'auto' or 'metis' or 'kaminpar'"):
        balance_weights(graph, "edges", "random")


@named("places", {"flat": [(0, 0)] * 8, "levels": [(r // 4, r // 2) for r in range(8)]})
@pytest.mark.parametrize("hubs", [1, 2, 7])
def test_vertices_that_weigh_more_than_a_part_have_one_each(hubs: int, places: list[tuple[int, int]]):
    leaves = np.arange(hubs, 800)
    edges = np.concatenate([np.stack([leaves, np.full_like(leaves, hub)]) for hub in range(hubs)], axis=1)
    graph = as_graph(edges, num_nodes=800)
    part = partition_graph(
        graph, 8, topology=machine(places), vertex_weights=balance_weights(graph, "edges", "metis")
    )
    sizes = np.bincount(part, minlength=8)
    assert sorted(sizes)[:hubs] == [1] * hubs
    assert set(sizes[part[:hubs]]) == {1}
    rest = np.delete(sizes, part[:hubs])
    assert rest.max() <= 1.1 * len(leaves) / len(rest)

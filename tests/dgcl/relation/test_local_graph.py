"""dgcl.relation.local_graph: every in-edge of an owned vertex, once, in local ids, with the whole graph's degrees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import Graph, as_graph
from dgcl.relation.local_graph import LocalGraph
from tests.support.local_graphs import local_graph_of
from tests.support.samples import named

# Edges u->v: vertex 2 has a self loop and two in-edges from 0, vertex 4 is isolated.
EDGES = np.array([[0, 2, 0, 1, 0, 3, 1], [2, 2, 2, 0, 3, 1, 3]])
NUM_NODES = 5


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def edge_list(local: LocalGraph) -> list[tuple[int, int, int]]:
    """(global source, global head, global edge id) of every local edge, in local order."""
    heads = local.owned_ids[local.heads]
    return list(
        zip(local.local_ids[local.indices].tolist(), heads.tolist(), local.edge_ids.tolist(), strict=True)
    )


@pytest.fixture(scope="module")
def graph() -> Graph:
    return as_graph(EDGES, num_nodes=NUM_NODES)


@named(
    "owned, halo, edges",
    {
        "one-rank": (ids(0, 1, 2, 3, 4), ids(), None),
        "halo": (ids(2, 3), ids(1, 0), {(0, 2, 0), (2, 2, 1), (0, 2, 2), (0, 3, 4), (1, 3, 6)}),
        "one-edge": (ids(0), ids(1), {(1, 0, 3)}),
        "isolated": (ids(4), ids(), set()),
        "halo-holds-more-than-needed": (ids(0), ids(3, 1, 2), {(1, 0, 3)}),
        "no-vertices": (ids(), ids(), set()),
        "no-vertices-with-halo": (ids(), ids(3), set()),
    },
)
def test_holds_exactly_the_in_edges(graph, owned, halo, edges):
    local = local_graph_of(graph, owned, halo)
    if edges is None:
        edges = {(u, v, e) for e, (u, v) in enumerate(EDGES.T.tolist())}
    assert set(edge_list(local)) == edges
    assert local.num_edges == len(edges)
    assert (local.num_owned, local.num_halo, local.num_local) == (
        len(owned),
        len(halo),
        len(owned) + len(halo),
    )
    assert local.local_ids.tolist() == [*owned.tolist(), *halo.tolist()]
    assert local.num_nodes_global == NUM_NODES


def test_degrees_are_those_of_the_whole_graph(graph):
    local = local_graph_of(graph, ids(2, 3), ids(1, 0))
    assert local.in_degrees.tolist() == [3, 2, 1, 1]  # of 2, 3, 1, 0
    assert local.out_degrees.tolist() == [1, 1, 2, 3]


def test_dtypes(graph):
    local = local_graph_of(graph, ids(2, 3), ids(1, 0))
    assert local.indices.dtype == np.int32
    wide = ("owned_ids", "halo_ids", "indptr", "edge_ids", "in_degrees", "out_degrees")
    assert {getattr(local, name).dtype for name in wide} == {np.dtype(np.int64)}


def test_parallel_edges_keep_the_users_order(graph):
    local = local_graph_of(graph, ids(2), ids(0))
    assert local.edge_ids.tolist() == [0, 1, 2]
    assert local.local_ids[local.indices].tolist() == [0, 2, 0]


def test_a_source_without_a_row(graph):
    with pytest.raises(ValueError, match="vertex 0, of which it has no row"):
        local_graph_of(graph, ids(2), ids())


@st.composite
def parted_graphs(draw: st.DrawFn) -> tuple[np.ndarray, int, np.ndarray, int]:
    num_nodes = draw(st.integers(1, 12))
    world_size = draw(st.integers(1, 5))
    vertex = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(vertex, vertex), max_size=40))
    part = draw(st.lists(st.integers(0, world_size - 1), min_size=num_nodes, max_size=num_nodes))
    return np.array(edges, np.int64).reshape(-1, 2).T, num_nodes, np.array(part), world_size


@given(parted_graphs(), st.randoms(use_true_random=False))
def test_ranks_share_out_the_edges(case, random):
    """Over all ranks every edge appears once, at its head's owner, whatever the order of the halo."""
    edges, num_nodes, part, world_size = case
    rows = []
    for rank in range(world_size):
        halo = sorted(
            set(edges[0][part[edges[1]] == rank].tolist()) - set(np.flatnonzero(part == rank).tolist())
        )
        random.shuffle(halo)
        rows.append((np.flatnonzero(part == rank), np.array(halo, np.int64)))
    seen = []
    for rank, mine in enumerate(rows):
        local = local_graph_of(as_graph(edges, num_nodes=num_nodes), *mine)
        found = edge_list(local)
        assert all(part[head] == rank for _, head, _ in found)
        seen += found
        np.testing.assert_array_equal(
            local.in_degrees, np.bincount(edges[1], minlength=num_nodes)[local.local_ids]
        )
        np.testing.assert_array_equal(
            local.out_degrees, np.bincount(edges[0], minlength=num_nodes)[local.local_ids]
        )
    assert sorted(seen, key=lambda edge: edge[2]) == [(u, v, e) for e, (u, v) in enumerate(edges.T.tolist())]

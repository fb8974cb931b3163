"""dgcl.relation.partition_report: the figures of a partition, against sets."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import as_graph
from dgcl.relation.partition_report import partition_report
from tests.support.graphs import HAND_EDGES, HAND_PART, edge_indices, random_parts


def test_worked_example():
    report = partition_report(as_graph(HAND_EDGES), HAND_PART, 4)
    assert report.to_json() == {
        "num_parts": 4,
        "sizes": [2, 2, 2, 0],
        "edges": [2, 3, 2, 0],
        "cut": [1, 3, 2, 0],
        "boundary_sizes": [2, 2, 2, 0],
        "halo_sizes": [1, 3, 2, 0],
        "balance": 4 / 3,
        "edge_balance": 12 / 7,
        "cut_edges": 6,
        "boundary_vertices": 6,
        "deliveries": 6,
    }
    json.dumps(report.to_json())


@given(edge_indices(), st.sampled_from([1, 2, 3, 8, 64, 65, 130]), st.integers(0, 1000))
def test_figures_are_those_of_the_definition(drawn: tuple[int, np.ndarray], num_parts: int, seed: int):
    num_nodes, edges = drawn
    part = random_parts(num_nodes, num_parts, seed)
    report = partition_report(as_graph(edges, num_nodes=num_nodes), part, num_parts)
    between = [(u, v) for u, v in edges.T.tolist() if part[u] != part[v]]
    halo = [{u for u, v in between if part[v] == p} for p in range(num_parts)]
    boundary = [{u for u, _ in between if part[u] == p} for p in range(num_parts)]
    assert report.sizes.tolist() == [int((part == p).sum()) for p in range(num_parts)]
    assert report.edges.tolist() == [int((part[edges[1]] == p).sum()) for p in range(num_parts)]
    assert report.cut.tolist() == [sum(part[v] == p for _, v in between) for p in range(num_parts)]
    assert report.halo_sizes.tolist() == [len(vertices) for vertices in halo]
    assert report.boundary_sizes.tolist() == [len(vertices) for vertices in boundary]
    assert report.cut_edges == len(between)
    assert report.deliveries == sum(map(len, halo))
    assert report.boundary_vertices == sum(map(len, boundary))


def test_graph_without_edges_is_balanced():
    report = partition_report(as_graph(np.zeros((2, 0), int), 4), [0, 0, 0, 1], 2)
    assert (report.balance, report.edge_balance) == (1.5, 1.0)

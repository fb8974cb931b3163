"""dgcl.partition.metis and its kernels: the graph METIS gets, a machine's levels, groups filled up."""

import re
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import as_graph
from dgcl.partition import metis, partition_graph
from dgcl.partition.levels import Adjacency, device_levels, ensure_minimum
from dgcl.partition.partition_kernels import symmetric_adjacency
from dgcl.topology import Connection, Device, Topology
from tests.support.graphs import edge_indices
from tests.support.samples import named


def rows(xadj: np.ndarray, adjncy: np.ndarray) -> list[list[int]]:
    assert xadj[-1] == len(adjncy)
    return [sorted(adjncy[a:b].tolist()) for a, b in pairwise(xadj)]


@given(edge_indices(), st.data())
def test_undirected_simple_graph_and_its_subgraphs(drawn: tuple[int, np.ndarray], data: st.DataObject):
    num_nodes, edges = drawn
    graph = as_graph(edges, num_nodes=num_nodes)
    simple = nx.Graph()
    simple.add_nodes_from(range(num_nodes))
    simple.add_edges_from((u, v) for u, v in edges.T.tolist() if u != v)

    xadj, adjncy = symmetric_adjacency(graph.indptr, graph.indices, graph.indices[:0])
    assert rows(xadj, adjncy) == [sorted(simple[v]) for v in range(num_nodes)]

    members = sorted(data.draw(st.sets(st.integers(0, num_nodes - 1), min_size=1)))
    number = {v: i for i, v in enumerate(members)}
    inside = [sorted(number[u] for u in simple[v] if u in number) for v in members]
    induced = Adjacency(xadj, adjncy, None).induced(np.array(members))
    assert rows(induced.xadj, induced.adjncy) == inside


@named(
    "places, levels",
    {
        "alike": ([(0, 0)] * 3, [[0, 1, 2]]),
        "one-device": ([(0, 0)], []),
        "sockets": ([(0, 1), (0, 0), (0, 1), (0, 0)], [[1, 0, 1, 0], [0, 1, 2, 3]]),
        "machines": ([(5, 0), (2, 0), (5, 0), (2, 0)], [[1, 0, 1, 0], [0, 1, 2, 3]]),
        "a-machine-each": ([(5, 0), (2, 0)], [[1, 0]]),
        "machines-and-sockets": (
            [(0, 0), (1, 0), (0, 1), (1, 1), (0, 1), (1, 0)],
            [[0, 1, 0, 1, 0, 1], [0, 2, 1, 3, 1, 2], [0, 1, 2, 3, 4, 5]],
        ),
        "mixed": ([(0, 0), (0, 1), (1, 0), (1, 0)], [[0, 0, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]]),
    },
)
def test_levels_of_a_machine(places: list[tuple[int, int]], levels: list[list[int]]):
    devices = tuple(Device(f"gpu{r}", machine, socket) for r, (machine, socket) in enumerate(places))
    wires = tuple(Connection(f"wire{r}", "PCIe", f"gpu{r}", "switch", 1.0) for r in range(len(places)))
    found = device_levels(Topology("machine", devices, wires))
    assert [level.tolist() for level in found] == levels


@named(
    "labels, minimum, degrees, expected",
    {
        "nothing-to-do": ([0, 0, 1, 1], [1, 1], [1, 1, 1, 1], [0, 0, 1, 1]),
        "fewest-neighbours-move": ([0, 0, 0, 0], [1, 1], [3, 2, 1, 2], [0, 0, 1, 0]),
        "lowest-vertex-first": ([0, 0, 0, 0], [1, 2], [2, 1, 1, 2], [0, 1, 1, 0]),
        "from-the-largest-group": ([0, 0, 2, 2, 2], [1, 1, 1], [0, 0, 5, 5, 4], [0, 0, 2, 2, 1]),
        "only-what-can-be-spared": ([0, 0, 0, 2, 2], [3, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 1, 2]),
    },
)
def test_groups_are_filled_up(labels: list[int], minimum: list[int], degrees: list[int], expected: list[int]):
    moved = np.array(labels)
    ensure_minimum(moved, np.array(minimum), np.array(degrees))
    assert moved.tolist() == expected


def test_metis_that_wants_more_than_is_free(monkeypatch, caplog):
    """METIS itself ends by a failed allocation, not the process by the kernel; "auto" takes KaMinPar, in words."""
    graph = as_graph(np.random.default_rng(0).integers(0, 30_000, (2, 300_000)))
    enough, free = partition_graph(graph, 4, method="metis"), 25_000_000
    monkeypatch.setattr(metis, "available_memory", lambda: free)
    with pytest.raises(
        MemoryError, match=r"METIS on 30000 vertices and \d+ neighbours wants more memory than .*--partition"
    ):
        partition_graph(graph, 4, method="metis")
    caplog.set_level("INFO", "dgcl")
    assert np.array_equal(partition_graph(graph, 4), partition_graph(graph, 4, method="kaminpar"))
    assert re.search(r"parts by kaminpar: METIS takes some .* GB, where 0.025 GB are free", caplog.text)
    free = 1 << 40
    monkeypatch.setattr(metis, "_BYTES", 1 << 30)
    assert np.array_equal(
        partition_graph(graph, 4, method="metis"), enough
    )  # the same, in a process of its own


def test_an_end_that_metis_does_not_explain_says_both_causes(monkeypatch):
    def ends(*_: object, **__: object):
        raise RuntimeError("Caught an unknown exception!")

    monkeypatch.setattr("pymetis.part_graph", ends)
    with pytest.raises(
        InterruptedError, match=r"METIS on 9 vertices .* ended by SIGTERM, or it had too little memory"
    ):
        partition_graph(as_graph(np.stack([np.arange(9), (np.arange(9) + 1) % 9])), 2)

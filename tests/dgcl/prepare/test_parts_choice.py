"""METIS's parts or random ones: counts and seconds found again, and the faster one taken."""

import functools

import numpy as np
import pytest
import torch

import dgcl
from dgcl.graph import Graph, as_graph
from dgcl.partition import partition_graph
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.prepare.parts_choice import AUTO, PredictedParts, fastest_parts, predict_parts
from dgcl.prepare.shares import prepare
from dgcl.relation.classes import halo_classes
from dgcl.topology import resolve_topology

SIZE = 48
ROW = 1 << 16


CLIQUE = [(u, v) for u in range(SIZE) for v in range(SIZE) if u != v]
RING = [(SIZE + i, SIZE + (i + 1) % SIZE) for i in range(SIZE)]
EDGES = [*CLIQUE, *RING, (0, SIZE)]


@functools.cache
def clique_and_ring() -> Graph:
    """METIS cuts the edge between both: all of the clique's edges are on one rank."""
    return as_graph(np.array(EDGES).T, num_nodes=2 * SIZE)


def predicted(edge_seconds: float) -> dict[str, PredictedParts]:
    machine = resolve_topology("uniform:2")
    found = predict_parts(
        clique_and_ring(), machine, options=PlanOptions(row_bytes=ROW), edge_seconds=edge_seconds
    )
    return {parts.method: parts for parts in found}


def test_figures() -> None:
    graph, machine = clique_and_ring(), resolve_topology("uniform:2")
    heads = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    for method, parts in predicted(1e-3).items():
        part = partition_graph(graph, 2, topology=machine, method=method)
        assert np.array_equal(parts.part, part)
        halo = [
            {u for u, v in zip(graph.indices, heads, strict=True) if part[v] == r != part[u]} for r in (0, 1)
        ]
        edges = [int((part[heads] == rank).sum()) for rank in (0, 1)]
        assert parts.rows == sum(map(len, halo))
        assert parts.most_rows == max(map(len, halo))
        assert parts.edges.tolist() == edges
        assert parts.imbalance == pytest.approx(2 * max(edges) / sum(edges))
        plan = make_plan(halo_classes(graph, part, 2).relation, machine, "auto", PlanOptions(row_bytes=ROW))
        assert parts.seconds == pytest.approx(plan.predicted_seconds + 1e-3 * max(edges))


@pytest.mark.parametrize("edge_seconds, chosen", [(0.0, "metis"), (1e-3, "random")])
def test_the_faster_one_is_taken(edge_seconds, chosen) -> None:
    found = predicted(edge_seconds)
    assert fastest_parts(list(found.values())).method == chosen
    other = found["random" if chosen == "metis" else "metis"]
    assert found[chosen].seconds < other.seconds


def built() -> tuple[str, str]:
    comm = dgcl.build_comm_info(clique_and_ring(), "uniform", partition="auto")
    x = torch.arange(2.0 * SIZE, dtype=torch.float64)
    y = comm.collect(comm.aggregator()(comm.dispatch_features(x)), None)
    graph = clique_and_ring()
    wanted = np.add.reduceat(x.numpy()[graph.indices], graph.indptr[:-1])
    np.testing.assert_allclose(y.numpy()[graph.in_degrees() > 0], wanted[graph.in_degrees() > 0])
    return comm.describe(), comm.choice


def test_communicators_say_why() -> None:
    for told, choice in dgcl.launch(built, 2):
        assert choice.startswith("partition='auto' chose ")
        assert choice in told


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="partition must be one of metis, random, range, auto"):
        prepare(clique_and_ring(), 2, "uniform", partition="spectral")
    with pytest.raises(ValueError, match="balance must be one of"):
        prepare(clique_and_ring(), 2, "uniform", partition=AUTO, balance="rows")

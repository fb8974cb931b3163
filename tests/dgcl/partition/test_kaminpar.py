"""KaMinPar as a way to partition: when it is taken, and what becomes of it when memory is short or it is not there."""

import re

import numpy as np
import pytest

from dgcl.graph import as_graph
from dgcl.graph.graph_files import read_graph
from dgcl.partition import kaminpar, metis, partition_graph, partitioners
from dgcl.partition.partitioners import choose_method
from dgcl.relation.partition_report import partition_report
from tests.support.graphs import real_graph
from tests.support.samples import named

HUB = as_graph(np.stack([np.arange(600_000) % 3000, np.zeros(600_000, int)]), num_nodes=3000)
RING = as_graph(np.stack([np.arange(600_000), (np.arange(600_000) + 1) % 600_000]))
SMALL = as_graph(np.stack([np.arange(3000), np.zeros(3000, int)]))


@named(
    "graph, weights, there, method",
    {
        "hub": (HUB, None, True, "kaminpar"),
        "no-hub": (RING, None, True, "metis"),
        "small": (SMALL, None, True, "metis"),
        "weights": (HUB, np.ones(3000, int), True, "metis"),
        "not-installed": (HUB, None, False, "metis"),
        "no-memory": (SMALL, None, True, "kaminpar"),
        "no-memory-weights": (SMALL, np.ones(3000, int), True, "kaminpar"),
        "neither": (SMALL, None, False, "streaming"),
        "neither-weights": (SMALL, np.ones(3000, int), False, "metis"),
    },
)
def test_what_auto_takes(request, graph, weights, there: bool, method: str, monkeypatch):
    monkeypatch.setattr(partitioners, "has_kaminpar", lambda: there)
    if re.search("no-memory|neither", request.node.name):
        monkeypatch.setattr(metis, "available_memory", lambda: 1 << 20)
    assert choose_method(graph, weights)[0] == method


def test_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(partitioners, "has_kaminpar", lambda: False)
    with pytest.raises(ImportError, match=r"needs the package kaminpar: pip install 'dgcl\[kaminpar\]'"):
        partition_graph(SMALL, 4, method="kaminpar")


def test_its_process_alone_ends_where_memory_is_short(monkeypatch):
    graph = as_graph(np.random.default_rng(0).integers(0, 100_000, (2, 1_000_000)))
    monkeypatch.setattr(kaminpar, "available_memory", lambda: 5_000_000)
    with pytest.raises(
        MemoryError, match=r"KaMinPar on 100000 vertices and \d+ neighbours wants .*'streaming'"
    ):
        partition_graph(graph, 4, method="kaminpar")


@pytest.mark.slow
def test_few_rows_of_a_citation_graph_and_the_same_each_time():
    graph = read_graph(real_graph("ogbn_arxiv")).graph
    first, again, metis, streamed = (
        partition_graph(graph, 8, method=name) for name in ("auto", "kaminpar", "metis", "streaming")
    )
    assert np.array_equal(first, again)
    rows = [partition_report(graph, part, 8).deliveries for part in (metis, first, streamed)]
    assert rows[1] <= rows[0]
    assert rows[2] <= 1.3 * rows[0]

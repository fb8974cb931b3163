"""Placements of edges in part files and caches: what is stored is what a job without them would make."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.cli import main
from dgcl.graph import Graph, save_graph
from dgcl.placement.exchanges import summing_ranks
from dgcl.placement.placed_edges import edges_summed_by
from dgcl.relation.local_graph import build_local_graph
from tests.support.awkward import CASES

CASE = next(case for case in CASES if case.name == "multi-edges")
RANKS = 3


def aggregate(comm: Any) -> torch.Tensor:
    x = comm.dispatch_features(torch.arange(CASE.num_nodes * 2, dtype=torch.float64).view(-1, 2))
    return comm.collect(comm.aggregator()(x), None)


def wanted() -> torch.Tensor:
    tails, heads = torch.from_numpy(CASE.edges)
    x = torch.arange(CASE.num_nodes * 2, dtype=torch.float64).view(-1, 2)
    return torch.zeros_like(x).index_add_(0, heads, x[tails])


def from_parts(folder: Path) -> tuple[torch.Tensor, str]:
    comm = dgcl.load_comm_info(folder)
    before = aggregate(comm)
    comm = comm.rewire(CASE.edges[:, comm.part.numpy()[CASE.edges[1]] == comm.rank])
    assert aggregate(comm).equal(before)
    return before, comm.edges


def test_the_command_writes_them(tmp_path):
    graph, folder = tmp_path / "graph.npz", tmp_path / "parts"
    save_graph(graph, CASE.graph)
    assert main(["partition", str(graph), "--ranks", "3", "--strategy", "cover", "--out", f"{folder}/"]) == 0
    for found, placement in dgcl.launch(from_parts, RANKS, folder):
        assert placement == "cover"
        assert found.equal(wanted())


def with_cache(folder: Path, edges: str) -> tuple[torch.Tensor, list[float]]:
    comm = dgcl.build_comm_info(CASE.graph, "uniform", part=CASE.part(RANKS), strategy=edges, cache=folder)
    return aggregate(comm), [each.plan.predicted_seconds for each in comm.exchanges.values()]


@pytest.mark.parametrize("edges", ["tail", "cover"])
def test_a_cache_holds_every_plan(edges: str, tmp_path, caplog):
    (first, *_) = dgcl.launch(with_cache, RANKS, tmp_path / "cache", edges)
    entries = sorted(path.name for path in (tmp_path / "cache").iterdir())
    caplog.set_level(logging.INFO, "dgcl")
    (again, *_) = dgcl.launch(with_cache, RANKS, tmp_path / "cache", edges)
    assert sum("come from the cache" in text for text in caplog.messages) == len(entries) >= 2
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == entries
    assert first[0].equal(again[0])
    assert first[0].equal(wanted())
    assert first[1] == again[1]


def test_every_edge_is_on_its_worker_once():
    graph: Graph = CASE.graph
    part = CASE.part(RANKS).astype(np.int32)
    summed_by, _ = summing_ranks("cover", graph, part, RANKS)
    heads = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    rows = []
    for rank in range(RANKS):
        mine = summed_by == rank
        owned = np.flatnonzero(part == rank)
        rows.append(
            (owned, np.setdiff1d(graph.indices[mine], owned)[::-1], np.setdiff1d(heads[mine], owned)[::-1])
        )
    tails_in_order, heads_in_order = graph.edges()
    seen = []
    for rank, (owned, halo, partial) in enumerate(rows):
        named = [(ids, np.stack([ids] * 3)) for ids in (owned, halo, partial)]
        local = build_local_graph(edges_summed_by(graph, summed_by, rank), *named, graph.num_nodes)
        tails = np.concatenate([owned, halo])[local.indices]
        ends = np.concatenate([owned, partial])[local.heads]
        assert (tails == tails_in_order[local.edge_ids]).all()
        assert (ends == heads_in_order[local.edge_ids]).all()
        assert (np.diff(local.heads) >= 0).all()
        seen += local.edge_ids.tolist()
    assert sorted(seen) == list(range(graph.num_edges))

"""grid="auto": what is taken is the fastest of all grids planned one by one, fits the limit, and says why."""

from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.graph import Graph, as_graph
from dgcl.grid.choice import GridChoice, bytes_held
from dgcl.grid.counts import count_needs
from dgcl.grid.grid import Grid, legal_grids
from dgcl.grid.needs import find_needs
from dgcl.grid.plans import EdgeSeconds, bound_of_grid, plan_grid
from dgcl.grid.published import published_tiles, published_words
from dgcl.planner import PlanOptions
from dgcl.program.strategy import Problem
from dgcl.topology import preset
from dgcl.topology.latencies import without_latencies
from tests.dgcl.aggregation.test_aggregator import EXACT, dense, features
from tests.dgcl.awkward import Case
from tests.dgcl.workers.test_exchanges import in_ranges, toy_24


def dense_graph() -> Graph:
    """Every vertex reads most others: no partition helps."""
    rng = np.random.default_rng(1)
    return as_graph(np.stack(np.nonzero(rng.random((64, 64)) < 0.7)), 64)


def local_graph() -> Graph:
    """Cliques of eight vertices, each a part."""
    return as_graph(np.stack(np.nonzero(np.kron(np.eye(8), np.ones((8, 8))))), 64)


GRAPHS = {"dense": dense_graph, "local": local_graph}


def problem(name: str, method: str = "direct") -> Problem:
    graph = GRAPHS[name]()
    return Problem(graph, in_ranges(64, 8), without_latencies(preset("dgx1")), method, PlanOptions())


@pytest.mark.parametrize("work", [EdgeSeconds(), EdgeSeconds(1e-9, 1e-12), EdgeSeconds(1e-6, 0.0)])
@pytest.mark.parametrize("name", GRAPHS)
def test_takes_the_fastest_of_all(name: str, work: EdgeSeconds) -> None:
    given = problem(name)
    predicted = {}
    for grid in legal_grids(8):
        needs = find_needs(given.graph, given.part, grid)
        made = plan_grid(needs, given.topology, given.method, given.options)
        predicted[grid] = made.seconds(work)
        assert made.expand.plan.row_bytes == 512 // grid.slices
        assert bound_of_grid(needs, given.topology, given.options) <= made.exchange_seconds * (1 + 1e-12)
    made = GridChoice(work=work).arrange(given)
    best = min(predicted, key=lambda grid: (predicted[grid], not grid.is_1d))
    assert made.grid == (None if best.is_1d else (best.parts, best.depth, best.slices))
    assert made.why.startswith(f"auto chose grid ({best})")
    assert best.is_1d == (name == "local")


def test_slices_of_a_dense_graph_move_four_times_fewer_bytes() -> None:
    given = problem("dense")
    received = {}
    for sizes in ((8, 1, 1), (1, 1, 8)):
        counts = count_needs(find_needs(given.graph, given.part, Grid(*sizes)))
        received[sizes] = counts.received_bytes(128).sum()
    assert received[8, 1, 1] / received[1, 1, 8] == pytest.approx(4, rel=0.02)


def test_a_limit_leaves_out_what_holds_too_much() -> None:
    given = problem("dense")
    owned, held = np.bincount(given.part, minlength=8), {}
    for grid in legal_grids(8):
        counts = count_needs(find_needs(given.graph, given.part, grid))
        held[grid] = bytes_held(given.graph, owned, counts, 512)
    assert held[Grid(1, 1, 8)] > min(held.values())
    made = GridChoice(memory_limit=held[Grid(1, 1, 8)] - 1).arrange(given)
    assert made.grid != (1, 1, 8)
    assert "do not fit in" in made.why
    with pytest.raises(MemoryError, match=r"no grid fits in memory_limit=.*grid \(.*\) takes least"):
        GridChoice(memory_limit=min(held.values()) - 1).arrange(given)


def test_narrow_slices_are_slower_for_each_byte() -> None:
    work = EdgeSeconds.through((512, 60e-9), (64, 18e-9))
    assert work.at(512) == pytest.approx(60e-9)
    assert work.at(64) == pytest.approx(18e-9)
    assert EdgeSeconds.through((512, 60e-9), (512, 60e-9)).at(256) == pytest.approx(30e-9)


def aggregate(name: str, options: Any) -> tuple[torch.Tensor, str]:
    comm = dgcl.build_comm_info(GRAPHS[name](), "uniform", part=in_ranges(64, 4), grid=options)
    y = comm.aggregator()(comm.dispatch_features(features(64, 5)))
    return comm.collect(y, None), comm.describe()


@pytest.mark.parametrize("name", GRAPHS)
def test_on_ranks(name: str) -> None:
    graph = GRAPHS[name]()
    case = Case(name, np.stack(graph.edges()).astype(np.int64), 64, np.ones(64, bool))
    wanted = dense(case, "sum", None) @ features(64, 5)
    for found, why in dgcl.launch(aggregate, 4, name, "auto"):
        torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT)
        assert "auto chose grid (" in why


def test_published_volumes_of_the_toy_graph() -> None:
    graph, owner = toy_24(), in_ranges(24, 4)
    assert published_words(graph, owner, Grid(4), 8).tolist() == [144] * 4
    assert published_words(graph, owner, Grid(4), 6).tolist() == [108] * 4
    assert published_words(graph, owner, Grid(2, 2, 1), 8).tolist() == [96, 192, 192, 96]
    tiles = published_tiles(graph, owner, Grid(2, 1, 2))
    assert tiles.tolist() == [7, 29, 29, 7]
    assert published_words(graph, owner, Grid(2, 1, 2), 8).tolist() == (48 + 48 + 2 * tiles).tolist()

"""What grids move and hold: counted for real graphs and a dense one, and predicted on machines; the same everywhere."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dgcl.graph import Graph, as_graph
from dgcl.grid.grid import Grid
from dgcl.grid.grid_strategy import GridPlacement
from dgcl.grid.items import expand_demand, fold_demand
from dgcl.grid.needs import Needs, find_needs
from dgcl.partition import partition_graph
from dgcl.placement.exchanges import exchanges_of, summing_ranks
from dgcl.planner import PlanOptions
from dgcl.planner.fold import reverse_plan
from dgcl.program.strategy import Problem
from dgcl.topology import resolve_topology
from dgcl.topology.latencies import without_latencies
from docs.figures.framework import Figure, Run

PAGE = "grids.md"
WIDTH = 128
GRAPHS = ("ogbn_arxiv", "coauthor_physics", "amazon_computers", "web_google_scc", "uk_2007_05_100k")
GRIDS_OF_8 = ((8, 1, 1), (4, 2, 1), (2, 4, 1), (2, 1, 4), (2, 2, 2), (1, 1, 8))
MACHINES = ("dgx1x8", "hgx_h100x8", "dgx1x32", "hgx_h100x32")


def dense_graph(run: Run, exponent: float = 0.5) -> Graph:
    """A graph that no partition helps: both ends of each edge drawn by a power law of the degrees, no edge twice."""
    num_nodes, num_edges = (2_000, 37_600) if run.quick else (20_000, 3_760_000)
    rng = np.random.default_rng(7)  # not the seed of random parts, which would sort them by degree
    share = np.cumsum(rng.permutation((1.0 + np.arange(num_nodes)) ** -exponent))
    keys = np.zeros(0, np.int64)
    while len(keys) < num_edges:
        ends = np.searchsorted(share, rng.random((2, num_edges // 2)) * share[-1])
        keys = np.union1d(keys, ends[0] * num_nodes + ends[1])
    keys = rng.permutation(keys)[:num_edges]
    return as_graph(np.stack([keys // num_nodes, keys % num_nodes]), num_nodes)


def whole_rows(needs: Needs, graph: Graph) -> float:
    """Rows of whole width that travel, for each vertex."""
    classes = (demand(needs).classes() for demand in (expand_demand, fold_demand))
    return sum(each.relation.deliveries for each in classes) / needs.grid.slices / graph.num_nodes


def exchange_seconds(grid: Grid, problem: Problem) -> float:
    """Predicted seconds of both exchanges of an aggregation, one after the other."""
    made = GridPlacement(grid).arrange(problem)
    assert made.partial is not None
    return made.plan.predicted_seconds + reverse_plan(made.partial.plan).predicted_seconds


def dense(run: Run) -> Figure:
    """The dense graph on 8 ranks: what each grid moves and holds."""
    graph, topology = dense_graph(run), without_latencies(resolve_topology("dgx1"))
    part = partition_graph(graph, 8, method="random")
    problem = Problem(graph, part, topology, "auto", PlanOptions())
    columns = {"grid": "", "rows/vertex": ".2f", "1D / this": ".2f", "copies of an edge": ".0f", "us": ".0f"}

    def rows() -> Iterator[list[Any]]:
        halo = 0.0
        for sizes in GRIDS_OF_8:
            grid = Grid(*sizes)
            needs = find_needs(graph, part, grid)
            moved = whole_rows(needs, graph)
            halo = halo or moved
            copies = needs.edges_of_ranks.sum() / graph.num_edges
            yield [f"({grid})", moved, halo / moved, copies, 1e6 * exchange_seconds(grid, problem)]

    return Figure(columns, rows())


def graphs(run: Run) -> Figure:
    """Real graphs in 8 METIS parts: rows for each vertex."""

    def rows() -> Iterator[list[Any]]:
        for name in run.some(GRAPHS):
            graph = run.graph(name)
            part = partition_graph(graph, 8)
            cover = exchanges_of(graph, part, summing_ranks("cover", graph, part, 8)[0], 8)
            moved = [whole_rows(find_needs(graph, part, Grid(*sizes)), graph) for sizes in GRIDS_OF_8]
            yield [name, *moved, sum(cover.rows) / graph.num_nodes]

    numbers = [*(f"({Grid(*sizes)})" for sizes in GRIDS_OF_8), "cover"]
    return Figure({"graph": "", **dict.fromkeys(numbers, ".3f")}, rows())


def machines(run: Run) -> Figure:
    """Predicted microseconds of the exchanges of an aggregation, each planned for at most 20 seconds."""
    columns = dict.fromkeys(("graph", "ranks", "halo us", "depth us", "slices us", "both us"), "")

    def rows() -> Iterator[list[Any]]:
        for name, graph in (("ogbn_arxiv", run.graph("ogbn_arxiv")), ("dense", dense_graph(run))):
            for machine_name in run.some(MACHINES):
                topology = without_latencies(resolve_topology(machine_name))
                size = topology.num_devices
                part, cells = partition_graph(graph, size, topology=topology), []
                problem = Problem(graph, part, topology, "auto", PlanOptions(time_limit=20))
                for sizes in ((size, 1, 1), (size // 8, 8, 1), (size // 8, 1, 8), (size // 16, 4, 4)):
                    grid = Grid(*sizes)
                    cells.append(f"({grid}) {1e6 * exchange_seconds(grid, problem):.0f}")
                yield [name, f"{size}, {machine_name}", *cells]

    return Figure(columns, rows())


FIGURES = {"dense": dense, "graphs": graphs, "machines": machines}

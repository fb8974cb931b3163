"""What grids move, hold and take: counted for real graphs and a dense one, predicted on machines, and run.

    python docs/benchmarks/grids.py GRAPHS/ [--write docs/grids.md] [--measured]

Counts and predictions are the same on every machine. With --measured also an aggregation and an epoch on 4 ranks that
are threads, side by side in turns, with the error against a sparse product in float64: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from marked import print_into
from scipy.sparse import csr_array, diags_array

import dgcl
import dgcl.nn
from dgcl.aggregation.aggregator import number_of
from dgcl.aggregation.operation import Operation
from dgcl.bench.published import ReplicatedRows, SplitRows
from dgcl.graph import Graph, as_graph
from dgcl.graph.files import read_graph
from dgcl.grid.counts import Counts, count_needs
from dgcl.grid.grid import Grid
from dgcl.grid.needs import find_needs
from dgcl.grid.plans import plan_grid
from dgcl.grid.published import published_words
from dgcl.partition import partition_graph
from dgcl.planner import PlanOptions
from dgcl.program.exchange import HALO, PARTIAL
from dgcl.topology import resolve_topology
from dgcl.topology.latencies import without_latencies
from dgcl.workers.exchanges import exchanges_of, workers_of

WIDTH = 128
GRAPHS = ("ogbn_arxiv", "coauthor_physics", "amazon_computers", "web_google_scc", "uk_2007_05_100k")
GRIDS_OF_8 = ((8, 1, 1), (4, 2, 1), (2, 4, 1), (2, 1, 4), (2, 2, 2), (1, 1, 8))
GRIDS_OF_4 = ((4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 1, 4))
ROUNDS = 15


def dense_graph(num_nodes: int = 20_000, num_edges: int = 3_760_000, exponent: float = 0.5) -> Graph:
    """A graph that no partition helps: both ends of each edge drawn by a power law of the degrees, no edge twice."""
    rng = np.random.default_rng(7)  # not the seed of random parts, which would sort them by degree
    share = np.cumsum(rng.permutation((1.0 + np.arange(num_nodes)) ** -exponent))
    keys = np.zeros(0, np.int64)
    while len(keys) < num_edges:
        ends = np.searchsorted(share, rng.random((2, num_edges // 2)) * share[-1])
        keys = np.union1d(keys, ends[0] * num_nodes + ends[1])
    keys = rng.permutation(keys)[:num_edges]
    return as_graph(np.stack([keys // num_nodes, keys % num_nodes]), num_nodes)


def with_loops(graph: Graph) -> Graph:
    """The graph with one self loop at each vertex."""
    heads, every = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr)), np.arange(graph.num_nodes)
    others = heads != graph.indices
    ends = (
        np.concatenate([graph.indices[others].astype(np.int64), every]),
        np.concatenate([heads[others], every]),
    )
    return as_graph(np.stack(ends), graph.num_nodes)


def counted(graph: Graph, part: np.ndarray, sizes: tuple[int, int, int]) -> Counts:
    """What a grid moves."""
    return count_needs(find_needs(graph, part, Grid(*sizes)))


def whole_rows(counts: Counts, num_nodes: int) -> float:
    """Rows of whole width that travel, for each vertex."""
    return float((counts.expanded + counts.folded).sum() / counts.grid.slices / num_nodes)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return "\n".join([lines[0], f"|{' --- |' * len(header)}", *lines[1:]])


def dense_counts(graph: Graph) -> str:
    """The dense graph: what each grid moves and holds, and the published algorithm beside it."""
    rows = []
    for grids, machine in ((GRIDS_OF_4, "uniform4"), (GRIDS_OF_8, "dgx1")):
        size, halo = Grid(*grids[0]).size, 0.0
        part = partition_graph(graph, size, method="random")
        for sizes in grids:
            grid, counts = Grid(*sizes), counted(graph, part, sizes)
            mean = counts.received_bytes(WIDTH).mean()
            halo = halo or mean
            made = plan_grid(find_needs(graph, part, grid), without_latencies(resolve_topology(machine)))
            published = 4 * published_words(graph, part, grid, WIDTH).mean()
            rows.append(
                [
                    f"{size}, {machine}",
                    f"({grid})",
                    f"{whole_rows(counts, graph.num_nodes):.2f}",
                    f"{halo / mean:.2f}",
                    f"{published / mean:.2f}",
                    f"{counts.edges.sum() / graph.num_edges:.0f}",
                    f"{counts.imbalance:.3f}",
                    f"{1e6 * made.exchange_seconds:.0f}",
                    f"{1e6 * made.bound_seconds:.0f}",
                ]
            )
    header = ["ranks", "grid", "rows/vertex", "1D / this", "published / this", "copies of an edge"]
    return table([*header, "edges max/mean", "predicted us", "bound us"], rows)


def real_counts(folder: Path) -> str:
    """Real graphs in 8 METIS parts: rows for each vertex."""
    rows = []
    for name in GRAPHS:
        graph = read_graph(folder / f"{name}.npz").graph
        part = partition_graph(graph, 8)
        cover = exchanges_of(graph, part, workers_of("cover", graph, part, 8), 8)
        found = [whole_rows(counted(graph, part, sizes), graph.num_nodes) for sizes in GRIDS_OF_8]
        rows.append([name, *(f"{one:.3f}" for one in found), f"{sum(cover.rows) / graph.num_nodes:.3f}"])
    return table(["graph", *(f"({Grid(*sizes)})" for sizes in GRIDS_OF_8), "cover"], rows)


def balances(folder: Path) -> str:
    """Edges of the fullest rank over the mean: random parts, the mean of ten seeds; and ranges of natural ids."""
    rows = []
    for path in sorted(folder.glob("*.npz")):
        name, graph = path.stem, read_graph(path).graph
        if graph.num_edges < 100_000:
            continue
        cells = [name]
        for sizes in ((2, 2, 1), (4, 1, 1)):
            parts = (partition_graph(graph, 4, method="random", seed=seed) for seed in range(10))
            cells.append(f"{np.mean([counted(graph, part, sizes).imbalance for part in parts]):.3f}")
        natural = partition_graph(graph, 4, method="range")
        cells.append(f"{counted(graph, natural, (4, 1, 1)).imbalance:.2f}")
        rows.append(cells)
    return table(["graph", "(2,2,1), random", "(4,1,1), random", "(4,1,1), ranges"], rows)


def on_machines(folder: Path) -> str:
    """Many ranks on machines: predicted seconds of the exchanges of an aggregation."""
    graphs = {"ogbn_arxiv": read_graph(folder / "ogbn_arxiv.npz").graph, "dense": dense_graph()}
    rows = []
    for name, graph in graphs.items():
        for machine in ("dgx1x8", "hgx_h100x8", "dgx1x32", "hgx_h100x32"):
            rows.append(on_machine(name, graph, machine))
            print(rows[-1], file=sys.stderr, flush=True)
    return table(["graph", "ranks", "halo us", "depth us", "slices us", "both us"], rows)


def on_machine(name: str, graph: Graph, machine: str) -> list[str]:
    """Predicted seconds of halo exchange and of three grids, each planned for at most 20 seconds."""
    topology = without_latencies(resolve_topology(machine))
    size = topology.num_devices
    part = partition_graph(graph, size, topology=topology)
    row = [name, f"{size}, {machine}"]
    for sizes in ((size, 1, 1), (size // 8, 8, 1), (size // 8, 1, 8), (size // 16, 4, 4)):
        needs = find_needs(graph, part, Grid(*sizes))
        made = plan_grid(needs, topology, options=PlanOptions(time_limit=20))
        row.append(f"({made.counts.grid}) {1e6 * made.exchange_seconds:.0f}")
    return row


class Ours(torch.nn.Module):
    """Three GCN layers, hidden 128."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(dgcl.nn.GCNConv(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor, comm: Any) -> torch.Tensor:
        """Logits."""
        for layer in self.layers:
            x = torch.relu(layer(x, comm))
        return x


class AsPublished(torch.nn.Module):
    """The same layers on rows as the published algorithms lay them out."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(3))

    def forward(self, x: torch.Tensor, rows: SplitRows | ReplicatedRows) -> torch.Tensor:
        """Logits."""
        for weight in self.weights:
            x = torch.relu(rows.convolve(x, weight))
        return x


def exchanges_alone(comm: dgcl.Communicator, rows: torch.Tensor) -> Callable[[], None]:
    """Both exchanges of an aggregation as it makes them: of halo rows, and of partial sums added to owned rows."""
    transport, items = comm.transport, comm.to_items(rows).contiguous()
    halo, fold = (number_of(comm, name) for name in (HALO, PARTIAL))
    operation = comm.aggregator().operation
    assert isinstance(operation, Operation)
    into = torch.zeros_like(items)
    sums = None if fold is None else items.new_ones(comm.layouts[PARTIAL].num_halo, items.shape[1])

    def call() -> None:
        if halo is not None:
            transport.begin_expand(items, halo, wait=True).wait()
        if fold is not None and sums is not None:
            transport.begin_fold(sums, fold, wait=True).wait(into, operation.fresh[0])

    return call


def one_epoch(model: torch.nn.Module, rows: torch.Tensor, how: Any, comm: dgcl.Communicator) -> None:
    """Forward, backward and the sums of gradients."""
    model.zero_grad()
    model(rows, how).square().sum().backward()
    dgcl.nn.sync_gradients(model, comm=comm)


def on_rank(
    graph: Graph, part: np.ndarray, kinds: dict[str, dict[str, Any]], x: torch.Tensor
) -> dict[str, Any]:
    """Milliseconds of the exchanges, of an aggregation and of an epoch of each kind, in turns; and the sums."""
    comms: dict[str, dgcl.Communicator] = {}
    found: dict[str, Any] = {}
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, options in kinds.items():
        if "published" in options:
            how = options["published"](graph, options["grid"], part, reduce="gcn")
            comm, rows = how.comm, how.dispatch(x)
            found[name] = {"sum": how.collect(how.aggregate(rows.double()), WIDTH)}
            calls[name, "aggregation"] = partial(how.aggregate, rows)
            calls[name, "epoch"] = partial(one_epoch, AsPublished(), rows, how, comm)
        else:
            comm = dgcl.build_comm_info(graph, "uniform", part=part, **options)
            rows = comm.dispatch_features(x)
            found[name] = {"sum": comm.collect(comm.aggregator()(rows.double()))}
            if comm.edges != "streamed":
                calls[name, "exchange"] = exchanges_alone(comm, rows)
            calls[name, "aggregation"] = partial(comm.aggregator(), rows)
            calls[name, "epoch"] = partial(one_epoch, Ours(), rows, comm, comm)
        comms[name] = comm
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for turn in range(ROUNDS):
        for (name, what), call in calls.items():
            if what == "epoch" and turn % 5:
                continue
            comms[name].control.barrier()
            begin = time.perf_counter()
            with torch.set_grad_enabled(what == "epoch"):
                call()
            comms[name].control.barrier()
            samples[name, what].append(time.perf_counter() - begin)
    for (name, what), taken in samples.items():
        found[name][what] = 1e3 * float(np.median(taken[1:]))
    return found


def measured(graph: Graph) -> str:
    """The dense graph on 4 ranks that are threads."""
    torch.set_num_threads(1)
    part = partition_graph(graph, 4, method="random")
    kinds: dict[str, dict[str, Any]] = {"halo": {}, "cover": {"edges": "cover"}}
    kinds.update({f"({Grid(*sizes)})": {"grid": sizes} for sizes in GRIDS_OF_4[1:]})
    for sizes in ((2, 1, 2), (1, 1, 4)):
        kinds[f"({Grid(*sizes)}), streamed"] = {"grid": dgcl.GridOptions(sizes, adjacency="streamed")}
    kinds["1.5D as published, c = 2"] = {"published": ReplicatedRows, "grid": (2, 2, 1)}
    kinds["2D as published, 2 x 2"] = {"published": SplitRows, "grid": (2, 1, 2)}
    x = torch.rand(graph.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0))
    matrix = csr_array((np.ones(graph.num_edges), graph.indices, graph.indptr), shape=(graph.num_nodes,) * 2)
    root = diags_array(graph.in_degrees() ** -0.5)  # every vertex has a loop
    summed = matrix @ x.double().numpy()
    normalised = root @ matrix @ root @ x.double().numpy()
    found = dgcl.launch(on_rank, 4, graph, part, kinds, x)[0]
    rows = []
    for name in kinds:
        wanted = normalised if "published" in kinds[name] else summed
        error = np.abs(found[name]["sum"].numpy() - wanted).max() / np.abs(wanted).max()
        cells = [f"{found[name][what]:.1f}" for what in ("aggregation", "epoch")]
        exchange = found[name].get("exchange")
        alone = ["", ""]
        if exchange is not None:
            alone = [f"{exchange:.1f}", f"{exchange / found['halo']['exchange']:.2f}"]
        rows.append([name, *alone, *cells, f"{error:.0e}"])
    header = ["edges", "exchanges ms", "over halo's", "aggregation ms", "epoch ms", "error"]
    return f"{table(header, rows)}\n\n{platform.processor() or platform.machine()}, torch {torch.__version__}"


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", type=Path, help="folder of graph files")
    parser.add_argument("--write", default="", help="page to put the tables into")
    parser.add_argument("--measured", action="store_true", help="run on 4 ranks, too")
    parser.add_argument(
        "--only", metavar="NAME", help="one table: dense, graphs, balance, machines or measured"
    )
    given = parser.parse_args()
    made: dict[str, Callable[[], str]] = {
        "dense": lambda: dense_counts(dense_graph()),
        "graphs": lambda: real_counts(given.graphs),
        "balance": lambda: balances(given.graphs),
        "machines": lambda: on_machines(given.graphs),
    }
    if given.measured or given.only == "measured":
        made["measured"] = lambda: measured(with_loops(dense_graph()))
    if given.only is not None:
        made = {given.only: made[given.only]}
    for name, make in made.items():
        print_into(given.write, name, make())
    return 0


if __name__ == "__main__":
    sys.exit(main())

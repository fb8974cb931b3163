"""Exchanges between CPU ranks beside Gloo and plain copies, their overlap with sums, and what training holds. Minutes.

The exchanges are those of `dgcl bench`, which verifies every element; candidates take turns, ratios are medians.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import dgl.nn
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.bench.turns import PROCESS, in_turns
from dgcl.graph import Graph, read_graph
from dgcl.partition import partition_graph
from dgcl.ranks.context import context
from docs.figures.framework import Figure, Run, both_ways, machine, on_ranks, resident, turns
from docs.figures.local_sum import reading

PAGE = "performance.md"
GRAPHS, RANKS, WIDTH = ("web_google_scc", "ogbn_arxiv"), 4, 128
AGAINST = {"halo": "gloo-halo", "auto": "gloo"}
EPOCH = (128, 128, 128, 40)
VERBS = ("forward", "backward")
KEPT = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184"
COLUMNS = {
    "method": "", **{f"{verb} {what}": form for verb in VERBS for what, form in
    {"us": ",.0f", "GB/s": ".2f", "of copies": ".0%", "Gloo's / it": ".1f"}.items()}, "#wrong": "",
}  # fmt: skip
THERE_AND_BACK = "{forward us:,.0f} / {backward us:,.0f}".format_map


def bench(run: Run, *options: str) -> dict[str, Any]:
    """What `dgcl bench` measures between four ranks."""
    command = [sys.executable, "-m", "dgcl", "bench", "--ranks", str(RANKS), "--width", str(WIDTH), "--json"]
    command += ["-n", "2" if run.quick else "20", *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def ratio(slow: list[float], fast: list[float]) -> float:
    """How many times as long, median over samples that took turns."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def beside_gloo(lines: list[dict[str, Any]]) -> Iterator[list[Any]]:
    """Rows of methods of one problem and size."""
    of_method = {line["method"]: line for line in lines}
    for method, line in of_method.items():
        cells, wrong = [], 0
        for timing, verb in ((line[verb], verb) for verb in VERBS):
            other = of_method[AGAINST[method]][verb]["samples"] if method in AGAINST else None
            cells += [
                1e6 * timing["median"], line["moved"] / timing["median"] / 1e9,
                ratio(timing["copy_samples"], timing["samples"]), other and ratio(other, timing["samples"]),
            ]  # fmt: skip
            wrong += timing["wrong"]
        yield [method, *cells, wrong]


def exchanges(run: Run) -> Figure:
    """The halo rows of graphs in METIS parts: alone, and with the owned rows in one tensor."""

    def rows() -> Iterator[list[Any]]:
        for graph in run.some(GRAPHS):
            lines = bench(run, str(run.path(graph)), "--method", "halo,gloo-halo,auto,gloo")["lines"]
            yield from ([graph, lines[0]["halo_rows"], *row] for row in beside_gloo(lines))

    small = ("`{method}`".format_map, "{graph}".format_map, THERE_AND_BACK)
    return Figure({"graph": "", "halo rows": ",", **COLUMNS}, rows(), machine(), small=small)


def sizes(run: Run) -> Figure:
    """All to all, by what a rank receives."""

    def rows() -> Iterator[list[Any]]:
        for megabytes in run.some((1, 4, 16, 64)):
            lines = bench(run, "-b", f"{megabytes}M", "--method", "auto,gloo")["lines"]
            yield from ([megabytes, *row] for row in beside_gloo(lines))

    small = ("`{method}`".format_map, "{MB per rank} MB".format_map, THERE_AND_BACK)
    return Figure({"MB per rank": "", **COLUMNS}, rows(), machine(), small=small)


def on_first_rank(path: Path) -> tuple[Graph | None, Any]:
    """The graph and its parts on rank 0, which gives the others theirs."""
    if context.require_control().rank:
        return None, None
    graph = both_ways(read_graph(path).graph)
    return graph, partition_graph(graph, RANKS)


def pool_bytes(comm: Any) -> int:
    """Bytes that a rank's buffers take: whole segments, all windows of all widths so far."""
    return int(comm.transport.runtime.pool.bytes_allocated)


def overlaps(path: Path, rounds: int) -> list[list[Any]]:
    """A sum over all in-edges and its backward, the exchange included, in two ways."""
    graph, part = on_first_rank(path)
    comm = dgcl.build_comm_info(graph, "uniform", part=part)
    whole = comm.local_graph("csr")
    x = torch.randn(comm.num_owned, WIDTH, requires_grad=True)
    ways: dict[str, Callable[[], Tensor]] = {
        "allgather, then one sum": lambda: whole.sum(dgcl.graph_allgather(x)),
        "halo rows during the first sum": comm.aggregator(),
    }

    def there_and_back(forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        x.grad = None
        y = forward()
        y.backward(x.detach())
        return y.detach(), x.grad

    calls = {way: partial(there_and_back, forward) for way, forward in ways.items()}
    results = [call() for call in calls.values()]
    largest = [expected.abs().max() for expected in results[0]]
    errors = [
        max(float((a - b).abs().max() / most) for a, b, most in zip(result, results[0], largest, strict=True))
        for result in results
    ]
    errors = [max(each) for each in zip(*comm.control.exchange(errors), strict=True)]
    times = turns(comm, calls, rounds)
    first = next(iter(times.values()))
    return [
        [way, 1e3 * time.median, first.ratio(time), error]
        for (way, time), error in zip(times.items(), errors, strict=True)
    ]


def overlap(run: Run) -> Figure:
    """Sums while halo rows are on their way."""
    columns = {"graph": "", "way": "", "sum and backward, ms": ".1f", "speed": ".2f", "error": ".0e"}
    names = run.some(GRAPHS)
    rows = ([name, *row] for name in names for row in on_ranks(overlaps, RANKS, run.path(name), run.rounds))
    text = "{sum and backward, ms:.1f}, {speed:.2f}"
    return Figure(columns, rows, machine(), small=("{way}".format_map, "{graph}".format_map, text.format_map))


def training(path: Path, steps: int) -> list[list[Any]]:
    """What a two-layer GCN holds on each rank: peak, buffers; and growth in half of the steps."""
    graph, part = on_first_rank(path)
    comm = dgcl.build_comm_info(graph, "uniform", part=part)
    num_nodes, before = comm.num_nodes, resident("VmRSS")
    x = comm.dispatch_features(torch.rand(num_nodes, WIDTH) if graph else None)
    local = comm.local_graph("csr")
    layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
    optimizer, held = torch.optim.Adam(layers.parameters()), {}
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins here: set-up is no part of a step
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        h = x
        for layer in layers:
            h = torch.relu(local.sum(layer(dgcl.graph_allgather(h))))
        h.mean().backward()
        del h
        dgcl.nn.sync_gradients(layers)
        optimizer.step()
        held[step] = np.array([pool_bytes(comm), resident("VmRSS")])
    grown = held[steps] - held[steps // 2]
    sizes = np.array([resident("VmHWM") - before, pool_bytes(comm), *grown]) / 1e6
    return comm.control.exchange([comm.rank, *sizes])


def memory(run: Run) -> Figure:
    """What training holds, and whether it grows."""
    names = ("peak", "buffers", "buffers grow", "process grows")
    rows = (
        [graph, *row]
        for graph in run.some(GRAPHS)
        for row in on_ranks(training, RANKS, run.path(graph), 4 if run.quick else 100)
    )
    return Figure({"graph": "", "rank": "", **dict.fromkeys(names, "{:.2f} MB")}, rows, machine())


def one_epoch(graph: Graph, kind: str) -> list[Any]:
    """Processor milliseconds of an epoch: at the machine's rates, taken, and of its sums and products alone; DGL's."""
    torch.set_num_threads(1)
    comm, pairs, times = dgcl.build_comm_info(graph), list(pairwise(EPOCH)), 1 + (kind == "SAGE")
    block, n = comm.local_graph("dgl"), comm.num_owned
    rows, y = {width: torch.rand(n, width) for width in EPOCH}, torch.arange(n) % EPOCH[-1]
    aggregate, read, large = comm.aggregator(), reading(), torch.rand(1536, 1536)
    summed = [min(pair) for pair in (*pairs, *pairs[1:])]  # features want no gradient
    multiplied = [(a, b) for number, (a, b) in enumerate(pairs) for _ in range(times * (2 + (number > 0)))]

    def epoch_of(make: Callable[..., Any], *inputs: Any, **options: Any) -> Callable[[], None]:
        layers = torch.nn.ModuleList(make(*pair, **options) for pair in pairs)
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)

        def step() -> None:
            h = rows[EPOCH[0]]
            for number, layer in enumerate(layers):
                h = torch.relu(h) if number else h
                h = layer(*inputs, h)
            F.cross_entropy(h, y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    if kind == "SAGE":
        mine, theirs = epoch_of(dgcl.nn.SAGEConv), epoch_of(dgl.nn.SAGEConv, block, aggregator_type="mean")
    else:  # with self loops in the graph
        mine, theirs = epoch_of(dgcl.nn.GCNConv, add_self_loops=False), epoch_of(dgl.nn.GraphConv, block)
    calls: dict[str, Callable[[], Any]] = {
        "read": read, "large": lambda: large @ large, "epoch": mine, "DGL": theirs,
        "sums": lambda: [aggregate(rows[width]) for width in summed],
        "products": lambda: [rows[a] @ torch.ones(a, b) for a, b in multiplied],
    }  # fmt: skip
    taken = in_turns(calls, 3, clock=PROCESS)
    ms = {name: 1e3 * time.median for name, time in taken.items()}
    size = sum(4 * (graph.num_edges * (width + 1) + n * width) for width in summed)
    least = size / (256 << 20) * ms["read"]
    least += sum(n * a * b for a, b in multiplied) / 1536**3 * ms["large"]
    against = taken["DGL"].ratio(taken["epoch"])
    return [least, ms["epoch"], ms["sums"], ms["products"], ms["epoch"] / least, against]


def epochs(run: Run) -> Iterator[list[Any]]:
    """A row for each graph and model, with new memory for each result and with memory that the process keeps."""
    for name in run.some(("coauthor_physics", "ogbn_arxiv")):
        for kind, memory in product(("GCN", "SAGE"), ("new", "kept")):
            os.environ["GLIBC_TUNABLES"] = KEPT if memory == "kept" else ""
            yield [name, kind, memory, *on_ranks(one_epoch, 1, both_ways(run.graph(name)), kind)]


def epoch(run: Run) -> Figure:
    """Epochs of one rank beside what the machine's own rates would give."""
    columns = dict.fromkeys(("graph, both ways", "model", "memory"), "") | {"at the machine's rates": ".0f"}
    columns |= {"epoch": ".0f", "sums": ".0f", "products": ".0f", "ratio": ".2f", "DGL's / it": ".2f"}
    text = "{at the machine's rates:.0f} → {epoch:.0f}, {ratio:.2f}"
    small = ("{graph, both ways}, {model}".format_map, "{memory} memory".format_map, text.format_map)
    about = f"{machine()} Milliseconds of processor time, one thread."
    return Figure(columns, epochs(run), about, small=small)


FIGURES = {
    "exchanges": exchanges,
    "sizes": sizes,
    "overlap": overlap,
    "memory": memory,
    "epoch": epoch,
}

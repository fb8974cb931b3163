"""The figures of docs/performance.md, measured on this host in one run of a few minutes.

    python docs/benchmarks/performance.py [--data FOLDER] [--page docs/performance.md] [--quick]

FOLDER holds web_google_scc.npz and ogbn_arxiv.npz (graph files). What is compared takes turns, sample by sample, and
ratios are medians over samples, so that whatever else the host does hits both sides. Every element of every call
is verified; a wrong one ends the run with exit status 1 and no figures. They replace what stands between the
markers of the page; beside this program lies their JSON twin.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from performance_page import figures
from performance_profile import profile
from performance_terms import COMPARED, FRACTIONS, GRAPHS, OTHERS, SIZES, VERBS, WIDTH

import dgcl
import dgcl.nn
from dgcl.bench.baselines import GlooHaloCalls
from dgcl.bench.flags import Flags
from dgcl.bench.measure import measure
from dgcl.bench.problems import Problem, from_pattern, load_problem, save_problem, take_fraction
from dgcl.bench.records import Case, Line, Settings
from dgcl.bench.report import total_wrong
from dgcl.bench.transports import HaloCalls, Measured
from dgcl.cli.info import describe_machine
from dgcl.graph import as_graph
from dgcl.graph.files import read_graph
from dgcl.partition import partition_graph
from dgcl.ranks.context import context
from dgcl.topology import Topology, resolve_topology

ROOT = Path(__file__).resolve().parents[2]
MARKERS = ("<!-- figures begin -->", "<!-- figures end -->")


def fraction_of(path: Path, fraction: float) -> Problem:
    """A part of a saved problem."""
    return take_fraction(load_problem(path), fraction)


def nothing(record: object) -> None:
    """Nobody watches."""


def on_ranks(paths: dict[str, Path], topology: Topology, quick: bool) -> dict[str, Any] | None:
    """All measurements with this number of ranks; the results on rank 0. Without graphs latencies alone."""
    world_size = topology.num_devices

    def run(methods: tuple[str, ...], cases: list[Case], iterations: int) -> list[Line]:
        result = measure(cases, Settings(methods, topology, iterations=iterations, warmup=2), nothing)
        return result.lines if result is not None else []

    def alltoall(rows: int, width: int) -> Case:
        return Case(functools.partial(from_pattern, "alltoall", world_size, rows), (width,))

    def samples(number: int) -> int:
        return 5 if quick else number

    found: dict[str, Any] = {
        "small": run(("executor", "operator", "gloo"), [alltoall(1, 256)], samples(1000))
    }
    if paths:
        whole = [Case(functools.partial(load_problem, path), (WIDTH,)) for path in paths.values()]
        found["graphs"] = run(COMPARED, whole, samples(11)) + run(OTHERS, whole, 5)
        found["folds"] = run(("auto", "auto+atomic", "auto+substages"), whole, 5)
        per_rank = {size: (size << 20) // (WIDTH * 4 * (world_size - 1)) for size in SIZES}
        found["large"] = run(
            ("auto", "gloo"), [alltoall(rows, WIDTH) for rows in per_rank.values()], samples(7)
        )
        path = paths["ogbn_arxiv"]
        parts = [Case(functools.partial(fraction_of, path, f), (WIDTH,), f) for f in FRACTIONS]
        found["fractions"] = run(("halo",), parts, samples(9))
        found["profile"] = {name: profile(path, topology, samples(5)) for name, path in paths.items()}
        found["growth"] = grow(20 if quick else 1000)
        found["hot"] = {name: back_to_back(path, topology) for name, path in paths.items()}
        found["overlap"] = {name: overlap(path, topology, 5) for name, path in paths.items()}
    return found if context.require_control().rank == 0 else None


def train(path: Path, topology: Topology, constant: bool) -> list[dict[str, Any]]:
    """What a two-layer GCN with rows of 128 elements takes on each rank, and what was predicted; with a
    ``constant`` input its halo rows are exchanged once. For processes that have done nothing else."""
    control = context.require_control()
    grow(6)  # libraries and compiled code are loaded, and count for nothing
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    problem = load_problem(path) if control.rank == 0 else None
    comm = dgcl.build_comm_info(problem and problem.graph, topology, part=problem and problem.part)
    graph = comm.local_graph("csr")
    layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
    optimizer = torch.optim.Adam(layers.parameters())
    features = None if problem is None else torch.ones(1, WIDTH).expand(problem.graph.num_nodes, WIDTH)
    x = dgcl.dispatch_features(features, halo=constant)
    del problem, features
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins here: set-up is no part of a step

    def step() -> None:
        optimizer.zero_grad()
        h = x
        for number, layer in enumerate(layers):
            # Not under a name of its own, which would keep the rows beyond the layer's backward.
            h = torch.relu(graph.sum(layer(h if constant and number == 0 else dgcl.graph_allgather(h))))
        h.mean().backward()
        dgcl.nn.sync_gradients(layers)
        optimizer.step()

    for _ in range(5):
        step()
    predicted = comm.memory([WIDTH] * 2)
    if constant:  # the one allgather that is left is that of the second layer, whose input needs a gradient
        predicted = comm.memory([WIDTH], constants=[WIDTH], input_grad=True)
    mine = {
        "graph": path.stem,
        "constant": constant,
        "rank": control.rank,
        "tables": predicted.tables,
        "peak": resident("VmHWM") - before,
        "pool": comm.transport.runtime.pool.bytes_allocated,
        "predicted pool": predicted.pool,
    }
    comm.close()
    return control.exchange(mine)


def grow(epochs: int) -> list[dict[str, int]]:
    """Bytes that each rank holds after the second epoch and after many, on a small graph."""
    control = context.require_control()
    random = np.random.default_rng(0)
    problem = None
    if control.rank == 0:
        graph = as_graph(random.integers(0, 2000, (2, 16000)), num_nodes=2000)
        problem = Problem("random", graph, random.integers(0, control.world_size, 2000), control.world_size)
    comm = dgcl.build_comm_info(problem and problem.graph, "uniform", part=problem and problem.part)
    graph = comm.local_graph("csr")
    layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))
    x = torch.randn(comm.num_owned, 64, requires_grad=True)
    held = {}
    for epoch in range(1, epochs + 1):
        h = x
        for layer in layers:
            h = torch.relu(graph.sum(layer(dgcl.graph_allgather(h))))
        h.mean().backward()
        if epoch in (2, epochs // 2, epochs):
            held[epoch] = (comm.transport.runtime.pool.bytes_allocated, resident("VmRSS"))
    comm.close()
    (early, _), (_, warm), (late, last) = held.values()
    return control.exchange({"epochs": epochs, "pool": late - early, "resident": last - warm})


def back_to_back(path: Path, topology: Topology, calls: int = 20, samples: int = 7) -> dict[str, list[float]]:
    """Seconds per exchange of halo rows, for many exchanges of the same rows one after the other, which so are
    in the caches as far as they fit; from the first rank's start to the last rank's end."""
    control = context.require_control()
    problem = load_problem(path) if control.rank == 0 else None
    comm = dgcl.build_comm_info(
        problem and problem.graph, topology, part=problem and problem.part, method="direct"
    )
    exchanges: dict[str, Measured] = {"halo": HaloCalls(comm), "gloo-halo": GlooHaloCalls(comm)}
    rows, gradients = torch.ones(comm.num_owned, WIDTH), torch.ones(comm.num_local, WIDTH)
    flags = Flags(control, 300.0)
    seconds: dict[str, list[float]] = {f"{name} {verb}": [] for name in exchanges for verb in VERBS}
    for sample in range(samples + 1):
        for name, exchange in exchanges.items():
            for verb, call, given in zip(
                VERBS, (exchange.expand, exchange.fold), (rows, gradients), strict=True
            ):
                flags.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    call(given)
                times = control.exchange((begin, time.perf_counter()))
                if sample > 0:
                    took = max(end for _, end in times) - min(start for start, _ in times)
                    seconds[f"{name} {verb}"].append(took / calls)
    flags.close()
    comm.close()
    return seconds


def overlap(path: Path, topology: Topology, samples: int) -> dict[str, list[float]]:
    """Seconds of a sum over all in-edges and its backward, the exchange included, in three ways that take
    turns; from the first rank's start to the last rank's end."""
    control = context.require_control()
    problem = load_problem(path) if control.rank == 0 else None
    comm = dgcl.build_comm_info(problem and problem.graph, topology, part=problem and problem.part)
    graph, split = comm.local_graph("csr"), comm.split_graph()
    x = torch.randn(comm.num_owned, WIDTH, requires_grad=True)

    def waited() -> torch.Tensor:
        halo = dgcl.graph_allgather_async(x).wait()
        return split.sum_owned(x) + split.sum_halo(halo)

    ways = {
        "allgather, then one sum": lambda: graph.sum(dgcl.graph_allgather(x)),
        "halo rows, then two sums": waited,
        "halo rows during the first sum": lambda: split.sum(x),
    }
    flags = Flags(control, 300.0)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    results: list[torch.Tensor] = []
    for sample in range(samples + 1):
        for way, forward in ways.items():
            x.grad = None
            flags.barrier()
            begin = time.perf_counter()
            y = forward()
            y.backward(x.detach())
            times = control.exchange((begin, time.perf_counter()))
            if sample == 0:
                results += [y.detach(), x.grad]
            else:
                seconds[way].append(max(end for _, end in times) - min(begin for begin, _ in times))
    for found, expected in zip(results[2:], results[:2] * 2, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)  # other orders of summation
    flags.close()
    comm.close()
    return seconds


def resident(field: str) -> int:
    """Bytes of this process in memory, now (VmRSS) or at most so far (VmHWM)."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) * 1024


def to_json(found: dict[str, Any]) -> dict[str, Any]:
    """Lines as plain values."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(each) for each in value]
        return dataclasses.asdict(value) if isinstance(value, Line) else value

    return {key: plain(value) for key, value in found.items()}


def main() -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "graphs")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md")
    parser.add_argument("--quick", action="store_true", help="few iterations: to see whether it works")
    given = parser.parse_args()
    before, _, rest = given.page.read_text(encoding="utf-8").partition(MARKERS[0])
    if MARKERS[1] not in rest:
        parser.error(f"--page {given.page}: has no lines {' and '.join(MARKERS)}")
    after = rest.partition(MARKERS[1])[2]
    load, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dgcl-performance-") as folder:
        paths = {}
        for name in GRAPHS:
            if not (given.data / f"{name}.npz").is_file():
                parser.error(f"--data {given.data}: has no {name}.npz")
            print(f"partitioning {name}", file=sys.stderr, flush=True)
            graph = read_graph(given.data / f"{name}.npz").graph
            paths[name] = Path(folder) / f"{name}.npz"
            save_problem(Problem(name, graph, partition_graph(graph, 4), 4), paths[name])
        found = {}
        for ranks in (2, 4):
            print(f"measuring with {ranks} ranks", file=sys.stderr, flush=True)
            topology = resolve_topology("host", ranks)
            args = (paths if ranks == 4 else {}, topology, given.quick)
            found[ranks] = dgcl.launch(on_ranks, ranks, *args, ranks="processes")[0]
        found[4]["memory"] = [
            dgcl.launch(train, 4, path, topology, constant, ranks="processes")[0]
            for path in paths.values()
            for constant in (False, True)
        ]
    parts = [part for run in found.values() for part in run.values()]
    lines = [line for part in parts for line in part if isinstance(line, Line)]
    if total_wrong(lines):
        print(f"{total_wrong(lines)} wrong elements: no figures are written", file=sys.stderr)
        return 1
    about = {
        "dgcl": dgcl.__version__,
        "torch": torch.__version__,
        "machine": describe_machine(),
        "load": load,
        "seconds": time.monotonic() - began,
    }
    text = "\n".join([before + MARKERS[0], "", figures(found[4], found[2], about), MARKERS[1] + after])
    given.page.write_text(text, encoding="utf-8")
    value = {"schema": "dgcl-performance/1", "about": about}
    value |= {str(r): _without_calls(to_json(f)) for r, f in found.items()}
    twin = Path(__file__).with_suffix(".json")
    twin.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {given.page} and {twin} in {about['seconds']:.0f} s", file=sys.stderr)
    return 0


def _without_calls(found: Any) -> Any:
    """The same without the seconds of single calls, of which samples are the sums."""
    if isinstance(found, dict):
        return {key: _without_calls(value) for key, value in found.items() if key != "calls"}
    return [_without_calls(each) for each in found] if isinstance(found, list) else found


if __name__ == "__main__":
    sys.exit(main())

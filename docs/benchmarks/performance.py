"""The figures of docs/performance.md, measured on this host in one run of a few minutes.

    python docs/benchmarks/performance.py [--data FOLDER] [--out docs/performance.md]

FOLDER holds web_google_scc.npz and ogbn_arxiv.npz (graph files). What is compared takes turns, lap by lap, and
ratios are medians over laps, so that whatever else the host does hits both sides. Every element of every call
is verified; a wrong one ends the run with exit status 1 and no page. Beside the page lies its JSON twin.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import dgcl
import dgcl.nn
from dgcl.bench.measure import measure
from dgcl.bench.problems import Problem, from_pattern, load_problem, save_problem, take_fraction
from dgcl.bench.records import Case, Line, Settings, Timing
from dgcl.bench.report import fits, total_wrong
from dgcl.cli.info import describe_machine
from dgcl.graph.files import read_graph
from dgcl.partition import partition_graph
from dgcl.threads import available_cores
from dgcl.topology import Topology, resolve_topology

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = {"web_google_scc": "web-Google core", "ogbn_arxiv": "ogbn-arxiv"}
WIDTH = 128
VERBS = ("forward", "backward")
FRACTIONS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


def fraction_of(path: Path, fraction: float) -> Problem:
    """A part of a saved problem."""
    return take_fraction(load_problem(path), fraction)


def nothing(record: object) -> None:
    """Nobody watches."""


def on_ranks(paths: dict[str, Path], topology: Topology, graphs: bool) -> dict[str, Any] | None:
    """All measurements with this number of ranks; the results on rank 0."""
    world_size = topology.num_devices

    def run(methods: tuple[str, ...], cases: list[Case], iterations: int) -> list[Line]:
        result = measure(cases, Settings(methods, topology, iterations=iterations, warmup=2), nothing)
        return result.lines if result is not None else []

    def alltoall(rows: int, width: int) -> Case:
        return Case(functools.partial(from_pattern, "alltoall", world_size, rows), (width,))

    found: dict[str, Any] = {"small": run(("auto", "operator", "gloo"), [alltoall(1, 256)], 1000)}
    found["one row"] = run(("auto", "operator"), [alltoall(1, WIDTH)], 1000)
    if graphs:
        whole = [Case(functools.partial(load_problem, path), (WIDTH,)) for path in paths.values()]
        found["graphs"] = run(("auto", "gloo", "swap", "padded"), whole, 11)
        found["folds"] = run(("auto", "auto+atomic", "auto+substages"), whole, 9)
        per_rank = {size: (size << 20) // (WIDTH * 4 * (world_size - 1)) for size in (1, 4, 16, 64)}
        found["large"] = run(("auto", "gloo"), [alltoall(rows, WIDTH) for rows in per_rank.values()], 15)
        path = paths["ogbn_arxiv"]
        parts = [Case(functools.partial(fraction_of, path, f), (WIDTH,), f) for f in FRACTIONS]
        found["fractions"] = run(("auto",), parts, 15)
        found["memory"] = train(paths["web_google_scc"], topology)
    return found if dgcl.context.context.require_control().rank == 0 else None


def train(path: Path, topology: Topology) -> list[dict[str, float]]:
    """What a two-layer GCN with rows of 128 elements takes on each rank, and what was predicted."""
    control = dgcl.context.context.require_control()
    problem = load_problem(path) if control.rank == 0 else None
    comm = dgcl.build_comm_info(problem and problem.graph, topology, part=problem and problem.part)
    graph = comm.local_graph("csr")
    layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
    optimizer = torch.optim.Adam(layers.parameters())
    before = resident("VmRSS")
    x = torch.randn(comm.num_owned, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        h = x
        for layer in layers:
            h = torch.relu(graph.sum(layer(dgcl.graph_allgather(h))))
        h.mean().backward()
        dgcl.nn.sync_gradients(layers)
        optimizer.step()

    step()
    held = comm._runtime.pool.bytes_allocated
    for _ in range(4):
        step()
    predicted = comm.memory([WIDTH, WIDTH])
    mine = {
        "tables": predicted.tables,
        "peak": resident("VmHWM") - before,
        "pool": comm._runtime.pool.bytes_allocated,
        "predicted pool": predicted.pool,
        "growth": comm._runtime.pool.bytes_allocated - held,
    }
    comm.close()
    return control.exchange(mine)


def resident(field: str) -> int:
    """Bytes of this process in memory, now (VmRSS) or at most so far (VmHWM)."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) * 1024


# What the measurements say.


def pick(lines: list[Line], method: str, name: str | None = None) -> Line:
    """The line of a method (of one problem)."""
    return next(line for line in lines if line.method == method and name in (None, line.name))


def ratio(slow: Timing, fast: Timing) -> float:
    """How many times as long, median over laps that took turns."""
    return statistics.median(a / b for a, b in zip(slow.laps, fast.laps, strict=True))


def share(timing: Timing) -> float:
    """Of the bandwidth of plain copies in the same turns, median over laps."""
    return statistics.median(c / t for c, t in zip(timing.copy_laps, timing.laps, strict=True))


def targets(four: dict[str, Any], two: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """(what, goal, found, met)."""
    rows = []
    for name, title in GRAPHS.items():
        auto, gloo = (pick(four["graphs"], method, name) for method in ("auto", "gloo"))
        for verb in VERBS:
            times = ratio(getattr(gloo, verb), getattr(auto, verb))
            rows.append((f"{title}, {verb}: faster than gloo", ">= 3x", f"{times:.1f}x", times >= 3))
    for found, ranks in ((four, 4), (two, 2)):
        auto, gloo = (pick(found["small"], method) for method in ("auto", "gloo"))
        for verb in VERBS:
            times = ratio(getattr(gloo, verb), getattr(auto, verb))
            what = f"1 KB per pair, {ranks} ranks, {verb}: lower latency than gloo"
            rows.append((what, ">= 20x", f"{times:.1f}x", times >= 20))
    large = [line for line in four["large"] if line.method == "auto"][-1]
    for verb in VERBS:
        part = share(getattr(large, verb))
        what = f"{large.size / 2**20:.0f} MB per rank, {verb}: of the bandwidth of plain copies"
        rows.append((what, ">= 80%", f"{part:.0%}", part >= 0.8))
    for found, ranks in ((two, 2), (four, 4)):
        auto, operator = (pick(found["one row"], method) for method in ("auto", "operator"))
        for verb in VERBS:
            more = [
                b - a for a, b in zip(getattr(auto, verb).laps, getattr(operator, verb).laps, strict=True)
            ]
            added = statistics.median(more) * 1e6
            goal = "< 100 us" if ranks <= available_cores() else "reported"
            met = added < 100 or goal == "reported"
            rows.append(
                (f"one row per pair, {ranks} ranks, {verb}: autograd adds", goal, f"{added:.1f} us", met)
            )
    memory = four["memory"]
    tables = max(rank["tables"] / rank["peak"] for rank in memory)
    rows.append(("tables, of a training step's peak memory", "< 0.2%", f"{tables:.2%}", tables < 0.002))
    off = max(abs(rank["pool"] / rank["predicted pool"] - 1) for rank in memory)
    rows.append(("buffers, off the prediction of comm.memory()", "< 2%", f"{off:.2%}", off < 0.02))
    return rows


def page(four: dict[str, Any], two: dict[str, Any], about: dict[str, Any]) -> str:
    """The whole page, in Markdown."""
    machine = about["machine"]
    text = [
        "# Performance",
        "",
        f"CPU ranks of one host: {machine['cpu']}, {machine['cores']} cores,"
        f" {machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}; dgcl {about['dgcl']}, torch"
        f" {about['torch']}. Load average when the run began: {about['load']:.1f}; it took"
        f" {about['seconds']:.0f} s. Every element of every call was verified. Rows are {WIDTH} float32.",
        "",
        "    python docs/benchmarks/performance.py",
        "",
        "makes this page and its JSON twin, performance.json. [Benchmarks](bench.md) says how time is taken:"
        " what is compared takes turns, and a ratio is the median over turns.",
        "",
        *table(
            ("target", "goal", "found", ""),
            [
                (what, goal, got, "met" if met else "**missed**")
                for what, goal, got, met in targets(four, two)
            ],
        ),
        "## Graphs, 4 ranks",
        "",
        "Median microseconds of a call, the rate at which all ranks together write their results, and its"
        " share of the rate of plain copies. `gloo` is `all_to_all_single` of packed rows, packing included;"
        " `swap` and `padded` run on our own executor, so they show what is sent and not who sends it.",
        "",
        *verbs_table(
            [(GRAPHS[line.name], line.method, line) for line in four["graphs"]], ("graph", "method")
        ),
        "## Folds",
        "",
        "Gradients added in one pass in a fixed order, by atomic additions into the owner's rows, and in the"
        " paper's sub-stages (its Table 9).",
        "",
        *verbs_table(
            [(GRAPHS[line.name], line.method, line) for line in four["folds"]], ("graph", "fold"), 1
        ),
        "## Sizes, all to all, 4 ranks",
        "",
        *verbs_table(
            [(f"{line.size / 2**20:.3g} MB", line.method, line) for line in four["large"]],
            ("per rank", "method"),
        ),
        "## Latency, one row of 1 KB per pair",
        "",
        "`operator` is `auto` called as models call it, through autograd.",
        "",
        *verbs_table(
            [
                (f"{ranks} ranks", line.method, line)
                for found, ranks in ((two, 2), (four, 4))
                for line in found["small"]
            ],
            ("", "method"),
        ),
        "## The model (the paper's Figure 10)",
        "",
        "ogbn-arxiv with a part of the vertices sent; the cost model on this host's measured copy rates.",
        "",
        *fraction_tables(four["fractions"]),
        "## Memory",
        "",
        "A two-layer GCN on web-Google core, 4 ranks; peak is what five training steps needed at most beyond"
        " the graph and the tables.",
        "",
        *table(
            ("rank", "tables", "peak", "pool", "predicted", "growth after step 1"),
            [
                (
                    str(rank),
                    *(f"{row[key] / 1e6:.2f} MB" for key in ("tables", "peak", "pool", "predicted pool")),
                    f"{row['growth']} B",
                )
                for rank, row in enumerate(four["memory"])
            ],
        ),
    ]
    return "\n".join(text).rstrip() + "\n"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table."""
    return [
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def verbs_table(rows: list[tuple[str, str, Line]], header: tuple[str, str], first_verb: int = 0) -> list[str]:
    """Time, bandwidth and share of copies for each verb from ``first_verb`` on."""
    verbs = VERBS[first_verb:]
    cells = []
    for what, method, line in rows:
        timings = [getattr(line, verb) for verb in verbs]
        cells.append(
            (
                what,
                method,
                *(
                    cell
                    for t in timings
                    for cell in (
                        f"{t.median * 1e6:,.1f}",
                        f"{line.moved / t.median / 1e9:.2f}",
                        f"{share(t):.0%}",
                    )
                ),
            )
        )
    columns = [f"{verb} {unit}" for verb in verbs for unit in ("(us)", "GB/s", "of copies")]
    return table((*header, *columns), cells)


def fraction_tables(lines: list[Line]) -> list[str]:
    """Modelled and measured times, and the fitted lines."""
    rows = [
        (
            f"{line.fraction:g}",
            f"{line.model_seconds * 1e6:,.0f}" if line.model_seconds else "-",
            f"{line.forward.median * 1e6:,.0f}",
            f"{line.backward.median * 1e6:,.0f}",
        )
        for line in lines
    ]
    found = [
        f"- {verb}: {fit.intercept * 1e6:,.0f} us + {fit.slope:.2f} x modelled, R² {fit.r_squared:.4f}"
        for _, verb, fit in fits(lines)
    ]
    return [*table(("vertices", "modelled (us)", "forward (us)", "backward (us)"), rows), *found, ""]


def to_json(found: dict[str, Any]) -> dict[str, Any]:
    """Lines as plain values."""
    return {
        key: [dataclasses.asdict(v) if isinstance(v, Line) else v for v in values]
        for key, values in found.items()
    }


def main() -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "graphs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "performance.md")
    given = parser.parse_args()
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
            found[ranks] = dgcl.launch(on_ranks, ranks, paths, topology, ranks == 4, ranks="processes")[0]
    lines = [
        line for run in found.values() for part in run.values() for line in part if isinstance(line, Line)
    ]
    if total_wrong(lines):
        print(f"{total_wrong(lines)} wrong elements: no page is written", file=sys.stderr)
        return 1
    about = {
        "dgcl": dgcl.__version__,
        "torch": torch.__version__,
        "machine": describe_machine(),
        "load": load,
        "seconds": time.monotonic() - began,
    }
    given.out.write_text(page(found[4], found[2], about), encoding="utf-8")
    value = {"schema": "dgcl-performance/1", "about": about, **{str(r): to_json(f) for r, f in found.items()}}
    given.out.with_suffix(".json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {given.out} in {about['seconds']:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

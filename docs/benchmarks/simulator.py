"""What the simulator answers, as the tables of docs/simulation.md.

    python docs/benchmarks/simulator.py [--scale 0.1] [--json results.json] [--write docs/simulation.md]

First the variants of `dgcl simulate --what-if` for plans of `auto` on several machines, as simulated time over the
model's; then measured calls of two CPU ranks (threads, shared memory) beside the simulated ones. The machine of the
second table is the preset `host` for two ranks with all bandwidths multiplied by one factor, fitted to the first row
alone; the other rows are predictions. Under a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dgcl
from dgcl.planner import PlanOptions, make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.simulator.simulate import simulate
from dgcl.planner.simulator.what_if import what_if
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import Topology, resolve_topology

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
CASES = [
    (machine, graph, "auto")
    for machine in ("dgx1", "pcie8", "summit", "dgx_a100")
    for graph in ("com-orkut", "web-google")
] + [("dgx1", "com-orkut", "ring"), ("dgx1", "com-orkut", "spst")]
HEAD = ("barriers", "rank by rank", "earlier stages first", "all at once", "one send at a time")
HEAD += ("first, 16 slices", "first, one device 2 x slower")
# vertices, edges of a vertex, share of edges that cross, row elements (float32)
RUNS = ((60_000, 8, 0.5, 128), (60_000, 8, 0.1, 128), (20_000, 8, 0.5, 128), (60_000, 8, 0.5, 512))
RUNS += ((60_000, 2, 0.5, 256), (200_000, 2, 0.3, 64))
REPEATS = 30


def variants(scale: float) -> list[dict[str, Any]]:
    """Simulate every case under every variant."""
    rows = []
    for machine, graph, method in CASES:
        topology = resolve_topology(machine)
        relation = synthetic_relation(graph, topology.num_devices, scale=scale)
        plan = make_plan(relation, topology, method)
        answers = [answer.to_json() for answer in what_if(plan)]
        rows.append(
            {
                "machine": machine,
                "graph": graph,
                "method": method,
                "stages": plan.num_stages,
                "answers": answers,
            }
        )
        print(f"{machine} {graph} {method}", file=sys.stderr, flush=True)
    return rows


def crossing(num: int, degree: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Edges of which a share crosses between two parts, and the parts; one in ten crosses the other way round.

    Uneven, so that one rank has more to send than the other.
    """
    rng = np.random.default_rng(num + degree)
    part = np.arange(num) % 2
    head = np.repeat(np.arange(num), degree)
    tail = rng.integers(0, num // 2, len(head)) * 2
    other = rng.random(len(head)) < np.where(part[head] == 0, share, share / 10)
    tail += np.where(other, 1 - part[head], part[head])
    return np.stack([tail, head]), part


def measured(topology: Topology) -> list[dict[str, Any]]:
    """Run each graph on two ranks; the best of many calls."""
    found = []
    for num, degree, share, width in RUNS:
        edges, part = crossing(num, degree, share)

        def rank(
            edges: np.ndarray = edges, part: np.ndarray = part, width: int = width
        ) -> tuple[float, Plan]:
            comm = dgcl.build_comm_info(edges, topology, part=part, row_bytes=4 * width)
            rows = torch.ones(comm.num_owned, width)
            best = np.inf
            for _ in range(REPEATS):
                comm.control.barrier()
                started = time.perf_counter()
                comm.expand(rows)
                best = min(best, time.perf_counter() - started)
            return best, comm.plan

        results = dgcl.launch(rank, 2)
        found.append(
            {"run": (num, degree, share, width), "seconds": max(r[0] for r in results), "plan": results[0][1]}
        )
    return found


def scaled(topology: Topology, factor: float) -> Topology:
    """The topology with every bandwidth multiplied."""
    connections = tuple(replace(c, bandwidth=c.bandwidth * factor) for c in topology.connections)
    return replace(topology, connections=connections)


def against_runs() -> list[dict[str, Any]]:
    """Measured and simulated seconds, with one factor fitted to the first run."""
    host = resolve_topology("host:2")
    runs = measured(host)
    first = simulate(runs[0]["plan"], sends_at_once=1).seconds
    machine = scaled(host, first / runs[0]["seconds"])
    rows = []
    for run in runs:
        plan = run["plan"]
        seconds = simulate(plan, topology=machine, sends_at_once=1).seconds
        model = make_plan(
            plan.relation, machine, "direct", PlanOptions(row_bytes=plan.row_bytes)
        ).predicted_seconds
        size = plan.trees.rows_moved() * plan.row_bytes
        rows.append(
            {
                "run": run["run"],
                "bytes": size,
                "measured": run["seconds"],
                "simulated": seconds,
                "model": model,
            }
        )
    return rows


def page(table: list[dict[str, Any]], runs: list[dict[str, Any]]) -> str:
    """Both tables in Markdown."""
    lines = [f"| machine, graph, planner | stages | {' | '.join(HEAD)} |", f"|{' --- |' * (2 + len(HEAD))}"]
    for row in table:
        values = " | ".join(f"{answer['to_model']:.3f}" for answer in row["answers"])
        lines.append(f"| {row['machine']}, {row['graph']}, {row['method']} | {row['stages']} | {values} |")
    lines += [
        "",
        "| vertices, edges each, crossing, row | MB | measured ms | simulated ms | off | model ms |",
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for i, row in enumerate(runs):
        num, degree, share, width = row["run"]
        off = "fitted" if i == 0 else f"{100 * (row['simulated'] / row['measured'] - 1):+.0f} %"
        times = " | ".join(f"{1e3 * row[key]:.2f}" for key in ("measured", "simulated"))
        lines.append(
            f"| {num:,}, {degree}, {share:.0%}, {4 * width} B | {row['bytes'] / 1e6:.1f} | {times} | {off} |"
            f" {1e3 * row['model']:.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1, help="of the relations' sizes")
    parser.add_argument("--json", default="")
    parser.add_argument("--write", default="", help="page to put the tables into")
    given = parser.parse_args()
    table, runs = variants(given.scale), against_runs()
    text = page(table, runs)
    print(text)
    if given.json:
        Path(given.json).write_text(json.dumps({"variants": table, "runs": runs}, indent=1))
    if given.write:
        before, rest = Path(given.write).read_text().split(BEGIN)
        Path(given.write).write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

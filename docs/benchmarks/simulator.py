"""What the simulator answers, as the tables of docs/simulation.md.

    python docs/benchmarks/simulator.py [--scale 0.1] [--json results.json] [--write docs/simulation.md]

First the variants of `dgcl simulate --what-if` for plans of `auto` on several machines, as simulated time over the
model's; then measured calls of CPU ranks beside the simulated ones (`simulator_runs.py`). About two minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from marked import print_into
from simulator_runs import against_runs
from simulator_runs import table as run_table

from dgcl.planner import make_plan
from dgcl.planner.simulator.what_if import what_if
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import resolve_topology
from dgcl.topology.latencies import without_latencies

CASES = [
    (machine, graph, "auto")
    for machine in ("dgx1", "pcie8", "summit", "dgx_a100")
    for graph in ("com-orkut", "web-google")
] + [("dgx1", "com-orkut", "ring"), ("dgx1", "com-orkut", "spst")]
HEAD = (
    "barriers", "rank by rank", "one device 2 x slower", "all at once", "16 slices", "one send at a time",
)  # fmt: skip


def variants(scale: float) -> list[dict[str, Any]]:
    """Simulate every case under every variant."""
    rows = []
    for machine, graph, method in CASES:
        topology = without_latencies(resolve_topology(machine))
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


def page(table: list[dict[str, Any]], runs: list[dict[str, Any]]) -> str:
    """Both tables in Markdown."""
    lines = [f"| machine, graph, planner | stages | {' | '.join(HEAD)} |", f"|{' --- |' * (2 + len(HEAD))}"]
    for row in table:
        values = " | ".join(f"{answer['to_model']:.3f}" for answer in row["answers"])
        lines.append(f"| {row['machine']}, {row['graph']}, {row['method']} | {row['stages']} | {values} |")
    lines += ["", *run_table(runs)]
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
    if given.json:
        Path(given.json).write_text(json.dumps({"variants": table, "runs": runs}, indent=1))
    print_into(given.write, "figures", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A study on paper: one graph on ever more machines, from 8 ranks to 1024, without building the graph.

    python docs/benchmarks/planner_scale.py [--graph web-google] [--node dgx_a100] [--ranks 8,16,...,1024]
                                            [--time-limit 180] [--json results.json] [--write docs/planner.md]

The relation is drawn at each number of ranks (dgcl.planner.synthetic), the machines are NODE xN clusters. Each plan
may take `--time-limit` seconds; what it has by then is what is shown, with its own gap. Columns: boundary vertices and
readers per vertex; peer-to-peer and the plan in milliseconds per allgather; how far the plan is above the bound; its
stages; rows sent over rows needed; seconds of processor time to plan; what the bound rests on. About two minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from marked import write_between

from dgcl.planner import Plan, PlanOptions, make_plan
from dgcl.planner.synthetic import SHAPES, synthetic_relation
from dgcl.topology import resolve_topology

RANKS = "8,16,32,64,128,256,512,1024"
HEAD = [
    "ranks",
    "boundary",
    "readers",
    "direct ms",
    "plan ms",
    "over bound %",
    "stages",
    "sent",
    "planned in s",
]
HEAD += ["limited by"]


def draw_and_plan(graph: str, node: str, ranks: int, options: PlanOptions) -> tuple[Plan, float]:
    """A graph's relation at this number of ranks on a cluster of such machines: its plan, and the seconds it took."""
    each = resolve_topology(node).num_devices
    topology = resolve_topology(node if ranks == each else f"{node}x{ranks // each}")
    relation = synthetic_relation(graph, ranks)
    started = time.process_time()
    plan = make_plan(relation, topology, "auto", options)
    return plan, time.process_time() - started


def measure(graph: str, node: str, ranks: int, options: PlanOptions) -> dict[str, Any]:
    """Draw, plan, and return a row."""
    plan, seconds = draw_and_plan(graph, node, ranks, options)
    relation = plan.relation
    return {
        "ranks": ranks,
        "boundary_vertices": relation.num_vertices,
        "average_destinations": relation.deliveries / relation.num_vertices,
        "direct_seconds": plan.direct_seconds,
        "predicted_seconds": plan.predicted_seconds,
        "gap": plan.gap,
        "num_stages": plan.num_stages,
        "sent": plan.trees.rows_moved() / relation.deliveries,
        "planning_seconds": seconds,
        "limited_by": plan.meta["limited_by"],
    }


def line(row: dict[str, Any]) -> str:
    """One row in Markdown."""
    direct = "" if row["direct_seconds"] is None else f"{1e3 * row['direct_seconds']:.3f}"
    values = (
        f"{row['ranks']}", f"{row['boundary_vertices']:,}", f"{row['average_destinations']:.2f}", direct,
        f"{1e3 * row['predicted_seconds']:.3f}", f"{100 * row['gap']:.1f}", f"{row['num_stages']}",
        f"{row['sent']:.2f}", f"{row['planning_seconds']:.1f}", row["limited_by"],
    )  # fmt: skip
    return f"| {' | '.join(values)} |"


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="web-google", choices=sorted(SHAPES))
    parser.add_argument("--node", default="dgx_a100", help="a preset of one machine")
    parser.add_argument("--ranks", default=RANKS)
    parser.add_argument("--time-limit", type=float, default=180.0, help="seconds for each plan")
    parser.add_argument("--json", default="")
    parser.add_argument("--write", default="", help="page to put the table into")
    given = parser.parse_args()
    options = PlanOptions(time_limit=given.time_limit, gap=0.01)
    make_plan(
        synthetic_relation("web-google", 16, scale=0.001), resolve_topology("dgx1x2")
    )  # loads compiled code
    rows = []
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}")
    for ranks in given.ranks.split(","):
        rows.append(measure(given.graph, given.node, int(ranks), options))
        print(line(rows[-1]), flush=True)
    if given.json:
        Path(given.json).write_text(json.dumps({"options": vars(given), "results": rows}, indent=1))
    if given.write:
        text = "\n".join([f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}", *map(line, rows)])
        write_between(given.write, "scale", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

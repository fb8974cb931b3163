"""Planning time, gap to the proven bound, and the comparison with the paper's greedy, as one table.

    python docs/benchmarks/planner.py [--machines dgx1,pcie8,...] [--shapes reddit,...] [--methods auto,spst]
                                      [--scale 1.0] [--json results.json]

Relations are drawn (dgcl.planner.synthetic) with the sizes of the paper's four graphs. One process, one core
(planning is not threaded). Each plan is timed once after a warm-up of the same machine with a small relation,
so compiled code is loaded. Columns:

    machine, ranks, graph, classes, vertices   what is planned; vertices are those that some other rank needs
    method          who made the plan ("auto: prices" means that auto took the plan by prices)
    ok              the plan was proved to deliver, and its cost, gap and fingerprint recomputed (verify_plan)
    ms              predicted milliseconds of one allgather of `row-bytes` wide rows
    x bound         predicted / proven lower bound; 1.000 is optimal
    x direct        peer-to-peer / predicted; above 1 planning pays
    stages          number of stages
    sent            rows sent over links / rows needed: 1.00 is no relaying at all
    plan s          seconds from the relation in memory to the plan in memory, verified
    limited by      what the bound rests on
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from typing import Any

from dgcl.planner import PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.synthetic import SHAPES, synthetic_relation
from dgcl.planner.verify import verify_plan
from dgcl.topology import Topology, resolve_topology

MACHINES = "dgx1,pcie8,summit,dgx_a100,hgx_h100,dgx1x2"
METHODS = "auto,optimal,spst"


def measure(relation: Relation, topology: Topology, method: str, options: PlanOptions) -> dict[str, Any]:
    """Plan once and return a row of the table."""
    plan = make_plan(relation, topology, method, options)
    started = time.perf_counter()
    try:
        verify_plan(plan)
        correct = True
    except ValueError as error:
        print(f"WRONG: {error}", file=sys.stderr)
        correct = False
    made_by = plan.meta.get("made_by", method)
    return {
        "method": method if made_by == method else f"{method}: {made_by}",
        "correct": correct,
        "predicted_seconds": plan.predicted_seconds,
        "lower_bound_seconds": plan.lower_bound_seconds,
        "gap": plan.gap,
        "direct_seconds": plan.direct_seconds,
        "num_stages": plan.num_stages,
        "num_trees": plan.trees.num_trees,
        "sent_per_needed": plan.trees.rows_moved() / max(1, relation.deliveries),
        "planning_seconds": plan.planning_seconds,
        "verifying_seconds": time.perf_counter() - started,
        "limited_by": plan.meta.get("limited_by", ""),
    }


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", default=MACHINES)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies vertices and edges of every graph"
    )
    parser.add_argument("--row-bytes", type=int, default=512)
    parser.add_argument("--gap", type=float, default=PlanOptions().gap)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="")
    given = parser.parse_args()
    options = PlanOptions(row_bytes=given.row_bytes, gap=given.gap)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    print(
        f"{'machine':10} {'ranks':>5} {'graph':10} {'classes':>8} {'vertices':>9} {'method':15} {'ok':3} {'ms':>9}"
        f" {'x bound':>8} {'x direct':>8} {'stages':>6} {'sent':>5} {'plan s':>7}  limited by"
    )
    results = []
    relations: dict[tuple[str, int], Relation] = {}
    for machine in given.machines.split(","):
        topology = resolve_topology(machine)
        ranks = topology.num_devices
        small = synthetic_relation("web-google", ranks, scale=0.001)
        for method in given.methods.split(","):
            make_plan(small, topology, method, options)
        for shape in given.shapes.split(","):
            if (shape, ranks) not in relations:
                relations[shape, ranks] = synthetic_relation(shape, ranks, seed=given.seed, scale=given.scale)
            relation = relations[shape, ranks]
            for method in given.methods.split(","):
                row = {
                    "machine": machine, "ranks": ranks, "graph": shape, "num_classes": relation.num_classes,
                    "boundary_vertices": relation.num_vertices, **measure(relation, topology, method, options),
                }  # fmt: skip
                results.append(row)
                direct = row["direct_seconds"]
                pays = "-" if direct is None else f"{direct / row['predicted_seconds']:.3f}"
                print(
                    f"{machine:10} {ranks:5d} {shape:10} {row['num_classes']:8d} {row['boundary_vertices']:9d}"
                    f" {row['method']:15} {'yes' if row['correct'] else 'NO':3}"
                    f" {1e3 * row['predicted_seconds']:9.3f} {1 + row['gap']:8.4f} {pays:>8}"
                    f" {row['num_stages']:6d} {row['sent_per_needed']:5.2f} {row['planning_seconds']:7.3f}"
                    f"  {row['limited_by']}",
                    flush=True,
                )
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"options": vars(given), "results": results}, file, indent=1)
    return 0 if all(row["correct"] for row in results) else 1


if __name__ == "__main__":
    sys.exit(main())

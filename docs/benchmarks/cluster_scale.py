"""How far training scales on paper: the epoch of a GNN on 16 to 1024 ranks, and where more of them stop paying.

    python docs/benchmarks/cluster_scale.py [--graph web-google] [--node dgx_a100] [--ranks 16,32,...,1024]
                                            [--time-limit 15] [--json results.json] [--write docs/cluster.md]

Without --graph two graphs: com-orkut up to 256 ranks (its relation at 1024 takes minutes to draw), web-google to 1024.

Drawn and planned as by planner_scale.py. An epoch of a GCN of L layers of F floats, on one rank, is

    arithmetic    L layers, forward and backward: every edge's row is read twice at `--memory` GB/s, and every
                  vertex costs 3 x 2 F F operations at `--flops` TFLOP/s
    fixed         `--fixed` microseconds: starting kernels and the optimizer, however few the vertices
    exchanges     L forward and L - 1 backward (features want no gradient): what the plan predicts, and for each message
                  of the busiest rank `--message` microseconds, which the plan does not count
    gradients     all ranks sum L F F parameters: twice over the slowest connection, in 2 log2(P) messages

Assumptions all, and options all; what a rank computes overlaps with nothing. About three minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from marked import write_between
from planner_scale import draw_and_plan

from dgcl.planner import Plan, PlanOptions, make_plan
from dgcl.planner.synthetic import SHAPES, synthetic_relation
from dgcl.topology import resolve_topology

GRAPHS = {"com-orkut": "16,32,64,128,256", "web-google": "16,32,64,128,256,512,1024"}
PAYS = 1.1  # an epoch must become this much shorter when the ranks are doubled
HEAD = ["ranks", "arithmetic ms", "exchange ms, direct", "messages", "exchange ms, planned", "messages"]
HEAD += ["epoch ms, direct", "epoch ms, planned", "against half the ranks", "epochs that pay for planning"]


def messages(plan: Plan) -> tuple[int, int]:
    """Messages of the rank that sends or receives most, peer to peer and planned."""
    pairs = plan.relation.pair_rows() > 0
    direct = int(max(pairs.sum(0).max(), pairs.sum(1).max()))
    trees, size = plan.trees, plan.relation.world_size
    sent = np.unique((trees.edge_stage.astype(np.int64) * size + trees.edge_src) * size + trees.edge_dst)
    ends = (sent // size % size, sent % size)
    return direct, max(int(np.bincount(end, minlength=size).max()) for end in ends)


def measure(given: argparse.Namespace, graph: str, ranks: int, options: PlanOptions) -> dict[str, Any]:
    """Draw, plan, and add the epoch up; seconds."""
    plan, seconds = draw_and_plan(graph, given.node, ranks, options)
    shape, layers, width = SHAPES[graph], given.layers, given.width
    gathered = 2 * layers * shape.num_edges / ranks * 4 * width / (given.memory * 1e9)
    dense = layers * shape.num_vertices / ranks * 6 * width**2 / (given.flops * 1e12)
    slowest = min(connection.bandwidth for connection in plan.topology.connections)
    parameters = 2 * layers * width**2 * 4 / (slowest * 1e9) + 2e-6 * math.log2(ranks) * given.message
    assert plan.direct_seconds is not None
    row: dict[str, Any] = {
        "ranks": ranks,
        "arithmetic": gathered + dense,
        "planning": seconds,
        "gap": plan.gap,
    }
    kinds = zip(
        ("direct", "planned"), (plan.direct_seconds, plan.predicted_seconds), messages(plan), strict=True
    )
    for kind, rows, count in kinds:
        exchange = rows + 1e-6 * given.message * count
        epoch = gathered + dense + 1e-6 * given.fixed + (2 * layers - 1) * exchange + parameters
        row[kind] = {"exchange": exchange, "messages": count, "epoch": epoch}
    return row


def line(row: dict[str, Any], before: dict[str, Any] | None) -> str:
    """One row in Markdown; ``before`` has half the ranks."""
    direct, planned = row["direct"], row["planned"]
    gain = direct["epoch"] - planned["epoch"]
    values = [f"{row['ranks']}", f"{1e3 * row['arithmetic']:.2f}"]
    for kind in (direct, planned):
        values += [f"{1e3 * kind['exchange']:.3f}", f"{kind['messages']}"]
    values += [f"{1e3 * kind['epoch']:.2f}" for kind in (direct, planned)]
    values.append("" if before is None else f"{best(before) / best(row):.2f}")
    values.append(f"{row['planning'] / gain:,.0f}" if gain > 0 else "never")
    return f"| {' | '.join(values)} |"


def best(row: dict[str, Any]) -> float:
    """The shorter epoch."""
    return float(min(row[kind]["epoch"] for kind in ("direct", "planned")))


def verdict(rows: list[dict[str, Any]]) -> str:
    """Where it stops paying, in a sentence."""
    last = rows[0]["ranks"]
    for before, row in itertools.pairwise(rows):
        if best(before) / best(row) < PAYS:
            break
        last = row["ranks"]
    if last == rows[-1]["ranks"]:
        return f"Each doubling up to {last} ranks shortens the epoch by {PAYS:g} times or more."
    return (
        f"It pays to go to {last} ranks; twice as many shorten the epoch by less than {PAYS:g} times, or not."
    )


def study(
    given: argparse.Namespace, graph: str, options: PlanOptions
) -> tuple[list[str], list[dict[str, Any]]]:
    """A graph's lines in Markdown, said as they come, and its rows."""
    shape = SHAPES[graph]
    rows: list[dict[str, Any]] = []
    lines = [f"**{graph}**, {shape.num_vertices:,} vertices, {shape.num_edges:,} edges:", ""]
    lines += [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    print("\n".join(lines))
    for ranks in (given.ranks or GRAPHS.get(graph, GRAPHS["web-google"])).split(","):
        before = rows[-1] if rows else None
        rows.append(measure(given, graph, int(ranks), options))
        lines.append(line(rows[-1], before))
        print(lines[-1], flush=True)
    lines += ["", verdict(rows), ""]
    print("\n".join(lines[-3:]))
    return lines, rows


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="", choices=["", *sorted(SHAPES)])
    parser.add_argument("--node", default="dgx_a100", help="a preset of one machine")
    parser.add_argument("--ranks", default="", help="several, by commas")
    parser.add_argument("--layers", type=int, default=2, help="L")
    parser.add_argument("--width", type=int, default=256, help="F, of float32")
    parser.add_argument(
        "--memory", type=float, default=1200.0, help="GB/s that gathering reaches on a device"
    )
    parser.add_argument("--flops", type=float, default=60.0, help="TFLOP/s that products of matrices reach")
    parser.add_argument("--fixed", type=float, default=200.0, help="microseconds")
    parser.add_argument("--message", type=float, default=2.0, help="microseconds")
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds for each plan")
    parser.add_argument("--json", default="")
    parser.add_argument("--write", default="", help="page to put the table into")
    given = parser.parse_args()
    options = PlanOptions(row_bytes=4 * given.width, time_limit=given.time_limit, gap=0.01)
    make_plan(synthetic_relation("web-google", 16, scale=0.001), resolve_topology("dgx1x2"))  # compiled code
    lines, results = [], {}
    for graph in [given.graph] if given.graph else GRAPHS:
        said, results[graph] = study(given, graph, options)
        lines += said
    if given.json:
        Path(given.json).write_text(json.dumps({"options": vars(given), "results": results}, indent=1))
    if given.write:
        write_between(given.write, "scale", "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How the row width decides the number of stages where links have latency.

    python docs/benchmarks/row_widths.py [--write docs/planner.md]

With the latencies of the presets. One row per machine, graph and row width; the times are the
model's, so they are the same on every machine that runs this. About a minute.

    stages              of the plan that `auto` makes for this width
    us                  its predicted time
    over bound %        how far that is above the proven bound
    plan for 512 B      predicted time of the plan made for rows of 512 bytes at this width / this plan's
    direct              predicted time of peer-to-peer / this plan's
"""

from __future__ import annotations

import argparse
import sys

from marked import print_into

from dgcl.planner import PlanOptions, make_plan
from dgcl.planner.cost import predicted_seconds
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import resolve_topology

CASES = (("dgx1", "com-orkut"), ("dgx1", "web-google"), ("pcie8", "web-google"), ("summit", "com-orkut"))
SCALE = 0.1  # of the relations' sizes
WIDTHS = (4, 32, 256, 2048)
COMMON = 512


def lines(machine: str, graph: str) -> list[str]:
    """The rows of one machine and graph."""
    topology = resolve_topology(machine)
    relation = synthetic_relation(graph, topology.num_devices, scale=SCALE)
    common = make_plan(relation, topology, "auto", PlanOptions(row_bytes=COMMON))
    found = []
    for width in WIDTHS:
        plan = make_plan(relation, topology, "auto", PlanOptions(row_bytes=width))
        other = predicted_seconds(common.trees, topology.arrays(), width) / plan.predicted_seconds
        direct = "" if plan.direct_seconds is None else f"{plan.direct_seconds / plan.predicted_seconds:.2f}"
        found.append(
            f"| {machine} | {graph} | {width} | {plan.num_stages} | {1e6 * plan.predicted_seconds:.1f} |"
            f" {100 * plan.gap:.1f} | {other:.3f} | {direct} |"
        )
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", default="", help="page to put the table into")
    given = parser.parse_args()
    rows = [
        "| machine | graph | row bytes | stages | us | over bound % | plan for 512 B | direct |",
        f"|{' --- |' * 8}",
    ]
    for machine, graph in CASES:
        rows += lines(machine, graph)
        print("\n".join(rows[-len(WIDTHS) :]), file=sys.stderr, flush=True)
    print_into(given.write, "widths", "\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

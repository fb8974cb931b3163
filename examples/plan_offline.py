"""Partition and plan on a laptop or login node for a machine that you do not have: no torch, no GPU, no ranks.

    python examples/plan_offline.py --topology dgx1 --out plan.npz
    dgcl check plan.npz

Prints the predicted time of an exchange by the plan and by sending everything directly, and the proven bound.
"""

from __future__ import annotations

import argparse

import numpy as np

from dgcl.graph import as_graph, read_graph
from dgcl.partition import partition_graph
from dgcl.planner import Plan, PlanOptions, make_plan
from dgcl.relation.classes import halo_classes
from dgcl.topology import resolve_topology


def plan_for(graph_file: str | None, machine: str, row_bytes: int) -> Plan:
    """The plan for a graph's file, or for a random graph, on a preset or the JSON file of a machine."""
    topology = resolve_topology(machine)
    if graph_file is not None:
        graph = read_graph(graph_file)
    else:
        graph = as_graph(np.random.default_rng(0).integers(0, 2000, (2, 10_000)), num_nodes=2000)
    part = partition_graph(graph, topology.num_devices, topology=topology)
    relation = halo_classes(graph, part, topology.num_devices).relation  # who needs which rows
    return make_plan(relation, topology, options=PlanOptions(row_bytes=row_bytes))


def report(plan: Plan) -> str:
    """Is the plan good? Compared with peer to peer, and with what no plan can beat."""
    lines = [
        f"{plan.relation.deliveries:,} rows of {plan.row_bytes} bytes in {plan.num_stages} stages",
        f"plan     {plan.predicted_seconds * 1e6:10.1f} us ({plan.method})",
        f"bound    {plan.lower_bound_seconds * 1e6:10.1f} us; the plan is at most {plan.gap:.1%} above it",
    ]
    if plan.direct_seconds is not None:
        lines.insert(2, f"direct   {plan.direct_seconds * 1e6:10.1f} us")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--graph", metavar="FILE", help="npz, edge list or Matrix Market (default: a random graph)"
    )
    parser.add_argument("--topology", default="dgx1", help="a preset (dgcl topo list) or a JSON file")
    parser.add_argument("--row-bytes", type=int, default=512)
    parser.add_argument("--out", metavar="PLAN.npz")
    args = parser.parse_args()
    made = plan_for(args.graph, args.topology, args.row_bytes)
    print(report(made))
    if args.out is not None:
        made.save(args.out)
        print(f"wrote {args.out}")

"""``dgcl topo plot``: a picture of a machine, with the load of a plan where one is given."""

import argparse
from typing import Any

from dgcl.cli.arguments import option
from dgcl.cli.errors import CliError
from dgcl.cli.files import check_picture, replacing
from dgcl.cli.output import print_fields, print_json, seconds, step
from dgcl.cli.plans import proved_plan
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve


def add_parser(actions: Any) -> None:
    """Declare the action."""
    parser = actions.add_parser(
        "plot",
        help="draw a topology",
        description="Draw devices, switches and connections: a line's width is its bandwidth, its colour its"
        " kind, or with a plan how long the connection is busy.",
    )
    parser.add_argument("topology", metavar="T", nargs="?", help=f"{TOPOLOGY_HELP}; default: the plan's")
    option(parser, "--plan plan.npz", "colour connections by the load of this plan")
    option(parser, "--out FILE", "the picture (.png, .svg or .pdf)", required=True)
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Draw, and say what was drawn."""
    from dgcl.topology.plot import plot_topology

    if args.topology is None and args.plan is None:
        raise CliError("name a topology T, or a plan with --plan")
    check_picture("--out", args.out, {"T": args.topology, "--plan": args.plan})
    busy = title = None
    if args.plan is None:
        topology = resolve(args.topology)
    else:
        plan = proved_plan(args.plan)
        topology = plan.topology if args.topology is None else resolve(args.topology, plan.world_size)
        with step("adding up the load"):
            busy, total = _load(plan, topology)
        title = f"{plan.method} plan on {topology.name}: {seconds(total)} an exchange"
    with step(f"drawing {topology.name}"), replacing(args.out) as path:
        plot_topology(topology, path, seconds=busy, title=title)
    drawn = {
        "out": args.out,
        "name": topology.name,
        "devices": topology.num_devices,
        "connections": len(topology.connections),
    }
    if args.json:
        print_json(drawn)
    else:
        print_fields([("drawn", f"{topology.name}, {topology.num_devices} devices"), ("picture", args.out)])
    return 0


def _load(plan: Any, topology: Any) -> tuple[Any, float]:
    """Seconds that each connection-direction is busy, and the plan's predicted seconds, on a topology."""
    from dgcl.planner.cost import predicted_seconds, stage_loads

    arrays = topology.arrays()
    loads = stage_loads(plan.trees, arrays, plan.row_bytes).sum(axis=0)
    return loads / (arrays.bandwidth * 1e9), predicted_seconds(plan.trees, arrays, plan.row_bytes)

"""The command ``dgcl topo plot``: draws a machine's devices, switches and connections into a picture file.

`topology/plot` draws. ``dgcl plan --plot`` draws the same machine with the load of a plan.

Called by `topo`. Free to change while a picture is written in the format of its suffix, and what was drawn is said
(`tests/dgcl/cli/test_topo_plot.py`).
"""

import argparse
from typing import Any

from dgcl.cli.arguments import option
from dgcl.cli.output import print_fields, print_json, step
from dgcl.cli.result_files import check_picture, replacing
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve


def add_parser(actions: Any) -> None:
    """Declare the action."""
    parser = actions.add_parser(
        "plot",
        help="draw a topology",
        description="Draw devices, switches and connections: a line's width is its bandwidth, its colour its kind.",
    )
    parser.add_argument("topology", metavar="T", help=TOPOLOGY_HELP)
    option(parser, "--out FILE", "the picture (.png, .svg or .pdf)", required=True)
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Draw, and say what was drawn."""
    from dgcl.topology.plot import plot_topology

    check_picture("--out", args.out, {"T": args.topology})
    topology = resolve(args.topology)
    with step(f"drawing {topology.name}"), replacing(args.out) as path:
        plot_topology(topology, path)
    if args.json:
        sizes = {"devices": topology.num_devices, "connections": len(topology.connections)}
        print_json({"out": args.out, "name": topology.name, **sizes})
    else:
        print_fields([("drawn", f"{topology.name}, {topology.num_devices} devices"), ("picture", args.out)])
    return 0

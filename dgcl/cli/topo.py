"""``dgcl topo``: a machine's devices, connections and links. ``show`` is here, the others in their files."""

import argparse
from typing import Any

from dgcl.cli import topo_calibrate, topo_detect, topo_import, topo_plot
from dgcl.cli.output import print_json, say
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command and its actions."""
    parser = verbs.add_parser(
        name,
        help="show, import, draw, detect or calibrate a machine's topology",
        description="A machine's devices, connections and links: print, draw, read, detect or measure them.",
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    show_parser = actions.add_parser(
        "show",
        help="print a topology",
        description="Print devices, connections and routes; with --json the topology file, links included.",
    )
    show_parser.add_argument("topology", metavar="T", help=TOPOLOGY_HELP)
    show_parser.runs(show)
    topo_import.add_parser(actions)
    topo_plot.add_parser(actions)
    topo_detect.add_parser(actions)
    topo_calibrate.add_parser(actions)


def show(args: argparse.Namespace) -> int:
    """Print a topology as text or as its file format."""
    topology = resolve(args.topology)
    if args.json:
        print_json(topology.to_json())
    else:
        from dgcl.topology import render_topology

        say(render_topology(topology), end="")
    return 0

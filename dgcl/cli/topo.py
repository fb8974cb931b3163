"""The command ``dgcl topo``: ``list`` and ``show``, and the parser of import, plot, detect and calibrate.

``show --json`` prints a topology file, which every ``--topology`` takes, links included.

Called by `dgcl/cli/__init__`. Free to change while a file that is shown as JSON and read again is the same topology
(`tests/dgcl/cli/test_topo.py`), and the list of presets is that of docs/topology.md (`tests/dgcl/cli/test_show.py`).
"""

import argparse
from textwrap import shorten
from typing import Any

from dgcl.cli import topo_calibrate, topo_detect, topo_import, topo_plot
from dgcl.cli.output import print_json, say
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve
from dgcl.topology.table import Column, Table


def add_parser(verbs: Any) -> None:
    """Declare the command and its actions."""
    parser = verbs.add_parser(
        "topo",
        help="list, show, import, draw, detect or calibrate a machine's topology",
        description="A machine's devices, connections and links: print, draw, read, detect or measure them.",
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    list_parser = actions.add_parser(
        "list",
        help="name the presets",
        description="Name the machines that `--topology` knows: other names, how sure their rates are, what each is.",
    )
    list_parser.runs(presets)
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


def presets(args: argparse.Namespace) -> int:
    """Print a line for each preset."""
    from dgcl.topology.presets import ALIASES, NODES, SURE

    table = Table(
        Column("preset", left=True),
        Column("aliases", " ".join, left=True),
        Column("rates", left=True),
        Column("what", lambda text: shorten(text, 90), left=True),
    )
    for name, node in NODES.items():
        aliases = [other for other, real in ALIASES.items() if real == name]
        table.add(name, aliases, SURE[name], (node.__doc__ or "").split("\n")[0].replace("``", ""))
    if args.json:
        print_json({"presets": table.json()})
        return 0
    say(table.text())
    say("\ndgx1x2: two of it and their network. host:N: CPU ranks of this host. uniform:N: equal ports")
    return 0


def show(args: argparse.Namespace) -> int:
    """Print a topology as text or as its file format."""
    topology = resolve(args.topology)
    if args.json:
        print_json(topology.to_json())
    else:
        from dgcl.topology.show import headline, render_topology

        say(f"{headline(topology)}\n\n{render_topology(topology)}", end="")
    return 0

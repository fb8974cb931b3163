"""Reads the argument ``T`` of commands (a preset or a topology file), and the options that change it.

These are ``--without``, ``--scale NAME=X`` and ``--add``; ``--scale X`` alone is the size of a synthetic graph.
`advise`, `plan` and `simulate` take them, and lists, ``T,T``, split at commas unless a file has that name; the other
commands take one ``T``.

Called by `advise`, `bench`, `plan`, `simulate`, `topo` and others. Free to change while those three change a machine
alike and refuse a wrong change with the same words (`tests/dgcl/cli/test_show.py`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import number, option
from dgcl.cli.command_errors import CliError, reading
from dgcl.cli.output import step

if TYPE_CHECKING:
    from dgcl.topology import Topology

TOPOLOGY_HELP = (
    "preset such as dgx1, pcie8, host:4 or uniform:8 (a wrong name lists them all), or topology JSON file"
)


def resolve(spec: str, num_devices: int | None = None) -> Topology:
    """Return the topology that ``T`` names, of ``num_devices`` devices where that is given."""
    from dgcl.topology import resolve_topology

    with step(f"reading topology {spec}"), reading(spec, "topology"):
        return resolve_topology(spec, num_devices)


class _Scale(argparse.Action):
    """``--scale X`` of a synthetic graph, and ``--scale NAME=X`` of a wire."""

    def __call__(self, parser: Any, args: Any, value: Any, option_string: str | None = None) -> None:
        if isinstance(value, str):
            args.faster = [*args.faster, value]
        else:
            args.scale = value


def _scale(text: str) -> str | float:
    return text if "=" in text else number(0, open_end=True)(text)


def add_changes(parser: Any) -> None:
    """Declare what may be changed of the machine; ``--scale X`` is the size of a synthetic graph."""
    what = parser.add_argument_group(
        "what if: NAME is a connection, two ends as in gpu0-gpu3, a kind or a switch"
    )
    option(what, "--without NAME", "take it out; routes over it are found anew", default=[], action="append")
    sizes = "a factor on its bandwidth; X alone: of --synthetic (default: 1)"
    option(what, "--scale [NAME=]X", sizes, _scale, 1.0, action=_Scale)
    option(what, "--add KIND:A-B[=GB/s]", "put a wire between two ends", default=[], action="append")
    parser.set_defaults(faster=[])


def machines(
    args: argparse.Namespace, sizes: Sequence[int | None] = (None,), own: Topology | None = None
) -> list[Topology]:
    """Each of ``--topology``, or else ``own``, with each number of devices, changed as was asked."""
    from dgcl.topology.what_if import changed

    specs = args.topology or ""
    each = [specs] if os.path.exists(specs) else specs.split(",")
    topologies = [resolve(spec, size) if spec or own is None else own for spec in each for size in sizes]
    try:
        return [changed(one, without=args.without, scale=args.faster, add=args.add) for one in topologies]
    except ValueError as error:
        raise CliError(f"--{error}") from None

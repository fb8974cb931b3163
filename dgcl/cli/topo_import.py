"""The command ``dgcl topo import``: makes a topology of what nvidia-smi, NCCL or RCCL wrote.

Several files are the machines of one network. ``report`` and ``write_topology`` print and write a topology with notes,
for the other commands, too.

Called by `topo`, `topo_calibrate` and `topo_detect`. Free to change while the file that is written loads as the
topology that is shown, and every assumption is a note in it (`tests/dgcl/cli/test_topo_import.py`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import number, option
from dgcl.cli.command_errors import CliError, reading
from dgcl.cli.output import print_json, print_written, say, step
from dgcl.cli.result_files import check_output, replacing

if TYPE_CHECKING:
    from dgcl.topology import Topology


def add_parser(actions: Any) -> None:
    """Declare the action."""
    parser = actions.add_parser(
        "import",
        help="make a topology of what nvidia-smi or NCCL wrote",
        description="Read `nvidia-smi topo -m` text or an NCCL (or RCCL) topology XML file. Anything cut off"
        " or garbled is refused with its line. Several files are machines of one network."
        " With --json: the topology file, with what was assumed.",
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="the text or XML file; told by its content; one per machine"
    )
    option(parser, "--p2p TABLE", "p2pBandwidthLatencyTest output for the same GPUs")
    option(parser, "--gpu MODEL", "what the GPUs of a matrix are, such as A100")
    option(
        parser,
        "--nic GB/s",
        "speed each way of network cards whose speed the file does not tell",
        number(0, open_end=True),
    )
    option(parser, "--name NAME", "name of the topology (default: that of the file)")
    option(parser, "--out T.json", "write the topology file")
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Import, write what was asked for, and print the outcome."""
    from dgcl.topology.gpu_models import gpu_model
    from dgcl.topology.importers import import_machines, import_topology

    if args.gpu is not None:
        try:
            gpu_model(args.gpu)
        except ValueError as error:
            raise CliError(f"--{error}") from None
    for file in args.files:
        check_output("--out", args.out, {"FILE": file, "--p2p": args.p2p})
    shown = ", ".join(args.files)
    said = {"gpu": args.gpu, "nic": args.nic, "name": args.name}
    with step(f"reading {shown}"), reading(shown, "machine" if len(args.files) == 1 else "machines"):
        if len(args.files) == 1:
            imported = import_topology(args.files[0], p2p=args.p2p, **said)
        elif args.p2p is not None:
            raise CliError("--p2p: measures one machine; refine each one's file before they are joined")
        else:
            imported = import_machines(args.files, **said)
    source = ", ".join(Path(file).name for file in args.files)
    about: dict[str, Any] = {"source": source, "notes": list(imported.notes)}
    if args.p2p is not None:
        about["p2p"] = Path(args.p2p).name
    report(imported.topology, about, args)
    return 0


def write_topology(topology: Topology, about: dict[str, Any], args: argparse.Namespace) -> None:
    """Write ``--out`` and print JSON, as far as these were asked for, with what is to be told of the topology."""
    from dgcl.topology import save_topology

    if args.out is not None:
        with replacing(args.out) as path:
            save_topology(topology, path, about=about)
    if args.json:
        print_json({**topology.to_json(), "about": about})


def report(topology: Topology, about: dict[str, Any], args: argparse.Namespace) -> None:
    """Write and print a topology and the notes about it."""
    from dgcl.topology import render_topology

    write_topology(topology, about, args)
    if args.json:
        return
    text = render_topology(topology)
    say(text if args.out is None else text.split("\n\n")[0], end="" if args.out is None else "\n")
    for note in about["notes"]:
        say(f"note: {note}")
    print_written(("topology", args.out))

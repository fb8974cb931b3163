"""``dgcl topo import FILE``: a topology from what nvidia-smi, NCCL and p2pBandwidthLatencyTest wrote."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgcl.cli.errors import CliError, reading
from dgcl.cli.files import check_output, replacing
from dgcl.cli.output import print_json, step

if TYPE_CHECKING:
    from dgcl.topology import Topology


def add_parser(actions: Any) -> None:
    """Declare the action."""
    parser = actions.add_parser(
        "import",
        help="make a topology of what nvidia-smi or NCCL wrote",
        description="Read `nvidia-smi topo -m` text or an NCCL (or RCCL) topology XML file. Anything cut off"
        " or garbled is refused with its line. With --json: the topology file, with what was assumed.",
    )
    parser.add_argument("file", metavar="FILE", help="the text or XML file; told by its content")
    parser.add_argument("--p2p", metavar="TABLE", help="p2pBandwidthLatencyTest output for the same GPUs")
    parser.add_argument("--gpu", metavar="MODEL", help="what the GPUs of a matrix are, such as A100")
    parser.add_argument("--name", metavar="NAME", help="name of the topology (default: that of the file)")
    parser.add_argument("--out", metavar="T.json", help="write the topology file")
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Import, write what was asked for, and print the outcome."""
    from dgcl.topology.importers import import_topology
    from dgcl.topology.rates import GPU_MODELS

    if args.gpu is not None and args.gpu not in GPU_MODELS:
        raise CliError(f"--gpu must be one of {', '.join(GPU_MODELS)} (got {args.gpu!r})")
    check_output("--out", args.out, {"FILE": args.file, "--p2p": args.p2p})
    with step(f"reading {args.file}"), reading(args.file, "machine"):
        imported = import_topology(args.file, p2p=args.p2p, gpu=args.gpu, name=args.name)
    about: dict[str, Any] = {"source": Path(args.file).name, "notes": list(imported.notes)}
    if args.p2p is not None:
        about["p2p"] = Path(args.p2p).name
    report(imported.topology, about, args)
    return 0


def report(topology: Topology, about: dict[str, Any], args: argparse.Namespace) -> None:
    """Write ``--out`` and print a topology with what is to be told about it."""
    from dgcl.topology import render_topology, save_topology

    if args.out is not None:
        with replacing(args.out) as path:
            save_topology(topology, path, about=about)
    if args.json:
        print_json({**topology.to_json(), "about": about})
        return
    text = render_topology(topology)
    print(text if args.out is None else text.split("\n\n")[0], end="" if args.out is None else "\n")
    for note in about["notes"]:
        print(f"note: {note}")
    if args.out is not None:
        print(f"written to {args.out}")

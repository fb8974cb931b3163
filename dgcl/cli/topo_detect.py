"""The command ``dgcl topo detect``: reports the topology of this machine, as the kernel (sysfs) and NVML report it.

Without GPUs, or with ``--cpu``, it measures how fast the cores of this host copy memory, for ranks on CPUs.

Called by `topo`. Free to change while a machine without NVML is described for CPU ranks with a note that says why, and
parts of GPUs (MIG) are refused (`tests/dgcl/cli/test_topo_detect.py`).
"""

import argparse
import platform
from dataclasses import replace
from typing import Any

from dgcl.cli.arguments import at_least, option
from dgcl.cli.output import say, step
from dgcl.cli.result_files import check_output
from dgcl.cli.topo_import import report


def add_parser(actions: Any) -> None:
    """Declare the action."""
    parser = actions.add_parser(
        "detect",
        help="find out what this machine is",
        description="Find the GPUs that this process may use (NVML), how they are"
        " joined, and their NICs. Without GPUs: how fast the cores of this host copy memory, for ranks on CPUs.",
    )
    option(parser, "--cpu", "describe the host for CPU ranks, GPUs or not")
    option(parser, "--ranks P", "CPU ranks (default: the cores, at most 16)", at_least(1))
    option(parser, "--name NAME", "name of the topology (default: that of the host)")
    option(parser, "--out T.json", "write the topology file")
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Detect, write what was asked for, and print the outcome."""
    from dgcl.topology.copy_rates import rates_file
    from dgcl.topology.detect import NvmlUnavailable, Sysfs, detect_gpus
    from dgcl.topology.latencies import with_latencies

    check_output("--out", args.out, {})
    facts = str(Sysfs().host())
    topology, notes = None, list[str]()
    if not args.cpu:
        try:
            found = detect_gpus(args.name or platform.node() or "this machine")
            topology, notes = with_latencies(found.topology), [*found.notes]
        except NvmlUnavailable as error:
            notes.append(f"{error}; ranks run on CPUs")
    if topology is None:
        notes.append(
            f"copies are as fast as the best that was measured on this machine, now or before: {rates_file()}"
        )
        topology = _host(args)
    report(topology, {"source": f"detected: {facts}", "notes": notes}, args)
    if not args.json:
        say(f"this host: {facts}")
    return 0


def _host(args: argparse.Namespace) -> Any:
    from dgcl.topology import measure_host
    from dgcl.topology.copy_rates import num_copiers

    with step("measuring how fast memory is copied"):
        topology = measure_host(args.ranks or num_copiers(16))
    return topology if args.name is None else replace(topology, name=args.name)

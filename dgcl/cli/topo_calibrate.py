"""The command ``dgcl topo calibrate``: measures a topology's links between ranks, fits and prints its rates.

Under torchrun the ranks of the job are measured, and rank 0 prints; else ranks are started on this host. The file of
``--out`` records the measurements (``about.calibration``) beside the rates. What measures is `dgcl/calibration/run`.

Called by `topo`. Free to change while the file loads as a topology with the same devices and connections, and a lost
rank is one line and status 1 (`tests/dgcl/cli/test_topo_calibrate.py`).
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import at_least, number, option
from dgcl.cli.command_errors import CliError
from dgcl.cli.jobs import add_job, ranks_of_job
from dgcl.cli.output import print_written, say, seconds, step
from dgcl.cli.result_files import check_output
from dgcl.cli.topo_import import write_topology
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve
from dgcl.topology.table import Column, Table

if TYPE_CHECKING:
    from dgcl.calibration import Calibration

_WIDEST_ROW = 1 << 20  # bytes
_CLASSES = (
    Column("connections", left=True, key="kind"),
    Column("how many", lambda names: str(len(names)), key="connections"),
    Column("GB/s", ".4g", key="bandwidth"),
    Column("latency", seconds),
    "decided",
)
_CONTENTION = (
    Column("shared", left=True, key="shares"),
    "senders",
    Column("GB/s each", ".2f", key="each"),
    Column("fitted", ".2f", key="predicted_each"),
)


def add_parser(actions: Any) -> None:
    """Declare the action."""
    parser = actions.add_parser(
        "calibrate",
        help="measure bandwidths, latencies and contention, and write the topology",
        description="Time exchanges between ranks with this library's own channels: single links, several"
        " senders over shared connections, everybody at once. Fit bandwidths and latencies, and write them. Under"
        " torchrun the ranks of the job are measured, otherwise CPU ranks that are started on this host.",
    )
    option(parser, "--topology T", f"where the connections are: {TOPOLOGY_HELP} (default: this host)")
    add_job(parser)
    option(parser, "--row-bytes B", "default: 512", at_least(1), 512)
    option(parser, "--seconds S", "time for each measurement (default: 0.8)", number(0, open_end=True))
    option(parser, "--out T.json", "write the topology, measurements recorded in it")
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Calibrate, write what was asked for, and print the outcome."""
    import dgcl
    from dgcl.calibration.run import outcome_json, run_on_host, run_rank
    from dgcl.calibration.timing import Effort

    check_output("--out", args.out, {"--topology": args.topology})
    if args.row_bytes > _WIDEST_ROW:
        raise CliError(f"--row-bytes: at most {_WIDEST_ROW} (got {args.row_bytes})")
    num_ranks, job = ranks_of_job(args)
    # In a job rank 0 alone reads it: a file may lie on its machine only.
    reads = args.topology is not None and (job is None or job.rank == 0)
    topology = resolve(args.topology, num_ranks) if reads else None
    effort = Effort() if args.seconds is None else Effort(seconds=args.seconds / Effort.rounds)
    if job:
        dgcl.init()
        calibration = run_rank(topology, args.row_bytes, effort, args.device)
    else:
        with step(f"measuring between {num_ranks} ranks"):
            calibration = run_on_host(
                topology,
                num_ranks,
                args.row_bytes,
                effort,
                "threads" if args.threads else "processes",
                args.device,
            )
    if calibration is None:
        return 0  # another rank than 0
    outcome = outcome_json(calibration)
    write_topology(calibration.fit.topology, {"calibration": outcome}, args)
    if not args.json:
        _print(calibration, outcome, args.out)
    return 0


def _print(calibration: Calibration, outcome: dict[str, Any], out: str | None) -> None:
    fit = calibration.fit
    say(
        f"{fit.topology.name}, {calibration.device.upper()} ranks, rows of {calibration.row_bytes} bytes; the fit is "
        f"within {fit.residual:.1%} of the median measurement\n"
    )
    say(Table(*_CLASSES).fill(outcome["classes"]).text())
    if outcome["contention"]:
        say(f"\n{Table(*_CONTENTION).fill(outcome['contention']).text()}")
    if fit.dropped:
        say(f"left out of the fit: {'; '.join(fit.dropped)}", file=sys.stderr)
    print_written(("topology", out))

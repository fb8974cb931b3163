"""``dgcl topo calibrate``: measure a topology's links inside the job, and fit its figures to that."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import at_least, number, option, refuse
from dgcl.cli.errors import CliError
from dgcl.cli.files import check_output, replacing
from dgcl.cli.output import print_json, print_written, step
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve

if TYPE_CHECKING:
    from dgcl.calibration import Calibration
    from dgcl.topology import Topology

_MOST_RANKS = 64
_WIDEST_ROW = 1 << 20  # bytes


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
    option(parser, "--ranks P", "CPU ranks to start (default: 2)", at_least(2))
    option(parser, "--threads", "ranks are threads instead of processes")
    option(parser, "--device", "where rows lie: rank r on GPU r, in turns", ("cpu", "cuda"), "cpu")
    option(parser, "--row-bytes B", "default: 512", at_least(1), 512)
    option(parser, "--check N", "predict and time N plans not used in the fit", at_least(0), 0)
    option(parser, "--seconds S", "time for each measurement (default: 0.8)", number(0, open_end=True))
    option(parser, "--out T.json", "write the topology, measurements recorded in it")
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Calibrate, write what was asked for, and print the outcome."""
    from dgcl.calibration.check import MOST_CHECKS
    from dgcl.calibration.run import outcome_json
    from dgcl.errors import CommError
    from dgcl.topology import save_topology

    check_output("--out", args.out, {"--topology": args.topology})
    if args.check > MOST_CHECKS:
        raise CliError(f"--check: there are {MOST_CHECKS} plans to check with (got {args.check})")
    if args.row_bytes > _WIDEST_ROW:
        raise CliError(f"--row-bytes: at most {_WIDEST_ROW} (got {args.row_bytes})")
    if args.device == "cuda":
        refuse(args, "threads", "goes without --device cuda")
    in_job = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    try:
        calibration = _in_job(args) if in_job else _started(args)
    except CommError as error:
        raise CliError(str(error), status=1) from error
    if calibration is None:
        return 0  # another rank than 0
    outcome = outcome_json(calibration)
    topology = calibration.fit.topology
    if args.out is not None:
        with replacing(args.out) as path:
            save_topology(topology, path, about={"calibration": outcome})
    if args.json:
        print_json({**topology.to_json(), "about": {"calibration": outcome}})
    else:
        _print(calibration, outcome, args.out)
    return 0


def _effort(args: argparse.Namespace) -> Any:
    from dgcl.calibration.effort import Effort

    default = Effort()
    return default if args.seconds is None else Effort(seconds=args.seconds / default.rounds)


def _in_job(args: argparse.Namespace) -> Calibration | None:
    """The ranks that torchrun started; ``--ranks`` and ``--threads`` would contradict it."""
    import dgcl
    from dgcl.calibration.run import run_rank

    world_size = int(os.environ["WORLD_SIZE"])
    if args.threads or args.ranks not in (None, world_size):
        raise CliError(f"--ranks and --threads: the job has {world_size} ranks already")
    topology = _topology(args, world_size) if os.environ["RANK"] == "0" else None
    dgcl.init()
    return run_rank(topology, args.row_bytes, args.check, _effort(args), device=args.device)


def _started(args: argparse.Namespace) -> Calibration:
    from dgcl.calibration.run import run_on_host

    num_ranks = args.ranks or 2
    if num_ranks > _MOST_RANKS:
        raise CliError(f"--ranks: at most {_MOST_RANKS} (got {num_ranks})")
    topology = _topology(args, num_ranks)
    with step(f"measuring between {num_ranks} ranks"):
        return run_on_host(
            topology,
            num_ranks,
            args.row_bytes,
            args.check,
            _effort(args),
            "threads" if args.threads else "processes",
            args.device,
        )


def _topology(args: argparse.Namespace, num_ranks: int) -> Topology | None:

    return None if args.topology is None else resolve(args.topology, num_ranks)


def _print(calibration: Calibration, outcome: dict[str, Any], out: str | None) -> None:
    from dgcl.calibration.report import checked_table, class_table, contention_table

    fit = calibration.fit
    print(
        f"{fit.topology.name}, {calibration.device.upper()} ranks, rows of {calibration.row_bytes} bytes; the fit is "
        f"within {fit.residual:.1%} of the median measurement\n"
    )
    print(class_table(outcome).text())
    if outcome["contention"]:
        print(f"\n{contention_table(outcome).text()}")
    if calibration.checked:
        print(f"\n{checked_table(outcome).text()}\nmedian error {outcome['median_error']:.1%}")
    if fit.dropped:
        print(f"left out of the fit: {'; '.join(fit.dropped)}", file=sys.stderr)
    print_written(("topology", out))

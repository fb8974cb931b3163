"""Options of the commands that measure ranks: how many are started on this host, as what, on which device.

Inside a job (torchrun, Slurm, ...) its ranks are measured, and ``--ranks`` and ``--threads`` may not contradict it.

Called by `bench` and `topo_calibrate`. Free to change while 2 to 64 ranks are taken and others refused
(`tests/dgcl/cli/test_bad_input.py`), and a job's ranks are never started again
(`tests/dgcl/cli/test_topo_calibrate.py`).
"""

import argparse
from typing import Any

from dgcl.cli.arguments import at_least, option, refuse
from dgcl.cli.command_errors import CliError
from dgcl.ranks.environment import Launched, launched

MAX_RANKS = 64


def add_job(parser: Any) -> None:
    """Declare how many ranks are started, as what, and where rows lie."""
    option(parser, "--ranks P", "to start on this host; default: 2", at_least(2))
    option(parser, "--threads", "ranks are threads, not processes")
    option(parser, "--device", "where rows lie: rank r on GPU r, in turns", ("cpu", "cuda"), "cpu")


def ranks_of_job(args: argparse.Namespace) -> tuple[int, Launched | None]:
    """How many ranks there are, and the job that a launcher has started them in; refuse what contradicts that."""
    job = launched()
    num_ranks = args.ranks or 2 if job is None else job.size
    if job and (args.threads or args.ranks not in (None, num_ranks)):
        raise CliError(f"--ranks and --threads: the job has {num_ranks} ranks already; leave them out")
    if not 2 <= num_ranks <= MAX_RANKS:
        what = "the job's ranks" if job else "--ranks"
        raise CliError(f"{what} must be from 2 to {MAX_RANKS} (got {num_ranks})")
    if args.device == "cuda":
        import torch

        refuse(args, "threads", "goes without --device cuda")
        if not torch.cuda.is_available():
            built = torch.version.cuda or "none"
            raise CliError(
                f"--device cuda: torch {torch.__version__} (built for CUDA: {built}) sees no CUDA device"
            )
    return num_ranks, job

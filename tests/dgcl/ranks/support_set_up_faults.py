"""What :mod:`tests.dgcl.ranks.test_set_up_faults` shares with other tests."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import free_port

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 300


def run_ranks(world_size: int, programs: dict[int, str], *arguments: str) -> dict[int, tuple[int, str]]:
    """Start the ranks that have a program, as torchrun would; of each the exit status and what it printed."""
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    started = {
        rank: subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                f"import torch, dgcl, os, sys, time\n{program}",
                *arguments,
            ],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, program in programs.items()
    }
    try:
        printed = {rank: process.communicate(timeout=TIMEOUT)[0] for rank, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
    return {rank: (process.returncode, printed[rank]) for rank, process in started.items()}

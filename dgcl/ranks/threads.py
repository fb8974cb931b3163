"""Chooses how many torch threads a rank should use: its share of the host's cores.

Where the ranks of a host together have more threads than there are cores, threads wait for each other: four ranks with
two threads each on two cores took 30 times as long as with one each. What the user has set is never exceeded.

Called by `launcher`, `dgcl/api` and `dgcl/calibration/run`. Free to change while launched ranks share the cores, the
caller's number of threads is restored, and too many are logged (`tests/dgcl/ranks/test_launcher.py`).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dgcl.topology.copy_rates import available_cores

_log = logging.getLogger("dgcl")


def fair_threads(num_ranks: int) -> int:
    """Threads for each of ``num_ranks`` ranks of this host: its share of the cores, at least 1.

    Not more than torch uses now, which the user may have chosen (``OMP_NUM_THREADS``, ``torch.set_num_threads``).
    """
    return max(1, min(torch.get_num_threads(), available_cores() // num_ranks))


@contextmanager
def threads_restored() -> Iterator[None]:
    """Restore torch's number of threads, which new threads of this process begin with."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def report_crowding(num_ranks: int) -> None:
    """Log where ranks that the user started have more threads than there are cores."""
    threads, cores = torch.get_num_threads(), available_cores()
    if num_ranks > 1 and threads > fair_threads(num_ranks):
        _log.info(
            "%d ranks with %d threads each share %d cores and will wait for each other; set OMP_NUM_THREADS=%d",
            num_ranks,
            threads,
            cores,
            fair_threads(num_ranks),
        )
